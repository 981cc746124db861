"""What several tests of the plugin ask for."""

import gc
import importlib.metadata
import logging
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pydantic.type_adapter
import pydantic_core.core_schema
import pytest
from hypothesis import HealthCheck, settings

from pytest_gpuperf import options
from pytest_gpuperf.features.day_zero import opinions
from pytest_gpuperf.features.recording import lines
from pytest_gpuperf.run import session
from tests import fake_gpus
from tests.warm_python import FRESH, ForkedPopen, WarmPython, popen
from tests.whole_run import COMMON_PLUGINS, environment

# Each run of pytest in this process would import these anew, as a run does that reads baselines or draws examples.
_KEPT = pydantic.type_adapter, pydantic_core.core_schema, lines, opinions

# A shell starts what runs in its background with Ctrl-C ignored, and tests of Ctrl-C would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is judged by the clock would fail wherever the machine stops for a moment.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

LONG = (
    "acceptance/test_command.py",
    "api/test_ranks_hashes.py",
    "arms/test_old_code.py",
    "benchmarks/test_against_itself.py",
    "benchmarks/test_judge_resampled.py",
    "benchmarks/test_launch_profile.py",
    "benchmarks/test_machine_tour.py",
    "benchmarks/test_mutations.py",
    "benchmarks/test_nodes_of_one_machine.py",
    "benchmarks/test_turns.py",
    "cluster/",
    "everywhere/test_launchers.py",
    "everywhere/test_meeting.py",
    "everywhere/test_on_hosts.py",
    "explaining/test_explaining.py",
    "faults/",
    "hosts/test_clusters.py",
    "mutating/test_mutating.py",
    "page/test_mutated_results.py",
    "parity/test_faults.py",
    "parity/test_right_programs.py",
    "run/test_hash_seed.py",
    "run/test_judged_run.py",
    "run/test_real_races.py",
    "test_adding_a_suite.py",
    "test_features.py",
    "test_wheel.py",
    "workflow/",
)
"""Where tests run whole clusters, races, recorded faults or installations: ``make test`` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that take long by their files, and begins with these: no worker shall end with one.

    Tests of clusters stay where they are, since they mostly wait, and others can use the cores meanwhile.
    """
    for item in items:
        tests = Path(__file__).parent
        if item.path.is_relative_to(tests) and item.path.relative_to(tests).as_posix().startswith(LONG):
            item.add_marker("long")
    items.sort(key=lambda item: item.get_closest_marker("long") is None or "cluster" in item.path.parts)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Returns what gives files to workers under ``--dist loadfile``."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import SchedulingByCluster

    return SchedulingByCluster(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Leaves files in their order: those with few tests are the longest, and xdist 3.8 would begin them last."""
    config.option.loadscopereorder = False
    config.addinivalue_line("markers", "long: left out by make test")
    if config.getoption("tx", None) and not config.getoption("collectonly"):
        config.pluginmanager.register(_WarmWorkers(config))


class _WarmWorkers:
    """Has the workers of xdist be forks of one process that has imported torch, from which they fork, too."""

    def __init__(self, config: pytest.Config) -> None:
        self._python = WarmPython(environment())
        config.add_cleanup(self._python.close)
        config.add_cleanup(partial(setattr, subprocess, "Popen", FRESH))
        subprocess.Popen = self._python.popen()  # type: ignore[misc]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Passes a worker what forks for it."""
        node.workerinput["warm_python"] = self._python.address, self._python.environ


def pytest_collection_finish() -> None:
    """What is loaded by now stays, torch for one: no collection of garbage need look through it.

    Torch has some 50 loggers that pass nothing on, and pytest adds its handlers to each of these six times in a test.
    """
    gc.collect()
    gc.freeze()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.partition(".")[0] == "torch":
            logger.propagate = True


@pytest.fixture(scope="session")
def _installed_plugins() -> list[SimpleNamespace]:
    """What pytest and pluggy ask of the distributions that bring plugins."""
    return [
        SimpleNamespace(
            metadata=one.metadata,
            version=one.version,
            entry_points=one.entry_points,
            files=one.files,
            _normalized_name=one.metadata["Name"],  # which tells double ones, where torch asks for entry points
        )
        for one in importlib.metadata.distributions()
        if one.entry_points.select(group="pytest11") and one.metadata["Name"] not in COMMON_PLUGINS
    ]


@pytest.fixture(autouse=True)
def _plugins_are_known(monkeypatch: pytest.MonkeyPatch, _installed_plugins: list[SimpleNamespace]) -> None:
    """Runs of pytest in this process do not read the metadata of all that is installed, each of them anew."""
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: _installed_plugins)


@pytest.fixture(autouse=True)
def _leases_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of pytest in this process wait for nobody else on the machine."""
    monkeypatch.setattr(options, "LEASES", tmp_path_factory.getbasetemp() / "leases")


@pytest.fixture(autouse=True)
def _forkservers_are_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process have their ranks load of torch what every rank needs.

    Not what some test module of the plugin has imported: that is as good as all of it, and takes seconds in each run.
    """
    monkeypatch.setattr(session, "PRELOAD_IF_USED", {})


@pytest.fixture(scope="session")
def _forked_popen(request: pytest.FixtureRequest) -> Iterator[type[ForkedPopen]]:
    if shared := getattr(request.config, "workerinput", {}).get("warm_python"):
        yield popen(*shared)
        return
    python = WarmPython(environment())
    yield python.popen()
    python.close()


@pytest.fixture(scope="session", autouse=True)
def _python_is_forked(_forked_popen: type[ForkedPopen]) -> Iterator[None]:
    """Runs of pytest, commands and forkservers are forks of a process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", _forked_popen)
        yield


@pytest.fixture(scope="module")
def fresh_python(_python_is_forked: None) -> Iterator[None]:
    """From here on the module's runs of pytest, commands and forkservers are new interpreters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", FRESH)
        yield


@pytest.fixture(autouse=True)
def _github_hears_of_no_inner_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process write no job summary and no annotations, though a workflow may run the tests."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process find 8 GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_gpus.install(monkeypatch)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process find no GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_gpus.install(monkeypatch, visible=0)
