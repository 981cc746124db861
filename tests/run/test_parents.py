"""Which later launches have a parent process of their own: on GPUs those of tests that the host bounds."""

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.run import relaunching
from pytest_gpuperf.run.concluding import FIGURES
from pytest_gpuperf.run.relaunching import Relaunching

GPU = Metric(1.0, "s", "lower", clock="cuda_event")
HOST_BOUND = Metric(1.0, "s", "lower", clock="cuda_event", host_bound=True)
BY_THE_HOST = Metric(1.0, "s", "lower", clock="host")


def launches(monkeypatch: pytest.MonkeyPatch, metric: Metric, *, on_cpus: bool) -> list[bool]:
    """Whether each of three launches of one test has a parent of its own."""
    launch, told = SimpleNamespace(renews=on_cpus, software={}), []

    def protocol(item: Any, nextitem: Any) -> None:
        told.append(launch.renews)
        item.stash[relaunching._REPORTS] = []
        item.stash[FIGURES] = {"time": metric}

    hooks = SimpleNamespace(pytest_runtest_protocol=protocol)
    test = SimpleNamespace(ihook=hooks, stash=pytest.Stash())
    monkeypatch.setattr(relaunching, "launch_of", lambda item: SimpleNamespace(identity="test"))
    monkeypatch.setattr(relaunching, "is_perf_function", lambda item: item is test)
    monkeypatch.setattr(relaunching, "world_size", lambda item: 2)
    monkeypatch.setattr(relaunching, "body_of", lambda item: "body")
    monkeypatch.setattr(relaunching, "again", lambda item, number: item)
    arm: Any = Relaunching(launch)  # type: ignore[arg-type]
    arm._items = [test]
    for _ in range(3):
        arm.launch(["test"])
    return told


@pytest.mark.parametrize(
    ("metric", "on_cpus", "expected"),
    [
        (GPU, False, [False, False, False]),  # importing torch costs seconds, and a GPU's time does not depend on it
        (HOST_BOUND, False, [False, True, True]),
        (BY_THE_HOST, False, [False, True, True]),
        (GPU, True, [True, True, True]),
    ],
)
def test_a_launch_that_the_host_bounds_has_a_parent_of_its_own(
    monkeypatch: pytest.MonkeyPatch, metric: Metric, on_cpus: bool, expected: list[bool]
) -> None:
    assert launches(monkeypatch, metric, on_cpus=on_cpus) == expected
