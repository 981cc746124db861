"""The whole comparison, and its script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import against_nccl_tests
from benchmarks.nccl_tests import by_plugin
from benchmarks.nccl_tests.plan import OPERATIONS, Figure, Plan, Turn
from pytest_gpuperf import MiB
from tests import fake_gpus
from tests.benchmarks.nccl_tests.fake_nccl_tests import calls
from tests.whole_run import ROOT, environment

Against = Callable[..., int]


@pytest.fixture
def against(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Against:
    """Runs the comparison on 8 GPUs that are not there; ``factor`` is the plugin's time over nccl-tests'."""

    def run(*arguments: str, factor: float = 1.0, nccl: str = "2.28.9") -> int:
        def turn(asked: Plan, *options: str) -> Turn:
            assert options == ("--gpus=8",)
            seconds = {point: (1e-4 if point.nbytes >= MiB else 1e-5) * factor for _, point in asked.points}
            seconds = {p: s * (2 if OPERATIONS[p.op].in_place else 1) for p, s in seconds.items()}
            figures = {p: Figure(s, p.nbytes / s) for p, s in seconds.items()}
            return Turn(figures, nccl, "pytest-gpuperf 0.1.0")

        monkeypatch.setattr(by_plugin, "turn", turn)
        return against_nccl_tests.main(["--nccl-tests", str(folder), *arguments])

    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setattr(against_nccl_tests, "find_devices", lambda: fake_gpus.machine_of(8).devices)
    return run


def test_a_run_prints_the_table_and_what_it_is_of(
    against: Against, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    # Fake nccl-tests tells the same busbw in place, where it takes twice as long: only out of place fits.
    assert against("--ops", "all_gather", "send_recv", "--check", "--json", str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 x NVIDIA H200, driver 570.86" in lines[0]
    assert "nccl-tests 2.19.6, NCCL 2.28.9 in both, medians of 3 turns" in lines[0]
    assert lines[1] == (
        "both with NCCL_GRAPH_MIXING_SUPPORT=0 NCCL_NVLS_ENABLE=0; "
        "nccl-tests also with NCCL_P2P_DIRECT_DISABLE=1 NCCL_GRAPH_REGISTER=0"
    )
    assert len(lines) == 2 + 1 + 2 * 9 + 1
    assert lines[-1] == "18 of 18 rows meet their target"
    kept = json.loads(file.read_text())
    assert kept["where"] == lines[:2]
    assert kept["rows"][0]["nccl_tests"] == pytest.approx([1e-5] * 3)
    assert {row["verdict"] for row in kept["rows"]} == {"met"}


def test_the_arms_take_turns(against: Against, capsys: pytest.CaptureFixture[str]) -> None:
    against("--ops", "all_gather", "--quick", "--turns", "2")
    said = [line.partition(" took ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "turn 1 of 2: nccl-tests",
        "turn 1 of 2: the plugin",
        "turn 2 of 2: the plugin",
        "turn 2 of 2: nccl-tests",
    ]


@pytest.mark.parametrize(("factor", "missed"), [(1.04, {"busbw"}), (1.06, {"busbw", "latency"}), (0.995, set())])
def test_a_miss_is_exit_status_1_where_it_is_checked(
    against: Against, tmp_path: Path, factor: float, missed: set[str]
) -> None:
    file = tmp_path / "figures.json"
    arguments = ("--ops", "all_gather", "--quick", "--turns", "1", "--json", str(file))
    assert against(*arguments, factor=factor) == 0
    assert against(*arguments, "--check", factor=factor) == int(bool(missed))
    told = json.loads(file.read_text())["rows"]
    assert {row["quantity"] for row in told if row["verdict"] == "missed"} == missed


def test_different_libraries_are_not_compared(against: Against, capsys: pytest.CaptureFixture[str]) -> None:
    assert against("--ops", "all_gather", "--quick", nccl="2.27.5") == 2
    assert "different NCCL libraries, nccl-tests 2.28.9 and the plugin 2.27.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "world_sizes"), [((), {"8"}), (("--ranks", "2", "4"), {"2", "4"}), (("--ranks", "8"), {"8"})]
)
def test_all_gpus_are_one_world_unless_ranks_are_named(
    against: Against, folder: Path, arguments: tuple[str, ...], world_sizes: set[str]
) -> None:
    against("--ops", "all_gather", "--quick", "--turns", "1", *arguments)
    assert {options["-t"] for _, options, _ in calls(folder)} == world_sizes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ranks", "16"), "16 ranks were asked for, each on a GPU of its own, and 8 GPUs are visible"),
        (("--gpus", "9"), "9 ranks were asked for"),
        (("--gpus", "2", "--ranks", "4"), "--ranks 4 does not fit on --gpus 2"),
        (("--ranks", "3"), "--ranks takes powers of two from 2 on, got 3"),
        (("--ranks", "1"), "--ranks takes powers of two from 2 on, got 1"),
        (("--turns", "0"), "--turns must be 1 or more, got 0"),
        (("--ops", "barrier"), "invalid choice: 'barrier'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    against: Against, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        against(*arguments)
    assert words in capsys.readouterr().err


def script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = ROOT / "benchmarks" / "against_nccl_tests.py"
    return subprocess.run(
        [sys.executable, str(path), "--nccl-tests", str(folder), *arguments],
        env={name: value for name, value in environment(CUDA_VISIBLE_DEVICES="").items() if name != "PYTHONPATH"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_script_tells_what_is_not_built(tmp_path: Path) -> None:
    done = script(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/build/all_reduce_perf is missing, so nccl-tests is not built")


def test_the_script_tells_that_there_are_too_few_gpus(folder: Path) -> None:
    done = script(folder, "--ranks", "4")
    assert done.returncode == 2
    assert "4 ranks were asked for, each on a GPU of its own, and 0 GPUs are visible" in done.stderr
