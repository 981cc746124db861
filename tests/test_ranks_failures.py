"""Ranks that fail in whole runs of pytest, as a user reads of them: many tests in one run, since each loads torch."""

import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.helper_sources import HELPERS, TESTS
from tests.whole_run import WholeRun, run_pytest, write

JUNIT = "junit.xml"

FAILURES = '''
import os, signal, sys, threading, time
import pytest, torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch.distributed.tensor import DTensor  # here, so that no rank spends its timeout on it

pytestmark = pytest.mark.ranks(2)

class OfTheTest(Exception):
    pass

def test_assertion_on_one_rank(ranks):
    def program(ctx):
        expected = 1
        if ctx.rank == 1:
            assert expected == ctx.rank + 1, "the message"
    ranks.run(program)

def test_nested_frames(ranks):
    def inner(ctx):
        raise OfTheTest("deep")
    def program(ctx):
        inner(ctx)
    ranks.run(program)

def test_exception_types_are_kept(ranks):
    def program(ctx, kind):
        raise kind("told")
    for kind in (ValueError, OfTheTest):
        with pytest.raises(kind, match="told") as caught:
            ranks.run(program, kind)
        assert type(caught.value) is kind
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_exception_group(ranks):
    def program(ctx):
        if ctx.rank == 1:
            raise ExceptionGroup("several", [OfTheTest("one"), OfTheTest("another")])
    ranks.run(program)

def test_marked_timeout_in_its_own_time(ranks): pass

@pytest.mark.ranks(2, timeout=0.5)
def test_marked_timeout(ranks):
    def program(ctx):
        if ctx.rank == 1:
            threading.Event().wait()
    ranks.run(program)

def test_after_a_timeout(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_ini_timeout(ranks):
    ranks.run(lambda ctx: threading.Event().wait())

def test_death_in_a_collective(ranks):
    def program(ctx):
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    ranks.run(program)

def test_after_a_death(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_death_while_others_return(ranks):
    ranks.run(lambda ctx: os._exit(3) if ctx.rank == 1 else None)

def test_after_another_death(ranks):
    def program(ctx):
        x = torch.ones(1)
        dist.all_reduce(x)
        return float(x)
    assert ranks.run(program) == [2.0, 2.0]

def test_skip_by_all(ranks):
    ranks.run(lambda ctx: pytest.skip("no multicast here"))

def test_skip_by_one(ranks):
    ranks.run(lambda ctx: pytest.skip("no multicast here") if ctx.rank == 1 else None)

def test_result_that_cannot_be_pickled(ranks):
    ranks.run(lambda ctx: threading.Lock())

def test_dtensor_result(ranks):
    def program(ctx):
        from torch.distributed.device_mesh import init_device_mesh
        return DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (ctx.world_size,)))
    ranks.run(program)

async def awaited(ctx):
    return 1

def test_program_that_cannot_be_called(ranks):
    with pytest.raises(TypeError, match="^program must be a plain function, got the coroutine function .*a"):
        ranks.run(awaited)
    with pytest.raises(TypeError, match="^program must be a function that takes a context, got 42 of type int$"):
        ranks.run(42)

def test_calls_no_function(ranks):
    ranks.run(42)

def test_argument_that_cannot_be_pickled(ranks):
    def program(ctx, lock):
        pass

    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as caught:
        ranks.run(program, threading.Lock())
    [note] = caught.value.__notes__
    assert "argument_that_cannot_be_pickled.<locals>.program was pickled for the ranks, with its arguments" in note

def test_sys_exit(ranks):
    ranks.run(lambda ctx: sys.exit(0))

@pytest.mark.ranks(2, timeout=0.5)
def test_other_collectives(ranks):
    def program(ctx):
        x = torch.ones(4)
        dist.all_reduce(x)
        if ctx.rank == 0:
            dist.broadcast(x, src=1)
        else:
            dist.all_reduce(x)
    ranks.run(program)

def test_another_exception(ranks, tmp_path):
    def program(ctx):
        if ctx.rank == 1:
            try:
                raise OfTheTest("first\\nof two lines")
            finally:
                (tmp_path / "failed").touch()
        while not (tmp_path / "failed").exists():
            time.sleep(0.01)
        time.sleep(0.1)  # so that it is later beyond doubt
        raise KeyError("late")
    ranks.run(program)

def test_mismatch(ranks):
    """The next test is not to suffer from a group in which one rank waits for the other."""
    def program(ctx):
        if ctx.rank == 0:
            raise OfTheTest("left alone")
        dist.barrier()
    ranks.run(program)

def test_after_a_mismatch(ranks):
    ranks.run(lambda ctx: dist.barrier())

@settings(deadline=None, database=None)
@given(number=st.integers(0, 10**6))
def test_shrinks(ranks, number):
    def program(ctx, n):
        assert n < 1234
    ranks.run(program, number)

@settings(deadline=None, database=None, max_examples=50)
@given(size=st.integers(1, 2))
def test_draws_its_world(ranks, size):
    assert ranks.resized(size).run(lambda ctx: ctx.world_size) == [size] * size
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def failures(folder: Path) -> WholeRun:
    """In importlib mode, in which no rank could import the test module."""
    # That mode puts no folder on sys.path: a helper is imported by its bare name where pythonpath says so.
    ini = "[pytest]\ngpuperf_timeout = 3\npythonpath = beside\n"
    sources = {"test_failures.py": FAILURES, "pytest.ini": ini, **HELPERS}
    return run_pytest(write(folder, sources), "--import-mode=importlib", f"--junitxml={JUNIT}")


def test_an_assertion_on_one_rank_reads_like_any_other(failures: WholeRun) -> None:
    report = failures.report("test_assertion_on_one_rank[2ranks]")
    assert re.search(r'^> +assert expected == ctx.rank \+ 1, "the message"$', report, re.MULTILINE)
    assert re.search(r"^E +AssertionError: the message\nE +assert 1 == \(1 \+ 1\)$", report, re.MULTILINE)
    assert "raised on rank 1 of 2 (gloo) in test_failures:test_assertion_on_one_rank.<locals>.program" in report
    assert "rank 0 returned" in report
    assert "pytest_gpuperf/" not in report


def test_all_frames_of_the_rank_are_shown(failures: WholeRun) -> None:
    report = failures.report("test_nested_frames[2ranks]")
    assert re.search(r'^> +raise OfTheTest\("deep"\)$', report, re.MULTILINE)
    assert "    inner(ctx)\n" in report
    assert re.search(r"^E +rank [01] raised the same$", report, re.MULTILINE)
    assert "traceback of" not in report


def test_exceptions_keep_their_types(failures: WholeRun) -> None:
    assert failures.outcomes["test_exception_types_are_kept[2ranks]"] == "PASSED"


def test_a_timeout_of_the_marker_names_the_rank_and_where_it_was(failures: WholeRun) -> None:
    report = failures.report("test_marked_timeout[2ranks]")
    assert "rank 1 of 2 (gloo) did not return from" in report
    assert "within 0.5 s; give it longer with @pytest.mark.ranks(..., timeout=SECONDS)" in report
    assert "rank 0 returned" in report
    assert re.search(
        r"^E +rank 1 is in wait \(threading\.py:\d+\), called at \S+test_failures\.py:\d+ in program$", report, re.M
    )
    stack = re.search(r"- stack of rank 1 -+\n((?:  File .*\n)+)-+ run this alone -+\n(.*)$", report)
    assert stack is not None
    assert stack[1].splitlines()[-1].endswith(" in program")
    assert stack[2] == 'pytest "test_failures.py::test_marked_timeout[2ranks]"'


def test_the_default_timeout_is_the_ini_keys(failures: WholeRun) -> None:
    report = failures.report("test_ini_timeout[2ranks]")
    assert "ranks 0, 1 of 2 (gloo) did not return from" in report
    assert "within 3 s;" in report


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("test_death_in_a_collective[2ranks]", f"was killed by {signal.SIGKILL.name}"),
        ("test_death_while_others_return[2ranks]", "exited with code 3 before it returned"),
    ],
)
def test_a_death_is_told_with_rank_and_cause(failures: WholeRun, name: str, how: str) -> None:
    assert failures.outcomes[name] == "FAILED"
    assert re.search(rf"E +pytest_gpuperf\.ranks\.failures\.RankDied: rank 1 of 2 .* {how}", failures.report(name))


@pytest.mark.parametrize(
    "name", ["test_after_a_timeout", "test_after_a_death", "test_after_another_death", "test_after_a_mismatch"]
)
def test_the_next_test_does_not_suffer(failures: WholeRun, name: str) -> None:
    assert failures.outcomes[f"{name}[2ranks]"] == "PASSED"


def test_a_skip_that_all_ranks_agree_on_is_a_skip(failures: WholeRun) -> None:
    assert failures.outcomes["test_skip_by_all[2ranks]"] == "SKIPPED"
    assert re.search(r"SKIPPED \[1\] test_failures\.py:\d+: no multicast here", failures.text)


def test_a_skip_by_one_rank_is_a_failure(failures: WholeRun) -> None:
    assert failures.outcomes["test_skip_by_one[2ranks]"] == "FAILED"
    report = failures.report("test_skip_by_one[2ranks]")
    assert "rank 1 of 2 (gloo) skipped in" in report
    assert "It raised Skipped: no multicast here" in report
    assert "rank 0 returned" in report


def test_a_result_that_cannot_be_pickled_is_named(failures: WholeRun) -> None:
    report = failures.report("test_result_that_cannot_be_pickled[2ranks]")
    assert "ResultError: rank 0 of 2 (gloo) in" in report or "ResultError: rank 1 of 2 (gloo) in" in report
    assert "the program returned a lock that cannot be pickled" in report


def test_a_dtensor_result_says_what_to_return_instead(failures: WholeRun) -> None:
    assert "return .to_local() or .full_tensor()" in failures.report("test_dtensor_result[2ranks]")


@pytest.mark.parametrize(
    "name", ["test_program_that_cannot_be_called[2ranks]", "test_argument_that_cannot_be_pickled[2ranks]"]
)
def test_what_cannot_be_sent_is_a_type_error(failures: WholeRun, name: str) -> None:
    assert failures.outcomes[name] == "PASSED", failures.report(name)


def test_what_cannot_be_called_is_shown_in_the_test_alone(failures: WholeRun) -> None:
    report = failures.report("test_calls_no_function[2ranks]")
    assert ">       ranks.run(42)\nE       TypeError: program must be a function" in report
    assert "pytest_gpuperf" not in report


def test_sys_exit_on_a_rank_fails_the_test_and_the_run_goes_on(failures: WholeRun) -> None:
    assert "raised SystemExit: 0" in failures.report("test_sys_exit[2ranks]")
    assert failures.result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_first_failure_is_told_and_not_its_consequence(failures: WholeRun) -> None:
    report = failures.report("test_mismatch[2ranks]")
    assert "OfTheTest: left alone" in report
    assert "raised on rank 0 of 2" in report


def test_hypothesis_finds_the_minimal_example_and_shows_it(failures: WholeRun) -> None:
    report = failures.report("test_shrinks[2ranks]")
    assert re.search(r"(Falsifying example|Failing test case): test_shrinks\(", report)
    assert re.search(r"number=1234,", report)
    assert "assert 1234 < 1234" in report


def test_hypothesis_draws_worlds(failures: WholeRun) -> None:
    assert failures.outcomes["test_draws_its_world[2ranks]"] == "PASSED"


def test_the_forkserver_and_the_ranks_print_nothing_to_the_terminal(failures: WholeRun) -> None:
    assert failures.result.errlines == []


@pytest.mark.parametrize("name", TESTS)
def test_helpers_are_found_in_importlib_mode_too(failures: WholeRun, name: str) -> None:
    assert failures.outcomes[name] == "PASSED", failures.report(name)


def test_ranks_that_part_in_their_collectives_are_told_where(failures: WholeRun) -> None:
    report = failures.report("test_other_collectives[2ranks]")
    assert (
        "the ranks part at collective 2 of the program: rank 0 issued broadcast Float[4]; rank 1 issued all_reduce "
        "Float[4]"
    ) in report
    assert re.search(
        r"- collectives -+\n"
        r"last collective of rank 0: broadcast Float\[4\], its collective 2\n"
        r"last collective of rank 1: all_reduce Float\[4\], its collective 2\n"
        r"-+ stack of rank 0 -+\n(  File .*\n)+"
        r"-+ stack of rank 1 -+\n(  File .*\n)+"
        r"-+ run this alone -+\n"
        r'pytest "test_failures\.py::test_other_collectives\[2ranks\]"$',
        report,
    )


def test_what_another_rank_raised_elsewhere_is_shown_with_its_traceback(failures: WholeRun) -> None:
    report = failures.report("test_another_exception[2ranks]")
    assert re.search(r"^E +rank 0 raised KeyError: 'late', at \S+test_failures\.py:\d+ in program$", report, re.M)
    assert re.search(
        r"- traceback of rank 0 -+\nTraceback \(most recent call last\):\n(.*\n)+KeyError: 'late'\n-+ run this alone",
        report,
    )
    assert "- collectives -" not in report


def properties(run: WholeRun, folder: Path, name: str) -> dict[str, str]:
    (case,) = (case for case in ElementTree.parse(folder / JUNIT).iter("testcase") if case.get("name") == name)
    return {found.attrib["name"]: found.attrib["value"] for found in case.iter("property")}


def test_a_failure_is_told_to_machines_too(failures: WholeRun, folder: Path) -> None:
    told = properties(failures, folder, "test_another_exception[2ranks]")
    place = told.pop("gpuperf_place")
    assert re.fullmatch(r"\S+test_failures\.py:\d+ in program", place)
    head, other = told.pop("gpuperf_ranks").splitlines()
    assert head == "OfTheTest: first"
    assert re.fullmatch(r"rank 0 raised KeyError: 'late', at \S+test_failures\.py:\d+ in program", other)
    assert told == {"gpuperf_rank": "1", "gpuperf_cause": "test_failures.OfTheTest: first"}


def test_a_failure_of_no_single_rank_has_no_rank_and_no_place(failures: WholeRun, folder: Path) -> None:
    told = properties(failures, folder, "test_other_collectives[2ranks]")
    assert told.pop("gpuperf_ranks").splitlines()[-1].startswith("the ranks part at collective 2 of the program: ")
    assert told == {"gpuperf_cause": "timeout"}


def test_a_group_of_exceptions_is_told_like_any_other(failures: WholeRun, folder: Path) -> None:
    report = failures.report("test_exception_group[2ranks]")
    assert "OfTheTest: another" in report
    assert "rank 0 returned" in report
    assert report.endswith('pytest "test_failures.py::test_exception_group[2ranks]"')
    told = properties(failures, folder, "test_exception_group[2ranks]")
    assert (told["gpuperf_rank"], told["gpuperf_cause"]) == ("1", "ExceptionGroup: several (2 sub-exceptions)")


def test_a_death_has_its_rank_and_a_good_test_nothing(failures: WholeRun, folder: Path) -> None:
    told = properties(failures, folder, "test_death_in_a_collective[2ranks]")
    assert (told["gpuperf_rank"], told["gpuperf_cause"]) == ("1", "was killed by SIGKILL")
    assert "gpuperf_place" not in told
    assert properties(failures, folder, "test_after_a_death[2ranks]") == {}
