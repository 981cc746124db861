"""Hypothesis and ranks: hangs that shrink, examples that are replayed and reproduced, in whole runs of pytest."""

import re
from pathlib import Path

import pytest

from tests.whole_run import WholeRun, run_pytest, write

TESTS = """
import threading
from pathlib import Path
import pytest
from hypothesis import given, reproduce_failure, settings, strategies as st

pytestmark = pytest.mark.ranks(2)
SEEN = Path(__file__).with_name("seen")

def hang(ctx, n):
    if n >= 2 and ctx.rank == 1:
        threading.Event().wait()

@settings(deadline=None, database=None)
@given(n=st.integers(0, 3))
def test_hangs(ranks, n):
    ranks.run(hang, n)

def test_after_the_hang(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

def fail(ctx, n):
    assert n < 1234

@pytest.mark.ranks(2, timeout=120)  # no other failure than its own, however slow the machine
@settings(deadline=None, print_blob=True)
@given(n=st.integers(0, 10**6))
def test_fails(ranks, n):
    with SEEN.open("a") as file:
        print(n, file=file)
    ranks.run(fail, n)

@settings(deadline=None, database=None)
@given(n=st.integers(0, 10))
def test_branches(ranks, n):
    if n > 6:
        n = -1
    ranks.run(refuse, n)

def refuse(ctx, n):
    assert n >= 0
"""
INI = "[pytest]\ngpuperf_example_timeout = 3\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hypothesis"), {"test_it.py": TESTS, "pytest.ini": INI})


@pytest.fixture(scope="module")
def first(folder: Path) -> WholeRun:
    return run_pytest(folder)


@pytest.fixture(scope="module")
def second(folder: Path, first: WholeRun) -> tuple[WholeRun, list[int]]:
    """Without the test that hangs; and what the other was given."""
    (folder / "seen").unlink()
    run = run_pytest(folder, "-k", "fails")
    return run, [int(line) for line in (folder / "seen").read_text().split()]


@pytest.fixture(scope="module")
def reproduced(first: WholeRun, folder: Path, second: object) -> tuple[WholeRun, list[int]]:
    """With the line that the first run said to add."""
    (line,) = re.findall(r"@reproduce_failure\(.*?\)(?= as a decorator)", first.text)
    (folder / "test_it.py").write_text(TESTS.replace("def test_fails", f"{line}\ndef test_fails"))
    (folder / "seen").unlink()
    run = run_pytest(folder, "-k", "fails")
    return run, [int(line) for line in (folder / "seen").read_text().split()]


def test_a_hang_is_shrunk_to_the_smallest_example(first: WholeRun) -> None:
    assert first.outcomes["test_hangs[2ranks]"] == "FAILED"
    report = first.report("test_hangs[2ranks]")
    assert re.search(r"^E +n=2,?", report, re.MULTILINE)
    assert re.search(r"RankTimeout: rank 1 of 2 \(gloo\) did not return from test_it:hang within 3 s", report)
    assert re.search(r"called at \S+test_it\.py:\d+ in hang", report)


def test_lines_of_the_plugin_explain_no_example(first: WholeRun) -> None:
    report = first.report("test_fails[2ranks]")
    assert re.search(r"^E +n=1234,?", report, re.MULTILINE)
    assert "Explanation:" not in report


def test_an_explanation_of_the_tests_own_lines_stays(first: WholeRun) -> None:
    report = first.report("test_branches[2ranks]")
    (line,) = re.findall(r"Explanation:\n.*\n.*test_it\.py:(\d+)", report)
    assert TESTS.splitlines()[int(line) - 1].strip() == "n = -1"


def test_the_test_after_a_hang_is_healthy(first: WholeRun) -> None:
    assert first.outcomes["test_after_the_hang[2ranks]"] == "PASSED"


def test_the_second_run_begins_with_the_example_that_failed(second: tuple[WholeRun, list[int]]) -> None:
    run, seen = second
    assert run.outcomes == {"test_fails[2ranks]": "FAILED"}
    assert seen[0] == 1234


def test_reproduce_failure_gives_that_example_alone(reproduced: tuple[WholeRun, list[int]]) -> None:
    run, seen = reproduced
    assert run.outcomes == {"test_fails[2ranks]": "FAILED"}
    assert "assert 1234 < 1234" in run.report("test_fails[2ranks]")
    assert set(seen) == {1234}
