"""What ranks print, in a whole run of pytest: under its rank and test, once, of much the beginning and the end."""

import re

import pytest

from tests.whole_run import WholeRun, run_pytest, write

PRINTS = """
import os, sys, threading
import pytest

pytestmark = pytest.mark.ranks(2)

def test_prints(ranks):
    def program(ctx):
        print("said by", ctx.rank)
        print("warned by", ctx.rank, file=sys.stderr)
    ranks.run(program)
    assert False, "to see the output"

class Last:
    def __del__(self):
        print("said while it settled")

def test_prints_late(ranks, tmp_path):
    for name in ("go.0", "go.1", "gone.0", "gone.1"):
        os.mkfifo(tmp_path / name)  # whoever opens it waits for the other end

    def program(ctx):
        last = Last()
        last.itself = last  # found once garbage is looked for, which is when the test has ended

        def late():
            (tmp_path / f"go.{ctx.rank}").read_text()
            print("said after the run")
            (tmp_path / f"gone.{ctx.rank}").write_text("")

        threading.Thread(target=late).start()
    ranks.run(program)
    for rank in range(2):
        (tmp_path / f"go.{rank}").write_text("")
    for rank in range(2):
        (tmp_path / f"gone.{rank}").read_text()

def test_prints_after_that(ranks):
    ranks.run(lambda ctx: print("quiet"))

def test_prints_much(ranks):
    for part in range(3):
        ranks.run(lambda ctx: print("said", "x" * 5_000_000, part))
    assert False, "to see the output"
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run of the tests above."""
    return run_pytest(write(tmp_path_factory.mktemp("printed"), {"test_prints.py": PRINTS, "pytest.ini": "[pytest]\n"}))


def test_what_a_rank_printed_stands_under_its_rank(printed: WholeRun) -> None:
    report = printed.report("test_prints[2ranks]")
    for rank in (0, 1):
        for stream, text in [("stdout", "said"), ("stderr", "warned")]:
            assert re.search(rf"- Captured {stream} of rank {rank} of 2 call -+\n{text} by {rank}\n", report + "\n")


def test_what_a_rank_printed_in_the_end_stands_under_its_test(printed: WholeRun) -> None:
    report = printed.report("test_prints_late[2ranks]")
    assert report.count("said after the run") == report.count("said while it settled") == 2
    assert "Captured stdout of rank 0 of 2 teardown" in report
    next_one = printed.report("test_prints_after_that[2ranks]")
    assert "quiet" in next_one
    assert "said" not in next_one


def test_of_much_that_a_rank_printed_beginning_and_end_are_shown(printed: WholeRun) -> None:
    report = printed.report("test_prints_much[2ranks]")
    for rank in (0, 1):
        found = re.search(
            rf"- Captured stdout of rank {rank} of 2 call -+\nsaid x+\n"
            r"\[gpuperf: 1493\d{4} bytes are left out here; pytest -s shows all that ranks print\]\nx+ 2$",
            report,
            re.MULTILINE,
        )
        assert found is not None


def test_what_a_rank_printed_is_shown_once(printed: WholeRun) -> None:
    assert printed.report("test_prints[2ranks]").count("said by 1") == 1
