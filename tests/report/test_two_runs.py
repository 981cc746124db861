"""Two runs with one file of results: the second one is refused, and the first one's journal stays whole."""

import errno
import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.whole_run import environment, run_pytest, write

TESTS = """
import time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def test_first(): ...

def test_holds_on():
    if not (HERE / "begun").exists():
        (HERE / "begun").touch()
        while not (HERE / "go_on").exists():
            time.sleep(0.02)
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A run in the middle of its second test."""
    write(tmp_path, {"test_it.py": TESTS})
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--gpuperf-json=results.json"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_second_run_is_refused_and_the_journal_of_the_first_stays(
    first: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    journal = tmp_path / "results.json.journal"
    before = journal.read_bytes()
    second = run_pytest(tmp_path, "--gpuperf-json=results.json")
    assert second.result.ret == pytest.ExitCode.USAGE_ERROR, second.text
    assert (
        f"ERROR: --gpuperf-json: got '{tmp_path}/results.json', which another run is writing, expected a file of this "
        "run alone: name another file, or wait until that run has ended, with all processes that its tests forked"
    ) in second.text
    assert journal.read_bytes() == before
    (tmp_path / "go_on").touch()
    assert "2 passed" in first.communicate(timeout=60)[0]
    assert not journal.exists()
    third = run_pytest(tmp_path, "--gpuperf-json=results.json")
    assert third.result.ret == 0, third.text


def test_the_journal_of_a_killed_run_makes_room_for_the_next(first: "subprocess.Popen[str]", tmp_path: Path) -> None:
    first.kill()
    first.wait()
    assert (tmp_path / "results.json.journal").exists()
    assert run_pytest(tmp_path, "--gpuperf-json=results.json").result.ret == 0


def test_a_file_system_without_locks_is_no_hindrance(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    pytester.makepyfile("def test_it(): ...")
    result = pytester.runpytest_inprocess("--gpuperf-json=results.json")
    result.assert_outcomes(passed=1)
    assert "could not be written" not in result.stdout.str()
