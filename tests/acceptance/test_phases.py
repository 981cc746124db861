"""The runs of pytest that an acceptance is made of."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuperf.features.acceptance.phases import (
    FIRST_LOOK,
    FIRST_NUMBERS,
    LEFT_OUT,
    LEFT_OUT_AT_FIRST,
    ON_CPUS,
    Phase,
    choose_phases,
    find_results,
    make_command,
    read_tail,
    run,
)
from pytest_gpuperf.report.run_journal import make_journal_path
from tests.acceptance.collected import node_ids
from tests.whole_run import ROOT, environment

SLOW = """
import pathlib, time
import pytest

@pytest.mark.ranks(1)
def test_ends(ranks): pass

@pytest.mark.ranks(1)
def test_waits(ranks):
    pathlib.Path("running").write_text("")
    time.sleep(60)
"""


def after(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_without_gpus_some_suites_results_are_checked_on_cpus() -> None:
    (phase,) = choose_phases(0, quick=False, soak=10, cores=2)
    assert choose_phases(0, quick=True, soak=10, cores=2) == [phase]
    assert (phase.name, phase.suites) == ("numbers on CPUs", ON_CPUS)
    arguments = list(phase.arguments)
    assert after(arguments, "--gpus") == "0"
    assert after(arguments, "-m") == "not perf and (not long or soak)"
    assert "--soak=10" in arguments


@pytest.mark.parametrize("gpus", [2, 8])
def test_numbers_come_before_speed(gpus: int) -> None:
    numbers, speed = choose_phases(gpus, quick=False, soak=30, cores=32)
    assert [numbers.name, speed.name] == ["numbers", "speed"]
    assert [after(list(phase.arguments), "--gpus") for phase in (numbers, speed)] == [str(gpus)] * 2
    assert "not perf" in after(list(numbers.arguments), "-m")
    assert after(list(speed.arguments), "-m") == "perf and not long"
    assert not {"-n", "--soak=30"} & set(speed.arguments)  # whoever measures is alone
    assert numbers.suites == speed.suites == ()


def test_a_quick_acceptance_takes_fewer_suites_and_leaves_more_tests_out() -> None:
    numbers, speed = choose_phases(2, quick=True, soak=10, cores=32)
    assert (numbers.suites, speed.suites) == (FIRST_NUMBERS, FIRST_LOOK)
    left_out = {word for word in speed.arguments if word.startswith("--deselect=")}
    usual = {
        word for word in choose_phases(2, quick=False, soak=10, cores=32)[1].arguments if word.startswith("--deselect=")
    }
    assert len(left_out) == len(LEFT_OUT) + len(LEFT_OUT_AT_FIRST)
    assert usual < left_out
    assert "--deselect=suites/tensor_parallel/test_performance.py::test_micro_pipeline" in usual


@pytest.mark.parametrize(
    ("gpus", "cores", "workers"), [(0, 2, 2), (0, 32, 8), (0, 1, 1), (2, 2, 1), (2, 1, 1), (8, 32, 8), (8, 6, 3)]
)
def test_so_many_tests_of_correctness_run_at_a_time_as_cores_allow(gpus: int, cores: int, workers: int) -> None:
    assert after(list(choose_phases(gpus, quick=False, soak=1, cores=cores)[0].arguments), "-n") == str(workers)


@pytest.mark.parametrize("name", [*LEFT_OUT, *LEFT_OUT_AT_FIRST])
def test_what_is_left_out_is_there(name: str) -> None:
    subject, _, function = name.partition("::")
    prefix = f"suites/{subject}/test_performance.py::{function}"
    assert any(test.startswith(prefix) for test in node_ids(perf=True))


def test_the_suites_of_a_first_look_are_there() -> None:
    assert [name for name in {*FIRST_LOOK, *FIRST_NUMBERS, *ON_CPUS} if not (ROOT / "suites" / name).is_dir()] == []
    measured = {test.split("/")[1] for test in node_ids(perf=True)}
    checked = {test.split("/")[1] for test in node_ids(perf=False)}
    assert set(FIRST_LOOK) <= measured
    assert {*FIRST_NUMBERS, *ON_CPUS} <= checked


def test_the_folders_of_a_phase_take_the_place_of_all_suites(tmp_path: Path) -> None:
    for name in ("health", "host"):
        (tmp_path / "suites" / name).mkdir(parents=True)
    phase = Phase("speed", ["-m", "perf"], ("health", "gone", "host"))
    command = make_command(phase, tmp_path, Path("/user"), Path("/r.json"))
    root = str(tmp_path / "suites")
    assert root not in command
    assert command[:5] == [sys.executable, "-m", "pytest", f"{root}/health", f"{root}/host"]
    assert after(command[3:], "-m") == "perf"
    assert "--gpuperf-json=/r.json" in command
    assert "--baselines=/user/baselines" in command
    whole = make_command(Phase("speed", ["-m", "perf"]), tmp_path, Path("/user"), Path("/r.json"))
    assert [*whole[:3], f"{root}/health", f"{root}/host", *whole[4:]] == command


def project(folder: Path) -> list[str]:
    (folder / "test_it.py").write_text(SLOW)
    options = ["-q", "--gpus=0", "-p", "no:cacheprovider", f"--gpuperf-json={folder / 'r.json'}"]
    return [sys.executable, "-m", "pytest", str(folder / "test_it.py"), f"--rootdir={folder}", *options]


def wait_until_running(folder: Path) -> None:
    ends = time.monotonic() + 60
    while not (folder / "running").exists():
        assert time.monotonic() < ends
        time.sleep(0.02)


PRINTS_WHAT_IS_FOUND = """
import pathlib, sys
from pytest_gpuperf.features.acceptance.phases import find_results

print("before")
print([(one.test.partition("::")[2], one.outcome) for one in find_results(pathlib.Path(sys.argv[1])).ran])
"""


def test_the_journal_of_a_killed_run_becomes_its_results_and_nothing_else_is_printed(tmp_path: Path) -> None:
    with subprocess.Popen(project(tmp_path), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as killed:
        wait_until_running(tmp_path)
        killed.send_signal(signal.SIGKILL)
    assert make_journal_path(tmp_path / "r.json").exists()
    command = [sys.executable, "-c", PRINTS_WHAT_IS_FOUND, str(tmp_path / "r.json")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "before\n[('test_ends[1rank]', 'passed'), ('test_waits[1rank]', 'failed')]\n"


def test_without_results_and_journal_nothing_is_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert find_results(tmp_path / "r.json") is None
    print("printed as before")
    assert capfd.readouterr().out == "printed as before\n"


@pytest.mark.parametrize("text", ["", '{"he'])
def test_a_journal_that_cannot_be_read_is_no_result(tmp_path: Path, text: str) -> None:
    make_journal_path(tmp_path / "r.json").write_text(text)
    assert find_results(tmp_path / "r.json") is None


def test_a_run_has_its_status_its_results_and_the_end_of_its_output(tmp_path: Path) -> None:
    ended = run([*project(tmp_path), "-k", "ends"], tmp_path / "r.json", tmp_path / "log")
    assert ended.status == 0
    assert ended.results is not None
    assert [one.outcome for one in ended.results.ran] == ["passed"]
    assert "1 passed, 1 deselected" in ended.output
    failed = run([sys.executable, "-c", "raise SystemExit('it did not start')"], tmp_path / "x.json", tmp_path / "x")
    assert (failed.results, failed.status, failed.output) == (None, 1, "it did not start")


def test_the_end_of_a_log_is_its_last_12_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(map(str, range(20))))
    assert read_tail(log).splitlines() == [str(number) for number in range(8, 20)]
    assert read_tail(tmp_path / "none") == ""
