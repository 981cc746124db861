"""The arm of nccl-tests: the processes it starts, what they did, and how they are built."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.nccl_tests import binaries
from benchmarks.nccl_tests.plan import OPERATIONS, SWEEPS, ArmError, Point
from pytest_gpuperf import GiB, KiB, MiB
from tests.benchmarks.nccl_tests.fake_nccl_tests import built, calls, plan

LATENCY, BUSBW = SWEEPS


def test_the_sizes_are_those_that_the_targets_speak_of() -> None:
    assert LATENCY.sizes == (KiB, 4 * KiB, 16 * KiB, 64 * KiB, 256 * KiB, MiB)
    assert BUSBW.sizes == (64 * MiB, 256 * MiB, GiB)
    assert (LATENCY.tolerance, BUSBW.tolerance) == (0.05, 0.01)
    assert [sweep.ends.sizes for sweep in SWEEPS] == [(KiB, MiB), (64 * MiB, GiB)]


# nccl-tests' arm


def test_each_sweep_is_one_process_with_the_same_operation_as_the_plugin(folder: Path) -> None:
    built(folder).turn(plan("all_reduce", "all_to_all"))
    names = [name for name, _, _ in calls(folder)]
    assert names == ["all_reduce_perf", "all_reduce_perf", "alltoall_perf", "alltoall_perf"]
    latency, busbw = (options for _, options, _ in calls(folder)[:2])
    both = {"-t": "4", "-g": "1", "-f": "4", "-d": "bfloat16", "-o": "sum", "-c": "1", "-a": "3"}
    assert both.items() <= latency.items()
    assert both.items() <= busbw.items()
    assert (latency["-b"], latency["-e"], latency["-n"], latency["-G"]) == ("1024", str(MiB), "50", "40")
    assert (busbw["-b"], busbw["-e"], busbw["-n"]) == (str(64 * MiB), str(GiB), "100")
    assert "-G" not in busbw


@pytest.mark.parametrize("kind", ["new", "old"])
def test_all_reduce_is_compared_in_place_and_the_others_out_of_place(folder: Path, kind: str) -> None:
    ops = tuple(OPERATIONS)
    turn = built(folder, FAKE=kind).turn(plan(*ops))
    assert [turn.figures[Point(op, 4, KiB)].seconds for op in ops] == pytest.approx([20e-6] + [10e-6] * 4)
    largest = turn.figures[Point("all_gather", 4, GiB)]
    assert (largest.seconds, largest.busbw) == pytest.approx((100e-6, GiB / 100e-6))
    assert (turn.nccl, turn.tool) == ("2.28.9", "nccl-tests 2.19.6")
    assert ("-J" in calls(folder)[0][1]) == (kind == "new")


def test_torchs_nccl_comes_first_and_the_callers_settings_prevail(folder: Path) -> None:
    asked = {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DIRECT_DISABLE": "0", "LD_LIBRARY_PATH": "/mine"}
    built(folder, **asked).turn(plan("send_recv"))
    environ = calls(folder)[0][2]
    assert environ["LD_LIBRARY_PATH"].split(os.pathsep)[:2] == ["/torch/nccl/lib", "/mine"]
    assert environ["NCCL_NVLS_ENABLE"] == "0"
    assert environ["NCCL_P2P_DIRECT_DISABLE"] == "0"
    assert environ["NCCL_GRAPH_REGISTER"] == "0"
    assert environ["NCCL_GRAPH_MIXING_SUPPORT"] == "0"
    built(folder, NCCL_GRAPH_MIXING_SUPPORT="1").turn(plan("send_recv"))
    assert calls(folder)[-1][2]["NCCL_GRAPH_MIXING_SUPPORT"] == "1"


def test_multicast_is_never_switched_on(folder: Path) -> None:
    built(folder).turn(plan("send_recv"))
    assert "NCCL_NVLS_ENABLE" not in calls(folder)[0][2]


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (
            "fail",
            r"all_reduce_perf -t 4 .* failed: exit status 3, its last lines:(.|\n)*unhandled cuda(.|\n)*no such device",
        ),
        ("wrong", r"got wrong results.*by size: \{'1024 B': 5\}"),
        ("short", r"all_reduce_perf measured \[1024\] B and not 4096 B"),
        ("float", "measured float, expected bfloat16"),
        ("one column", "measured nothing in-place of 1024 B"),
    ],
)
def test_what_nccl_tests_did_not_do_is_told(folder: Path, fake: str, words: str) -> None:
    with pytest.raises(ArmError, match=words):
        built(folder, FAKE=fake).turn(plan("all_reduce"))


def test_output_that_cannot_be_read_names_the_command_and_the_line(folder: Path) -> None:
    path = binaries.binary(folder, "all_reduce_perf")
    path.write_text(f"#!{sys.executable}\nprint('1024 512 bfloat16')")
    with pytest.raises(
        ArmError, match=r"all_reduce_perf -t 4 .*: nccl-tests' output, line 1, '1024 512 bfloat16': expected"
    ):
        built(folder).turn(plan("all_reduce"))


def test_a_binary_that_is_missing_is_named_with_what_builds_it(folder: Path) -> None:
    binaries.binary(folder, "alltoall_perf").unlink()
    with pytest.raises(ArmError, match=r"build/alltoall_perf is missing.* add --build, or run make -C .* NCCL_HOME="):
        built(folder)


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit with a compiler that nobody calls."""
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    (tmp_path / "cuda" / "bin" / "nvcc").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    return tmp_path / "cuda"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """NCCL as NVIDIA's wheel lays it out."""
    nccl = tmp_path / "nvidia" / "nccl"
    (nccl / "include").mkdir(parents=True)
    (nccl / "include" / "nccl.h").touch()
    (nccl / "lib").mkdir()
    (nccl / "lib" / "libnccl.so.2").touch()
    return nccl


MAKEFILE = """default:
\ttest -e $(NCCL_HOME)/include/nccl.h && test -e $(NCCL_HOME)/lib/libnccl.so && test -e $(NCCL_HOME)/lib/libnccl.so.2
\techo "$(BIN_FILES_LIST) $(CUDA_HOME) $(NVCC_GENCODE)" > build/made
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gets_torchs_nccl_and_the_gpus_architecture(folder: Path, cuda: Path, wheel: Path) -> None:
    (folder / "Makefile").write_text(MAKEFILE)
    for _ in range(2):  # the second time, what the first one made is there
        binaries.build(folder, wheel, (9, 0))
    made = (folder / "build" / "made").read_text().split()
    assert made[:5] == ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"]
    assert made[5:] == [str(cuda), "-gencode=arch=compute_90,code=sm_90"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_build_that_fails_is_told(folder: Path, cuda: Path, wheel: Path) -> None:
    (folder / "Makefile").write_text("default:\n\tfalse\n")
    with pytest.raises(ArmError, match=r"make -C .* ended with exit status 2"):
        binaries.build(folder, wheel, (9, 0))


def test_a_build_needs_sources_an_nccl_and_a_compiler(folder: Path, cuda: Path, wheel: Path) -> None:
    with pytest.raises(ArmError, match="Makefile is missing: --nccl-tests names"):
        binaries.build(folder, wheel, (9, 0))
    (folder / "Makefile").write_text(MAKEFILE)
    with pytest.raises(ArmError, match="torch's NCCL was not found"):
        binaries.build(folder, None, (9, 0))
    (cuda / "bin" / "nvcc").unlink()
    with pytest.raises(ArmError, match=r"cuda/bin/nvcc is missing.*set CUDA_HOME"):
        binaries.build(folder, wheel, (9, 0))
