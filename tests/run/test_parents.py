"""Which launches have a parent process of their own: on GPUs those of tests that the host bounds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.run.current_launch import CurrentLaunch

GPU = Metric(1.0, "s", "lower", clock="cuda_event")
HOST_BOUND = Metric(1.0, "s", "lower", clock="cuda_event", host_bound=True)
BY_THE_HOST = Metric(1.0, "s", "lower", clock="host")


def launch(*, gpus: int) -> CurrentLaunch:
    machine: Any = SimpleNamespace(gpus=("a GPU",) * gpus)
    site: Any = None
    return CurrentLaunch(machine, site, Path(), lambda launch: None, measured=True)


@pytest.mark.parametrize("metric", [HOST_BOUND, BY_THE_HOST])
def test_on_gpus_a_launch_of_a_test_that_the_host_bounds_has_a_parent_of_its_own(metric: Metric) -> None:
    """Importing torch costs seconds, and a time of the GPU does not depend on it."""
    current = launch(gpus=2)

    def renews(tests: list[str] | None) -> bool:
        current.tests = tests
        return current.renews

    current.note("quick", {"time": GPU})
    assert not renews(None)
    current.note("bound", {"time": GPU, "start": metric})
    assert renews(None)
    assert not renews(["quick"])
    assert renews(["quick", "bound"])


def test_on_cpus_each_launch_has_a_parent_of_its_own() -> None:
    assert launch(gpus=0).renews
