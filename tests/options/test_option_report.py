"""``--report``: a page of the run that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.blueprint import NEUTRAL
from tests.whole_run import run_pytest, write

TESTS = """
import pytest
import torch.distributed as dist
from pytest_gpuperf import Matrix

@pytest.mark.ranks(2, timeout=2)
def test_hangs(ranks):
    def program(ctx):
        if ctx.rank == 0:
            dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(2)
def test_passes(ranks):
    ranks.run(lambda ctx: ctx.rank)

@pytest.mark.ranks(2, device="cuda")
def test_skips(ranks):
    pass

def program(ctx):
    return lambda: None

@pytest.mark.ranks(2)
def test_speed(perf):
    perf.check(time=perf.measure(program).time)
    perf.show(pairs=Matrix.of([[None, 1.0], [2.0, None]], "s", "lower"))
    with pytest.raises(ValueError, match="matrix 'pairs' was used already in this test: give each matrix its own name"):
        perf.show(pairs=Matrix.of([[None, 1.0], [2.0, None]], "s", "lower"))
"""


def test_the_page_has_what_became_of_every_test_of_all_workers(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    run = run_pytest(tmp_path, "--smoke", "--report=out/page.html", "-n2")
    run.result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert f"gpuperf: page written to {tmp_path / 'out' / 'page.html'}" in run.result.outlines
    text = (tmp_path / "out" / "page.html").read_text()
    assert "4 tests on ranks: 1 failed, 2 passed, 1 skipped." in text
    assert "rank 0 is in barrier" in text  # the roll call
    assert "run this alone" in text
    assert "test_it.py::test_skips[2ranks]" in text
    assert 'data-outcome="unjudged"' in text


def test_a_page_that_cannot_be_written_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    (pytester.path / "file").touch()
    result = pytester.runpytest_inprocess("--report=file/page.html")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["gpuperf: page not written to '*page.html': File exists: name another file with --report"]
    )


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ("out/r.json", "results"),
        ("link/../out/r.json", "results"),
        ("link/r.json", "results"),
        ("page.html", "results"),
        ("out/r.json.journal", "journal of the results"),
    ],
)
def test_a_page_in_the_place_of_the_results_is_refused(pytester: pytest.Pytester, page: str, what: str) -> None:
    pytester.makepyfile("def test_it(): raise SystemExit")
    (pytester.path / "out").mkdir()
    (pytester.path / "link").symlink_to("out")
    (pytester.path / "page.html").symlink_to("out/r.json")
    result = pytester.runpytest_inprocess("--gpuperf-json=out/r.json", f"--report={page}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    found = f"--report: got {page!r}, which is the {what} of --gpuperf-json, expected another file"
    assert found in result.stderr.str()
    assert not list((pytester.path / "out").iterdir())


def test_an_arm_of_a_race_writes_none() -> None:
    assert NEUTRAL["gpuperf_report"] is None
