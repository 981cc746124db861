"""Races from end to end: real repositories, real processes, real ranks on gloo; only the GPUs are made up."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.arms.checkouts import commit, git
from tests.whole_run import environment, run_pytest

# What a step sleeps is in a module that the tests import, as code is. A variable slows every machine at one of them.
PROGRAMS = """
import os, time

SECONDS = 0.005

def sleeping(ctx):
    return lambda: time.sleep(SECONDS)

def slowed_by_the_machine(ctx):
    seconds = 0.005 * float(os.environ.get("NCCL_SLOWER", 1))
    return lambda: time.sleep(seconds)
"""
TESTS = """
import pytest
import programs

@pytest.mark.ranks(1)
def test_sleep(perf):
    perf.check(time=perf.configured(samples=10, budget=0.1).measure(programs.sleeping).time)
"""
OTHER = """
@pytest.mark.ranks(1)
def test_machine(perf):
    perf.check(time=perf.configured(samples=10, budget=0.1).measure(programs.slowed_by_the_machine).time)
"""
ON_GPUS = """
import pytest
from tests import fake_gpus
fake_gpus.install(pytest.MonkeyPatch(), visible=1)
"""
ONCE = """
import pathlib, pytest, time

SLOW = pathlib.Path(__file__).parent / "slow"

def sleeping(ctx, *, seconds):
    return lambda: time.sleep(seconds)

@pytest.fixture(scope="module")
def seconds():
    yield 0.04 if SLOW.exists() else 0.025  # so long that a busy host adds little
    SLOW.unlink(missing_ok=True)

@pytest.mark.ranks(1)
def test_once(perf, ranks, seconds):
    perf.check(time=perf.configured(samples=10, budget=0.1).measure(sleeping, seconds=seconds).time)
    pid, parent = ranks.run(lambda ctx: (__import__("os").getpid(), __import__("os").getppid()))[0]
    with (SLOW.parent / "launches").open("a") as log:
        print(__import__("os").getpid(), pid, parent, file=log)

def test_after(): ...
"""
IGNORED = "baselines\n.leases\n__pycache__\n"


def slower(factor: float) -> dict[str, str]:
    return {"programs.py": PROGRAMS.replace("SECONDS = 0.005", f"SECONDS = 0.005 * {factor}")}


def left(folder: Path) -> list[str]:
    """Worktrees beside the checkout itself."""
    return git(folder, "worktree", "list").splitlines()[1:]


def test_slower_code_is_accused_and_a_slower_environment_is_not_the_codes_fault(tmp_path: Path) -> None:
    files = {"conftest.py": ON_GPUS, "test_it.py": TESTS + OTHER, "pytest.ini": "[pytest]\n", ".gitignore": IGNORED}
    head = commit(tmp_path, {**files, **slower(1.0)})[:12]
    recording = run_pytest(tmp_path, "--gpus=1", "--update-baselines", "--reason=first")
    assert recording.result.ret == 0, recording.text

    (tmp_path / "programs.py").write_text(slower(1.6)["programs.py"])
    run = run_pytest(tmp_path, "--gpus=1", env={"NCCL_SLOWER": "1.6"})
    assert run.outcomes == {"test_sleep[1rank]": "FAILED", "test_machine[1rank]": "SKIPPED"}, run.text
    assert "worse than expected, launch 1 of at most 3 against the baseline" in run.text
    text = run.report("test_sleep[1rank]").strip()
    assert re.match(
        r"time \d\.\d\d\d ms: \d\d\.\d % slower than 5\.\d\d\d ms, because of the code \(programs.py\)\n", text
    ), text
    assert re.search(rf"  code \+\d\d\.\d % time \(.*\), against {head}\n  environment [+-]\d\.\d % time \(", text), (
        text
    )
    assert f'  bisect with: pytest "test_it.py::test_sleep[1rank]" --gpus 1 --bisect={head}' in text
    assert run.section("gpuperf")[-1].endswith("is as slow today; what differs: NCCL_SLOWER not set -> 1.6")
    assert left(tmp_path) == []


def test_a_launch_that_was_slow_once_is_cleared_in_the_same_process_by_fresh_ranks(tmp_path: Path) -> None:
    """In a worker of xdist, which tells less of it than a run without workers, and does the same."""
    commit(tmp_path, {"conftest.py": ON_GPUS, "test_it.py": ONCE, "pytest.ini": "[pytest]\n", ".gitignore": IGNORED})
    recording = run_pytest(tmp_path, "--gpus=1", "--update-baselines", "--reason=first", "-p", "no:xdist")
    assert recording.result.ret == 0, recording.text
    parents = [line.split()[2] for line in (tmp_path / "launches").read_text().splitlines()]
    assert len(set(parents)) == len(parents) >= 5  # of the ranks: each launch of a record is one of its own, too
    (tmp_path / "launches").unlink()

    (tmp_path / "slow").touch()
    run = run_pytest(tmp_path, "--gpus=1", "-n1")
    assert run.result.ret == 0, run.text
    launches = [line.split() for line in (tmp_path / "launches").read_text().splitlines()]
    assert len(launches) >= 2
    # The launch that clears it. Beside many other tests a later one was in another process, twice; why is not known.
    assert launches[0][0] == launches[1][0], launches
    assert len({rank for _, rank, _ in launches}) == len({parent for _, _, parent in launches}) == len(launches)
    assert left(tmp_path) == []


def test_without_a_record_or_gpus_the_slower_commit_is_found(tmp_path: Path) -> None:
    files = {"test_it.py": TESTS, "pytest.ini": "[pytest]\n", ".gitignore": IGNORED}
    good = commit(tmp_path, {**files, **slower(1.0)}, "As fast as it is")
    culprit = commit(tmp_path, slower(1.6), "Sleeps longer")
    head = commit(tmp_path, {"notes.txt": "2"}, "More notes")
    run = run_pytest(tmp_path, "--bisect=HEAD~2", "-p", "no:benchmark", "--report=page.html")
    assert run.outcomes == {"test_sleep[1rank]": "FAILED"}, run.text
    assert f"bisect: test_it.py::test_sleep[1rank] is slower since {culprit[:12]} 'Sleeps longer'" in run.section(
        "gpuperf"
    )
    assert left(tmp_path) == []
    page = (tmp_path / "page.html").read_text().partition("</style>")[2]
    assert f"{head[:12]}, against HEAD~2 ({good[:12]})" in page
    assert re.search(r">5\.\d\d\d ms → \d\.\d\d\d ms<", page)


def test_sigterm_ends_a_race_as_ctrl_c_does(tmp_path: Path) -> None:
    commit(tmp_path, {"test_it.py": TESTS, "pytest.ini": "[pytest]\n", ".gitignore": IGNORED, **slower(1.0)}, "First")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--against=HEAD"]
    ini = ["-o", f"gpuperf_leases={tmp_path / '.leases'}"]
    with subprocess.Popen([*command, *ini], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert any("block 1 of" in line for line in run.stdout)
        assert len(left(tmp_path)) == 1
        run.terminate()
        printed, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert "Terminated" in printed
    assert left(tmp_path) == []
