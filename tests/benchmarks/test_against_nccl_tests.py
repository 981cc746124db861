"""The comparison with nccl-tests: fake binaries that print what real ones print, and a fake arm of the plugin."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks import against_nccl_tests
from benchmarks.nccl_tests import binaries, by_plugin
from benchmarks.nccl_tests.comparison import Row, Verdict, rows, spread, summary, table
from benchmarks.nccl_tests.plan import OPERATIONS, SWEEPS, ArmError, Figure, Plan, Point, Sweep, Turn
from pytest_gpuperf import GiB, KiB, MiB
from suites.collectives import programs
from tests import fake_gpus
from tests.whole_run import ROOT, environment

LATENCY, BUSBW = SWEEPS
SMALL = Sweep("latency", KiB, 2 * KiB, 2, cuda_graph=True, tolerance=0.05)

# Out of place 10 us and in place 20 us for 1 KiB, ten times as much for 1 GiB. FAKE says what goes wrong.
FAKE = f"""#!{sys.executable}
import json, os, sys
print("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809")
if "-h" in sys.argv:
    print("USAGE: x" + ("" if os.environ.get("FAKE") == "old" else " [-J,--output_file <file>]"))
    sys.exit()
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.path.join(os.path.dirname(__file__), "calls.jsonl"), "a") as calls:
    told = {{name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "LD_"))}}
    calls.write(json.dumps([os.path.basename(__file__), options, told]) + "\\n")
fake = os.environ.get("FAKE", "")
if fake == "fail":
    print("vm: Test NCCL failure common.cu:1585 'unhandled cuda error'")
    print("no such device", file=sys.stderr)
    sys.exit(3)
rows = []
for cycle in reversed(range(int(options["-N"]))):
    size = int(options["-b"])
    while size <= int(options["-e"]):
        us = (10 if size < 2**20 else 100) / (cycle + 1)
        wrong = 5 if fake == "wrong" and size == 1024 else 0
        rows.append((size, us, wrong))
        size *= int(options["-f"])
rows = rows[:1] if fake == "short" else rows
dtype = "float" if fake == "float" else options["-d"]
if "-J" in options:
    side = lambda us, size, wrong: {{"time": us, "alg_bw": 1.0, "bus_bw": size / us / 1e3, "nwrong": wrong}}
    results = [
        {{"size": size, "type": dtype, "out_of_place": side(us, size, wrong),
          "in_place": None if fake == "one column" else side(2 * us, size, None)}}
        for size, us, wrong in rows
    ]
    with open(options["-J"], "w") as file:
        json.dump({{"results": results, "out_of_bounds": {{"count": int(fake == "wrong")}}}}, file)
else:
    print("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    for size, us, wrong in rows:
        print(size, size // 2, dtype, "sum", -1, us, 1.0, size / us / 1e3, wrong, 2 * us, 1.0, size / us / 1e3, "N/A")
sys.exit(1 if fake == "wrong" else 0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """nccl-tests as built, of which nothing is real."""
    build = tmp_path / "nccl-tests" / "build"
    build.mkdir(parents=True)
    for operation in OPERATIONS.values():
        (build / operation.binary).write_text(FAKE)
        (build / operation.binary).chmod(0o755)
    return build.parent


def built(folder: Path, **environ: str) -> binaries.NcclTests:
    return binaries.NcclTests.found(folder, {"PATH": os.environ["PATH"], **environ}, Path("/torch/nccl"))


def calls(folder: Path) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in (folder / "build" / "calls.jsonl").read_text().splitlines()]


def plan(*ops: str, sweeps: tuple[Sweep, ...] = SWEEPS) -> Plan:
    return Plan(ops, (4,), sweeps)


# The plan


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


# Building


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


# The plugin's arm


def test_the_plugin_measures_every_point_of_the_plan() -> None:
    asked = Plan(("all_reduce", "all_to_all", "send_recv"), (2,), (SMALL,))
    turn = by_plugin.turn(asked, "--smoke")  # on CPUs nothing is measured, but everything is run
    assert list(turn.figures) == [point for _, point in asked.points]
    figure = turn.figures[Point("all_to_all", 2, KiB)]
    assert figure.busbw == pytest.approx(KiB / figure.seconds / 2)
    assert (turn.nccl, figure.unfit) == ("none", "")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The plugin's tests, imported outside their run."""
    monkeypatch.setenv("AGAINST_NCCL_TESTS_PLAN", by_plugin.told(Plan((), (2,), ())))
    return importlib.import_module("benchmarks.nccl_tests.plugin_module")


def test_send_recv_is_a_ring_in_one_call(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "all_to_all_uneven", lambda ctx, **kwargs: kwargs["splits"])
    splits = module.ring(SimpleNamespace(world_size=4), shape=(8,), dtype=torch.bfloat16, seed=1)
    assert splits == [[0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8], [8, 0, 0, 0]]


@pytest.mark.parametrize(
    ("op", "sweep", "program"),
    [
        ("all_reduce", LATENCY, "all_reduce"),
        ("all_reduce", BUSBW, "all_reduce"),
        ("send_recv", LATENCY, "ring"),
        ("send_recv", BUSBW, "send_recv"),
    ],
)
def test_the_plugin_times_graphs_where_nccl_tests_does(module: ModuleType, op: str, sweep: Sweep, program: str) -> None:
    ranks, perf = mock.MagicMock(), mock.MagicMock(world_size=2)
    ranks.run.return_value = [22809]
    timing = SimpleNamespace(
        median=1e-5,
        time=None,
        busbw=lambda op, nbytes: SimpleNamespace(value=1e9),
        conditions=SimpleNamespace(tripped=()),
    )
    perf.configured.return_value.measure.return_value = timing
    (told,) = json.loads(by_plugin.told(Plan((), (), (sweep,))))["sweeps"]
    module.test_sweep(perf, ranks, op, told, lambda name, value: None)
    perf.configured.assert_called_once_with(cuda_graph=sweep.quantity == "latency")
    assert [call.args[0].__name__ for call in perf.configured.return_value.measure.mock_calls] == [program] * len(
        sweep.sizes
    )


def test_both_arms_mean_the_same_by_a_size(module: ModuleType) -> None:
    # Elements of 2 bytes. S is the buffer of one rank; of all_gather the whole output; of the others the whole input.
    assert {op: module.shape_of(op, KiB, 4) for op in OPERATIONS} == {
        "all_reduce": (512,),
        "all_gather": (128,),
        "reduce_scatter": (128,),
        "all_to_all": (128,),
        "send_recv": (512,),
    }


def test_a_test_that_fails_for_want_of_a_baseline_has_measured(
    pytester: pytest.Pytester, eight_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Plan(("all_reduce",), (2,), (SMALL,))
    monkeypatch.setenv("AGAINST_NCCL_TESTS_PLAN", by_plugin.told(asked))
    monkeypatch.syspath_prepend(str(ROOT))
    shutil.copy(by_plugin.MODULE, pytester.path / "test_sweeps.py")
    result = pytester.runpytest("--gpus=2", "--junitxml=report.xml", "-o", "junit_family=xunit1")
    result.assert_outcomes(failed=1)
    assert len(by_plugin.read(pytester.path / "report.xml", asked).figures) == 2


def test_a_test_that_did_not_measure_is_told_in_its_own_words() -> None:
    asked = Plan(("all_reduce",), (2,), (SMALL,))
    with pytest.raises(ArmError, match=r"nbytes=1024\)\] is missing: test_sweep.*perf tests measure GPUs"):
        by_plugin.turn(asked)


# The arithmetic


def row(theirs: tuple[float, ...], ours: tuple[float, ...], sweep: Sweep = BUSBW, unfit: str = "") -> Row:
    return Row(Point("all_reduce", 8, sweep.smallest), sweep, theirs, ours, unfit)


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        ((400e9,) * 3, (403.9e9,) * 3, Verdict.MET),
        ((400e9,) * 3, (396.1e9,) * 3, Verdict.MET),
        ((400e9,) * 3, (404.1e9,) * 3, Verdict.MISSED),
        ((400e9,) * 3, (395.9e9,) * 3, Verdict.MISSED),
        # One turn of each arm is within the target of the other.
        ((400e9, 400e9, 407e9), (410e9, 410e9, 410e9), Verdict.NOISE),
        ((400e9, 400e9, 405e9), (410e9, 410e9, 410e9), Verdict.MISSED),
        ((400e9, 400e9, 400e9), (390e9, 390e9, 397e9), Verdict.NOISE),
        ((400e9, 400e9, 400e9), (390e9, 390e9, 395e9), Verdict.MISSED),
        # The median, not the mean.
        ((400e9, 400e9, 900e9), (400e9, 401e9, 100e9), Verdict.MET),
    ],
)
def test_bus_bandwidth_is_to_differ_by_1_percent_at_most(
    theirs: tuple[float, ...], ours: tuple[float, ...], verdict: Verdict
) -> None:
    assert row(theirs, ours).verdict is verdict


@pytest.mark.parametrize(
    ("ours", "verdict"), [(10.49e-6, Verdict.MET), (10.51e-6, Verdict.MISSED), (9.4e-6, Verdict.MISSED)]
)
def test_latency_is_to_differ_by_5_percent_at_most(ours: float, verdict: Verdict) -> None:
    assert row((10e-6,) * 3, (ours,) * 3, LATENCY).verdict is verdict


def test_a_machine_that_was_not_fit_meets_no_target() -> None:
    assert row((1.0,), (1.0,), unfit="thermal slowdown").verdict is Verdict.UNFIT


def test_latency_compares_times_and_bandwidth_compares_busbw() -> None:
    asked = Plan(("all_reduce",), (2,), (LATENCY.ends, BUSBW.ends))
    theirs = Turn({point: Figure(1.0, 10.0) for _, point in asked.points}, "2.28.9", "x")
    ours = Turn({point: Figure(2.0, 30.0, "hot" * (point.nbytes == GiB)) for _, point in asked.points}, "2.28.9", "x")
    found = rows(asked, [theirs] * 2, [ours] * 2)
    assert [(row.theirs, row.ours) for row in found] == [((1.0, 1.0), (2.0, 2.0))] * 2 + [
        ((10.0, 10.0), (30.0, 30.0))
    ] * 2
    assert [row.unfit for row in found] == ["", "", "", "hot"]


def test_the_spread_is_the_turns_range() -> None:
    assert spread([99.0, 100.0, 103.0]) == pytest.approx(0.04)


def test_the_table_says_what_was_measured_and_whether_it_meets_the_target() -> None:
    found = [
        row((400e9, 404e9, 398e9), (404.1e9,) * 3),
        row((10e-6,) * 3, (10.1e-6,) * 3, LATENCY),
        row((400e9,), (500e9,)),
        row((400e9,), (500e9,), unfit="hot"),
    ]
    lines = [" ".join(line.split()) for line in table(found)]
    assert lines[1:] == [
        "all_reduce 8 64 MiB busbw 400.0 GB/s 1.50% 404.1 GB/s 0.00% +1.03% 1% missed, within the noise",
        "all_reduce 8 1 KiB latency 10.00 us 0.00% 10.10 us 0.00% +1.00% 5% met",
        "all_reduce 8 64 MiB busbw 400.0 GB/s 0.00% 500.0 GB/s 0.00% +25.00% 1% MISSED",
        "all_reduce 8 64 MiB busbw 400.0 GB/s 0.00% 500.0 GB/s 0.00% +25.00% 1% UNFIT: hot",
    ]
    assert summary(found) == (
        "1 of 4 rows meet their target; of the 3 others 1 are within the noise and 1 measured on a machine "
        "that was not fit"
    )
    assert summary(found[1:2]) == "1 of 1 rows meet their target"


# The whole


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
    monkeypatch.setattr(against_nccl_tests, "visible_gpus", lambda environ: tuple(map(fake_gpus.gpu, range(8))))
    monkeypatch.setattr(against_nccl_tests, "driver_version", lambda: "580.1")
    return run


def test_a_run_prints_the_table_and_what_it_is_of(
    against: Against, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    # Fake nccl-tests tells the same busbw in place, where it takes twice as long: only out of place fits.
    assert against("--ops", "all_gather", "send_recv", "--check", "--json", str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8 x NVIDIA H200, driver 580.1" in lines[0]
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
