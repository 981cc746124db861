"""The ranks fixture in whole runs of pytest: many user tests in one run, since each run loads torch."""

import re
import signal

import pytest

from tests.fake_gpus import without_ranks
from tests.whole_run import WholeRun, run_pytest, write

DESIGN = '''
"""The examples of the design, as they stand there."""
import pytest, torch, torch.distributed as dist
from hypothesis import given, settings, strategies as st

@pytest.mark.ranks(2, 4)
def test_all_reduce_sums(ranks):
    def program(ctx):
        x = torch.full((4,), float(ctx.rank), device=ctx.device)
        dist.all_reduce(x)
        assert x[0] == sum(range(ctx.world_size))
        return x
    first, *rest = ranks.run(program)
    assert all(torch.equal(first, x) for x in rest)

def tensors(*shape):
    return st.integers(0, 1000).map(lambda seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)))

def column_parallel_linear(ctx, x, weight):
    return x @ weight.chunk(ctx.world_size)[ctx.rank].T

@pytest.mark.ranks(2)
@settings(deadline=None)
@given(x=tensors(3, 5), weight=tensors(4, 5))
def test_column_parallel_linear(ranks, x, weight):
    got = ranks.run(column_parallel_linear, x=x, weight=weight)
    torch.testing.assert_close(torch.cat(got, dim=-1), x @ weight.T)
'''

FIXTURES = """
import os
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.ranks(2)

@pytest.fixture(scope="module")
def offset():
    return {"by": 10}

class TestClass:
    factor = 3

    def test_method(self, ranks):
        assert ranks.run(lambda ctx: ctx.rank * self.factor) == [0, 3]

class TestGiven:
    factor = 3

    def test_method_beside_given(self, ranks):
        assert ranks.run(lambda ctx: ctx.rank * self.factor) == [0, 3]

    @settings(deadline=None, max_examples=5)
    @given(number=st.integers())
    def test_given_in_a_class(self, ranks, number):
        assert ranks.run(lambda ctx, n: n + ctx.rank, number) == [number, number + 1]

@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(ranks, number, offset):
    assert ranks.run(lambda ctx, n, *, by: n + by + ctx.rank, number, **offset) == [number + 10, number + 11]

def test_tmp_path(ranks, tmp_path):
    def program(ctx):
        (tmp_path / str(ctx.rank)).write_text("here")
    ranks.run(program)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

def test_monkeypatched_environment(ranks, monkeypatch):
    monkeypatch.setenv("SET_BY_THE_TEST", "yes")
    assert ranks.run(lambda ctx: os.environ.get("SET_BY_THE_TEST")) == ["yes", "yes"]

def test_order_and_world(ranks):
    assert repr(ranks) == "Ranks(world_size=2)"
    assert (ranks.world_size, ranks.backend) == (2, "gloo")
    assert ranks.run(lambda ctx: (ctx.rank, ctx.world_size)) == [(0, 2), (1, 2)]

def test_resized(ranks):
    assert ranks.resized(1).run(lambda ctx: ctx.world_size) == [1]
    assert ranks.resized(2).run(lambda ctx: ctx.world_size) == [2, 2]
    for wrong in (0, 3, True, 1.0, "1"):
        with pytest.raises(ValueError, match=f"a world of 2 ranks has room for 1 to 2, got {wrong!r}"):
            ranks.resized(wrong)

def test_seeds_differ_by_rank(ranks):
    first, second = ranks.run(lambda ctx: ctx.seed)
    assert second == first + 1
    assert ranks.run(lambda ctx: ctx.seed) == [first, second]

@pytest.mark.parametrize("n", [1, 2])
def test_seed_of_a_test(ranks, n):
    print("seed", ranks.run(lambda ctx: ctx.seed)[0])
"""

FAILURES = '''
import os, signal, sys, threading, time
import pytest, torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st

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

def test_prints(ranks):
    def program(ctx):
        print("said by", ctx.rank)
        print("warned by", ctx.rank, file=sys.stderr)
    ranks.run(program)
    assert False, "to see the output"

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
        from torch.distributed.tensor import DTensor
        return DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (ctx.world_size,)))
    ranks.run(program)

def test_program_that_cannot_be_called(ranks):
    with pytest.raises(TypeError, match="^program must be a function that takes a context, got 42 of type int$"):
        ranks.run(42)

def test_argument_that_cannot_be_pickled(ranks):
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        ranks.run(lambda ctx, lock: None, threading.Lock())

def test_sys_exit(ranks):
    ranks.run(lambda ctx: sys.exit(0))

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

HELPERS = {
    "beside/helper.py": """
class Shape:
    side = 3

def area(ctx):
    assert ctx.world_size == 2
    return Shape.side ** 2
""",
    "beside/test_beside.py": """
import pytest
import helper

@pytest.mark.ranks(2)
def test_helper(ranks):
    assert ranks.run(helper.area) == [9, 9]
    first, _ = ranks.run(lambda ctx: helper.Shape())
    assert type(first) is helper.Shape
""",
    "package/__init__.py": "",
    "package/far.py": "def far(ctx):\n    return f'far {ctx.rank}'\n",
    "package/subject/__init__.py": "",
    "package/subject/near.py": "from . import words\ndef near(ctx):\n    return f'{words.NEAR} {ctx.rank}'\n",
    "package/subject/words.py": "NEAR = 'near'\n",
    "package/subject/test_relative.py": """
import pytest
from .near import near
from ..far import far

@pytest.mark.ranks(2)
def test_near(ranks):
    assert ranks.run(near) == ["near 0", "near 1"]

@pytest.mark.ranks(2)
def test_far(ranks):
    assert ranks.run(far) == ["far 0", "far 1"]
""",
}


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    sources = {"test_design.py": DESIGN, "test_fixtures.py": FIXTURES, "pytest.ini": "[pytest]\n", **HELPERS}
    return run_pytest(write(tmp_path_factory.mktemp("fixtures"), sources), "--import-mode=prepend")


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """In importlib mode, in which no rank could import the test module."""
    # That mode puts no folder on sys.path: a helper is imported by its bare name where pythonpath says so.
    ini = "[pytest]\ngpuperf_timeout = 3\npythonpath = beside\n"
    sources = {"test_failures.py": FAILURES, "pytest.ini": ini, **HELPERS}
    return run_pytest(write(tmp_path_factory.mktemp("failures"), sources), "--import-mode=importlib")


def test_the_examples_of_the_design_pass(fixtures: WholeRun) -> None:
    tests = ["test_all_reduce_sums[2ranks]", "test_all_reduce_sums[4ranks]", "test_column_parallel_linear[2ranks]"]
    assert [fixtures.outcomes[test] for test in tests] == ["PASSED"] * 3


@pytest.mark.parametrize(
    "name",
    [
        "TestClass::test_method[2ranks]",
        "TestGiven::test_method_beside_given[2ranks]",
        "TestGiven::test_given_in_a_class[2ranks]",
        "test_parametrized[2ranks-1]",
        "test_parametrized[2ranks-2]",
        "test_tmp_path[2ranks]",
        "test_monkeypatched_environment[2ranks]",
        "test_order_and_world[2ranks]",
        "test_resized[2ranks]",
        "test_seeds_differ_by_rank[2ranks]",
    ],
)
def test_ranks_go_with_classes_parameters_and_other_fixtures(fixtures: WholeRun, name: str) -> None:
    assert fixtures.outcomes[name] == "PASSED", fixtures.report(name)


def test_each_test_has_its_own_seed(fixtures: WholeRun) -> None:
    assert len(set(re.findall(r"^seed (\d+)$", fixtures.text, re.MULTILINE))) == 2


@pytest.mark.parametrize("name", ["test_helper[2ranks]", "test_near[2ranks]", "test_far[2ranks]"])
@pytest.mark.parametrize("mode", ["fixtures", "failures"], ids=["prepend", "importlib"])
def test_helpers_beside_the_test_and_in_its_package_are_found(
    request: pytest.FixtureRequest, mode: str, name: str
) -> None:
    run: WholeRun = request.getfixturevalue(mode)
    assert run.outcomes[name] == "PASSED", run.report(name)


def test_no_warning_is_raised(fixtures: WholeRun) -> None:
    assert "warnings summary" not in fixtures.text


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
    assert re.search("rank [01] raised test_failures.OfTheTest: deep", report)


def test_exceptions_keep_their_types(failures: WholeRun) -> None:
    assert failures.outcomes["test_exception_types_are_kept[2ranks]"] == "PASSED"


def test_what_a_rank_printed_stands_under_its_rank(failures: WholeRun) -> None:
    report = failures.report("test_prints[2ranks]")
    for rank in (0, 1):
        for stream, text in [("stdout", "said"), ("stderr", "warned")]:
            assert re.search(rf"- Captured {stream} of rank {rank} of 2 call -+\n{text} by {rank}\n", report + "\n")


def test_a_timeout_of_the_marker_names_the_rank_and_where_it_was(failures: WholeRun) -> None:
    report = failures.report("test_marked_timeout[2ranks]")
    assert "rank 1 of 2 (gloo) did not return from" in report
    assert "within 0.5 s; give it longer with @pytest.mark.ranks(..., timeout=SECONDS)" in report
    assert "rank 0 returned" in report
    assert "in program" in report.partition("rank 1 was here:")[2]


def test_the_default_timeout_is_the_ini_keys(failures: WholeRun) -> None:
    report = failures.report("test_ini_timeout[2ranks]")
    assert "ranks 0, 1 of 2 (gloo) did not return from" in report
    assert "within 3 s;" in report


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("test_death_in_a_collective[2ranks]", f"was killed by {signal.SIGKILL.name}"),
        ("test_death_while_others_return[2ranks]", "exited with code 3 before the program returned"),
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


def test_ranks_kept_beyond_their_test_are_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(
        test_keeps="import pytest\nKEPT = []\n@pytest.mark.ranks(2)\ndef test_keeps(ranks): KEPT.append(ranks)"
    )
    pytester.makeconftest(
        """
        import sys
        import pytest
        def pytest_sessionfinish():
            with pytest.raises(RuntimeError, match="^ranks can be used while a test runs, and none does$"):
                sys.modules["test_keeps"].KEPT[0].run(lambda ctx: None)
            print("refused")
        """
    )
    result = pytester.runpytest_inprocess()
    assert "refused" in result.stdout.str()
