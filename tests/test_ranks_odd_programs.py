"""Programs and tests that do with their processes what nobody expects, in whole runs of pytest."""

import re
from pathlib import Path

import pytest

from tests.whole_run import WholeRun, run_pytest, write

PROGRAMS = """
import os, signal, subprocess, sys, threading, time, unittest
import pytest
from hypothesis import assume, given, settings, strategies as st

pytestmark = pytest.mark.ranks(2, timeout=20)

def wait_while(condition):
    while condition():
        time.sleep(0.01)  # no event tells of another process's progress

def test_a_forked_child_comes_out_of_the_program(ranks):
    def program(ctx):
        if ctx.rank == 1:
            child = os.fork()
            if child == 0:
                return "the child"
            os.waitpid(child, 0)
            raise ValueError("of the rank itself")
        return "rank 0"
    ranks.run(program)

def test_after_the_child(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_one_rank_skips_by_a_class_of_its_own(ranks):
    def program(ctx):
        class Skips(unittest.SkipTest):
            pass
        ctx.barrier()
        if ctx.rank == 0:
            raise Skips("not here")
        time.sleep(0.1)  # after rank 0: no event tells that another rank has raised
        raise ValueError("a real failure")
    ranks.run(program)

@settings(max_examples=20, database=None, derandomize=True)
@given(x=st.integers(0, 3))
def test_one_rank_rejects_what_another_fails_by(ranks, x):
    def program(ctx):
        ctx.barrier()
        if ctx.rank == 0:
            assume(x != 2)
        elif x == 2:
            time.sleep(0.1)  # after rank 0, as above
            assert x != 2
    ranks.run(program)

@settings(max_examples=20, database=None, derandomize=True)
@given(x=st.integers(0, 3))
def test_all_ranks_reject_the_same(ranks, x):
    def program(ctx):
        assume(x != 2)
        return x
    assert ranks.run(program) != [2, 2]

def test_a_rank_dies_after_its_last_run(ranks):
    def program(ctx):
        if ctx.rank == 1:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSEGV)).start()
        return os.getpid()
    pid = ranks.run(program)[1]
    wait_while(lambda: os.path.exists(f"/proc/{pid}"))

def test_after_the_death(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_a_rank_is_about_to_die(ranks):
    pid = ranks.run(lambda ctx: os.getpid())[1]
    (PATH / "pid").write_text(str(pid))
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -KILL {pid}"])

@pytest.fixture
def dead():
    pid = (PATH / "pid").read_text()
    wait_while(lambda: os.path.exists(f"/proc/{pid}"))

def test_after_a_death_between_tests(dead, ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def test_a_child_keeps_what_a_dead_rank_held(ranks):
    def program(ctx):
        if ctx.rank == 1:
            if os.fork() == 0:
                os.setsid()
                time.sleep(30)  # nobody ends it: it has left the rank's process group
                os._exit(0)
            os._exit(7)
    began = time.monotonic()
    try:
        ranks.run(program)
    finally:
        assert time.monotonic() - began < 10  # of 20

def test_an_exception_in_a_thread(ranks):
    def program(ctx):
        def target():
            raise ValueError("nobody waits for me")
        thread = threading.Thread(target=target, name="helper")
        thread.start()
        thread.join()
    ranks.run(program)

def test_standard_output_is_cut(ranks):
    def program(ctx):
        print("before " * 100, flush=True)
    ranks.run(program)
    def cuts(ctx):
        with open("/dev/stdout", "w") as stdout:
            stdout.write("after\\n")
        print("later")
    ranks.run(cuts)

def test_after_the_cut(ranks):
    ranks.run(lambda ctx: print("still there"))

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def test_an_exception_without_a_text(ranks):
    def program(ctx):
        raise Odd
    ranks.run(program)

def test_the_fixture_in_the_program(ranks):
    ranks.run(lambda ctx: ranks.world_size)

def test_two_threads_at_once(ranks):
    errors = []
    running, tried = PATH / "running", PATH / "tried"
    def other():
        wait_while(lambda: not running.exists())
        try:
            ranks.run(lambda ctx: None)
        except RuntimeError as error:
            errors.append(str(error))
        tried.touch()
    def program(ctx):
        running.touch()
        wait_while(lambda: not tried.exists())
    thread = threading.Thread(target=other)
    thread.start()
    ranks.run(program)
    thread.join()
    assert errors == ["ranks do one run after another, and one of another thread has not ended"]

def test_backends_of_torch(ranks):
    import torch
    def program(ctx):
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.backends.cudnn.flags(enabled=False):
            return torch.backends.cudnn.enabled
    assert ranks.run(program) == [False, False]

@pytest.fixture
def prepared(ranks):
    return ranks.backend, ranks.run(lambda ctx: ctx.backend)

def test_a_fixture_runs_a_program(prepared):
    assert prepared == ("gloo", ["gloo", "gloo"])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = tmp_path_factory.mktemp("odd_programs")
    head = f"from pathlib import Path\nPATH = Path({str(folder)!r})\n"
    return run_pytest(write(folder, {"test_odd.py": head + PROGRAMS}), timeout=200)


def warned(run: WholeRun, name: str) -> list[str]:
    return [line.strip() for line in run.result.outlines if f"LeakWarning: test_odd.py::{name}[2ranks]" in line]


def test_only_the_rank_itself_answers_for_it(run: WholeRun) -> None:
    name = "test_a_forked_child_comes_out_of_the_program[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert "ValueError: of the rank itself" in run.report(name)
    assert "which the program forked, came out of the program: it ends here, as no rank" in run.report(name)
    assert run.outcomes["test_after_the_child[2ranks]"] == "PASSED"


def test_a_skip_of_one_rank_is_known_by_its_base_class(run: WholeRun) -> None:
    name = "test_one_rank_skips_by_a_class_of_its_own[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert "rank 0 of 2 (gloo) skipped in" in run.report(name)
    assert "rank 1 raised ValueError: a real failure" in run.report(name)


def test_an_example_is_rejected_by_all_ranks_or_fails(run: WholeRun) -> None:
    name = "test_one_rank_rejects_what_another_fails_by[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert "rank 0 of 2 (gloo) rejected the example in" in run.report(name)
    assert "rank 1 raised AssertionError: assert 2 != 2" in run.report(name)
    assert run.outcomes["test_all_ranks_reject_the_same[2ranks]"] == "PASSED"


def test_a_death_after_the_last_run_fails_the_test(run: WholeRun) -> None:
    name = "test_a_rank_dies_after_its_last_run[2ranks]"
    assert run.outcomes[name] == "ERROR"
    report = run.report(name)
    assert "rank 1 of 2 (gloo) in settling after the test was killed by SIGSEGV" in report
    assert 'pytest "test_odd.py::test_a_rank_dies_after_its_last_run[2ranks]"' in report
    assert run.outcomes["test_after_the_death[2ranks]"] == "PASSED"


def test_a_death_between_two_tests_is_told(run: WholeRun) -> None:
    assert run.outcomes["test_after_a_death_between_tests[2ranks]"] == "PASSED"
    (line,) = [line for line in run.result.outlines if "after another test had ended" in line]
    assert "before test_odd.py::test_after_a_death_between_tests[2ranks] began" in line
    assert "rank 1 of 2 (gloo) in opening the process group was killed by SIGKILL" in line


def test_a_death_is_seen_though_a_child_of_the_rank_lives(run: WholeRun) -> None:
    name = "test_a_child_keeps_what_a_dead_rank_held[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert "rank 1 of 2 (gloo) in test_odd:" in run.report(name)
    assert "exited with code 7 before it returned" in run.report(name)


def test_an_exception_in_a_thread_of_a_rank_is_a_warning(run: WholeRun) -> None:
    assert run.outcomes["test_an_exception_in_a_thread[2ranks]"] == "PASSED"
    (line,) = warned(run, "test_an_exception_in_a_thread")
    assert line.endswith("ranks 0, 1: an exception in thread helper: ValueError: nobody waits for me")


def test_output_that_was_cut_does_no_harm(run: WholeRun) -> None:
    assert run.outcomes["test_standard_output_is_cut[2ranks]"] == "PASSED"
    assert "before before" in run.report("test_standard_output_is_cut[2ranks]")
    assert run.report("test_standard_output_is_cut[2ranks]").splitlines()[-2:] == ["after", "later"]
    assert run.outcomes["test_after_the_cut[2ranks]"] == "PASSED"
    assert "still there" in run.report("test_after_the_cut[2ranks]")


def test_an_exception_without_a_text_is_told_by_its_type(run: WholeRun) -> None:
    name = "test_an_exception_without_a_text[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert re.search(r"raised on rank \d of 2 \(gloo\) in test_odd:", run.report(name))
    assert "exited with code" not in run.report(name)


def test_the_fixture_does_not_travel(run: WholeRun) -> None:
    name = "test_the_fixture_in_the_program[2ranks]"
    assert run.outcomes[name] == "FAILED"
    assert "TypeError: ranks belongs to the pytest process and cannot be sent to a rank" in run.report(name)


@pytest.mark.parametrize(
    "name", ["test_two_threads_at_once", "test_backends_of_torch", "test_a_fixture_runs_a_program"]
)
def test_what_works(run: WholeRun, name: str) -> None:
    assert run.outcomes[f"{name}[2ranks]"] == "PASSED", run.text[-3000:]


def test_a_folder_that_the_tests_removed_starts_ranks(tmp_path: Path) -> None:
    run = run_pytest(
        write(
            tmp_path,
            {
                "test_gone.py": """
import os, shutil, tempfile
import pytest

@pytest.mark.ranks(2)
def test_it(ranks):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)
    try:
        assert ranks.resized(1).run(lambda ctx: ctx.rank) == [0]
    finally:
        os.chdir("/")
"""
            },
        )
    )
    assert run.outcomes == {"test_it[2ranks]": "PASSED"}


def test_a_module_of_the_tests_is_not_taken_for_pythons(tmp_path: Path) -> None:
    files = {
        "pickletools.py": "raise ImportError('not what torch wants')",
        "test_it.py": """
import pytest

@pytest.mark.ranks(2)
def test_it(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]
""",
    }
    assert run_pytest(write(tmp_path, files)).outcomes == {"test_it[2ranks]": "PASSED"}
