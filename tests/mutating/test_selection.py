"""``--mutate`` with xdist's workers, and with tests that were selected."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutating.test_mutating import ALSO, HEAD, STRONG, WEAK, line, sources
from tests.whole_run import environment, run_pytest, write


def test_a_fault_that_a_test_of_any_worker_notices_is_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path, sources(ALSO, STRONG, WEAK))
    options = ["--mutate", "--mutate-html=page.html", "--gpuperf-json=results.json", "--mutate-fail-under=60"]
    run = run_pytest(folder, "-n2", *options)
    lines = run.section("communication coverage")
    assert lines[0].startswith("7 of 12 faults noticed (58 %), at 2 call sites, in ")
    assert lines[1].startswith(
        f"programs.py:{line('dist.all_gather(parts, x)')} all_gather: no test noticed 5 of 5 faults"
    )
    assert "FAILED --mutate-fail-under=60: the tests notice 58.3 %" in lines
    assert run.result.ret == pytest.ExitCode.TESTS_FAILED
    form = json.loads((folder / "results.json").read_text())["features"]["mutating"]
    (summed,) = [site for site in form["sites"] if site["operation"] == "all_reduce"]
    names = {test.partition("::")[2] for test in summed["tests"]}
    assert names == {"test_strong[2ranks]", "test_strong_shape[2ranks]"}
    assert "7 of 12 faults noticed" in (folder / "page.html").read_text()


def test_tests_that_a_fault_fails_are_no_last_failures(tmp_path: Path) -> None:
    wrong = STRONG.replace("test_strong", "test_wrong").replace("9.003", "9.004")
    folder = write(tmp_path, sources(STRONG, WEAK, wrong))

    def last_failed(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"gpuperf_leases={folder / '.leases'}", *options]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200)
        assert "faults noticed" in done.stdout, done.stdout + done.stderr
        failed = json.loads((folder / ".pytest_cache/v/cache/lastfailed").read_text())
        return [name.partition("::")[2] for name in failed]

    assert last_failed("--mutate") == ["test_wrong[2ranks]"]
    (folder / "test_it.py").write_text(HEAD + STRONG + WEAK + wrong.replace("9.004", "9.003"))
    assert last_failed("--mutate", "--lf") == []


def test_the_failures_of_faults_have_no_text(tmp_path: Path) -> None:
    hook = """
import pathlib
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        with pathlib.Path("failures.txt").open("a") as file:
            print(item.name, len(report.longreprtext), file=file)
    return report
"""
    wrong = STRONG.replace("test_strong", "test_wrong").replace("9.003", "9.004")
    folder = write(tmp_path, {**sources(STRONG, wrong), "conftest.py": hook})
    run_pytest(folder, "--mutate")
    lengths = dict(one.split() for one in (folder / "failures.txt").read_text().splitlines())
    assert int(lengths.pop("test_wrong[2ranks]")) > 0
    assert len(lengths) == 7
    assert set(lengths.values()) == {"0"}
