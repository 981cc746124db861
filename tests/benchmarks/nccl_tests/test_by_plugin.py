"""The plugin's arm: the same operations and sizes, by tests of the plugin."""

from __future__ import annotations

import importlib
import json
import shutil
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest

from benchmarks.nccl_tests import by_plugin
from benchmarks.nccl_tests.plan import OPERATIONS, SWEEPS, ArmError, Plan, Point, Sweep
from pytest_gpuperf import KiB
from suites.collectives.programs import plain
from suites.collectives.programs.sweeping import of_size
from tests.benchmarks.nccl_tests.fake_nccl_tests import SMALL
from tests.whole_run import ROOT

LATENCY, BUSBW = SWEEPS


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
    monkeypatch.setenv("AGAINST_NCCL_TESTS_PLAN", by_plugin.dump(Plan((), (2,), ())))
    return importlib.import_module("benchmarks.nccl_tests.plugin_module")


def test_send_recv_is_a_ring_in_one_call(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "all_to_all_uneven", lambda ctx, *, collective: collective)
    usual = of_size("send_recv", 16, 4)
    ring = module.ring(SimpleNamespace(world_size=4), collective=usual)
    assert ring.name == "all_to_all_uneven"
    assert ring.splits == ((0, 8, 0, 0), (0, 0, 8, 0), (0, 0, 0, 8), (8, 0, 0, 0))


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
    (told,) = json.loads(by_plugin.dump(Plan((), (), (sweep,))))["sweeps"]
    module.test_sweep(perf, ranks, op, told, lambda name, value: None)
    perf.configured.assert_called_once_with(cuda_graph=sweep.quantity == "latency")
    assert [call.args[0].__name__ for call in perf.configured.return_value.measure.mock_calls] == [program] * len(
        sweep.sizes
    )


def test_both_arms_mean_the_same_by_a_size() -> None:
    # Elements of 2 bytes. S is the buffer of one rank; of all_gather the whole output; of the others the whole input.
    assert {op: of_size(op, KiB, 4).numel for op in OPERATIONS} == {
        "all_reduce": 512,
        "all_gather": 128,
        "reduce_scatter": 128,
        "all_to_all": 128,
        "send_recv": 512,
    }


def test_a_test_that_fails_for_want_of_a_baseline_has_measured(
    pytester: pytest.Pytester, eight_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Plan(("all_reduce",), (2,), (SMALL,))
    monkeypatch.setenv("AGAINST_NCCL_TESTS_PLAN", by_plugin.dump(asked))
    monkeypatch.syspath_prepend(str(ROOT))
    shutil.copy(by_plugin.MODULE, pytester.path / "test_sweeps.py")
    result = pytester.runpytest("--gpus=2", "--strict-baselines", "--junitxml=report.xml", "-o", "junit_family=xunit1")
    result.assert_outcomes(failed=1)
    assert len(by_plugin.read(pytester.path / "report.xml", asked).figures) == 2


def test_a_test_that_did_not_measure_is_told_in_its_own_words() -> None:
    asked = Plan(("all_reduce",), (2,), (SMALL,))
    with pytest.raises(ArmError, match=r"nbytes=1024\)\] is missing: test_sweep.*perf tests measure GPUs"):
        by_plugin.turn(asked)
