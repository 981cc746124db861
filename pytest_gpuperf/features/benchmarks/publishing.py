"""Samples of perf tests as benchmarks of pytest-benchmark, by its documented ways alone; works without it.

pytest-benchmark has no call that takes samples. But a benchmark may bring its own timer, and ``pedantic`` reads it
before and after each round: so the samples, which the device's clock took on the ranks, are replayed against a clock
that moves by them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pytest

from pytest_gpuperf.api.checks import Checks
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.timing import Timing
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.report.properties import read_verdicts
from pytest_gpuperf.run.launches import find_launch
from pytest_gpuperf.verdicts.verdict import Verdict

SECTION = "gpuperf"
"""Key of what is ours in machine_info and in the JSON."""

_FIXTURE = "benchmark"
_TAKEN = pytest.StashKey[bool]()
"""Set once a test has the benchmark fixture; it can be used once."""


_Groups: TypeAlias = list[tuple[str | None, list[dict[str, Any]]]]
"""The rows of pytest-benchmark's table, by the name of their group."""


class _Fixture(Protocol):
    extra_info: dict[str, Any]

    def pedantic(
        self, target: Callable[[], None], *, setup: Callable[[], None], rounds: int, iterations: int, warmup_rounds: int
    ) -> None: ...


class ReplayClock:
    """Tells the time that the samples add up to."""

    def __init__(self, name: str) -> None:
        self.__name__ = name  # pytest-benchmark shows a timer by its name
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self._now

    def reset(self) -> None:
        """Back to 0, so that the difference of two readings is the sample to the last bit."""
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        """Lets so much time pass."""
        self._now += seconds


class BenchmarkPlugin:
    """Publishes what perf tests measured; registered only where pytest-benchmark is."""

    def __init__(
        self,
        machine: Machine,
        software: Callable[[], Mapping[str, str]],
        is_perf: Callable[[pytest.Item], bool],
        *,
        smoke: bool,
        table: bool = True,
    ) -> None:
        """Not published yet.

        Args:
            machine: Of the run.
            software: Tells the versions that the ranks ran with.
            is_perf: Whether an item is a perf test, and not one of another suite that means something else by that.
            smoke: Whether the run only tries bodies, and so measures nothing to publish.
            table: Whether pytest-benchmark's table shows what is published.
        """
        self._machine = machine
        self._software = software
        self._is_perf = is_perf
        self._smoke = smoke
        self._table = table
        self._published: dict[str, dict[str, Any]] = {}

    def pytest_gpuperf_checked(self, item: pytest.Item, checks: Checks) -> None:
        """Publishes what the test has measured in its first launch."""
        # One benchmark for each test, under one name in every run; later launches are for the baselines.
        first = find_launch(item).number == 1
        if first and checks.timing is not None and checks.request is not None:
            self.publish(checks.request, checks.timing, {**checks.metrics, **checks.shown})

    def publish(self, request: pytest.FixtureRequest, timing: Timing, metrics: Mapping[str, Metric]) -> None:
        """Makes a benchmark of the test's timing, unless the test has one of its own.

        What pytest-benchmark raises is a warning: the metrics are good all the same, and a recording takes long.

        Args:
            request: Of a fixture of the test, whose body has ended.
            timing: The test's first.
            metrics: All metrics that it handed over, by name.
        """
        node = request.node
        if self._smoke or _TAKEN in node.stash or _runs_in_codspeed(request.config):
            return
        # A broken measurement, or one on a machine that was not fit for it, is nothing to compare with.
        if timing.conditions.tripped or any(metric.invalid or metric.above_limit for metric in metrics.values()):
            return
        try:
            self._publish(request, timing, metrics)
        except Exception as error:
            node.warn(
                pytest.PytestWarning(
                    f"{node.nodeid} is no benchmark, since pytest-benchmark raised {type(error).__name__}: {error}; "
                    "expected one that goes with this pytest: upgrade pytest-benchmark, or pass -p no:benchmark"
                )
            )

    def _publish(self, request: pytest.FixtureRequest, timing: Timing, metrics: Mapping[str, Metric]) -> None:
        node = request.node
        clock = ReplayClock(timing.time.clock)
        marker = node.get_closest_marker(_FIXTURE)
        group = f"{timing.world_size} rank{'s' if timing.world_size > 1 else ''}"
        settings = {"group": group, **({} if marker is None else marker.kwargs), "timer": clock}
        # The fixture reads the closest marker when it is set up, which is now.
        node.add_marker(pytest.mark.benchmark(**settings), append=False)
        benchmark: _Fixture = request.getfixturevalue(_FIXTURE)
        benchmark.extra_info.update(
            hardware_key=self._machine.key,
            world_size=timing.world_size,
            clock=timing.time.clock,
            metrics={name: _make_figure(metric) for name, metric in metrics.items()},
        )
        self._published[node.nodeid] = benchmark.extra_info
        _replay(benchmark, clock, timing.samples)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Lets --benchmark-only and --benchmark-skip take perf tests for the benchmarks that they are."""
        # pytest-benchmark knows benchmarks by the names of their fixtures. Names that stayed would be set up.
        counted = [item for item in items if self._counts(item)]
        for item in counted:
            item.fixturenames.append(_FIXTURE)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for item in counted:
                item.fixturenames.remove(_FIXTURE)  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_benchmark_group_stats(self) -> Generator[None, _Groups, _Groups]:
        """Leaves perf tests out of the table, which is wide and long, and says again what our own summary says."""
        groups = yield
        if self._table:
            return groups
        kept = [(name, [row for row in rows if row["fullname"] not in self._published]) for name, rows in groups]
        return [(name, rows) for name, rows in kept if rows]

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        """Takes note of who has the fixture, also where a body asks for it by name."""
        if fixturedef.argname == _FIXTURE:
            request.node.stash[_TAKEN] = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the verdicts once they have fallen, however late in the run."""
        extra_info = self._published.get(report.nodeid)
        if extra_info is not None:
            for verdict in read_verdicts(report) or ():
                extra_info["metrics"].setdefault(verdict.metric_name, {}).update(_make_judgement(verdict))

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Adds the GPUs; drops what differs between two runs of one machine."""
        if not self._machine.gpus:
            return
        # pytest-benchmark warns of any difference, and the clock rate of the moment always is one. For the same
        # reason versions that only the ranks can tell are not here: --benchmark-compare asks before there are any.
        for changing in ("hz_actual", "hz_actual_friendly"):
            machine_info.get("cpu", {}).pop(changing, None)
        machine_info[SECTION] = {
            "hardware_key": self._machine.key,
            "gpus": sorted({gpu.name for gpu in self._machine.gpus}),
            "gpu_count": len(self._machine.gpus),
            **self._machine.software,
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Adds the versions that the ranks ran with: NCCL, CUDA, torch."""
        if self._published:
            output_json[SECTION] = {"hardware_key": self._machine.key, "software": dict(self._software())}

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> None:
        """Refuses to compare metrics of two kinds of hardware.

        Raises:
            pytest.UsageError: both runs used GPUs, and other ones.
        """
        here, there = (_read_key(info) for info in (machine_info, compared_benchmark.get("machine_info", {})))
        if here is not None and there is not None and here != there:
            raise pytest.UsageError(
                f"--benchmark-compare: the saved run of {compared_benchmark.get('datetime', 'unknown time')} is of "
                f"{there!r}, expected {here!r}, which this run uses: name a run of this hardware "
                "(--benchmark-compare=NUM), or give each hardware a --benchmark-storage of its own"
            )

    def _counts(self, item: pytest.Item) -> bool:
        config = item.config
        asked = config.getoption("benchmark_only", False) or config.getoption("benchmark_skip", False)
        names = getattr(item, "fixturenames", None)
        return bool(asked) and self._is_perf(item) and not self._smoke and names is not None and _FIXTURE not in names


def is_asked_for(config: pytest.Config) -> bool:
    """Return whether the user has given an option of pytest-benchmark."""
    given = [*config.invocation_params.args, *config.getini("addopts")]
    given += shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return any(str(argument).startswith("--benchmark") for argument in given)


def _runs_in_codspeed(config: pytest.Config) -> bool:
    # It puts a fixture of its own in the place of pytest-benchmark's.
    plugin = config.pluginmanager.get_plugin("codspeed_plugin")
    return bool(getattr(plugin, "is_codspeed_enabled", False))


def _replay(benchmark: _Fixture, clock: ReplayClock, samples: Sequence[float]) -> None:
    rest = iter(samples)
    # Where benchmarks are disabled, as under xdist, this runs one round and keeps nothing. --benchmark-cprofile
    # runs another one.
    benchmark.pedantic(
        lambda: clock.advance(next(rest, 0.0)), setup=clock.reset, rounds=len(samples), iterations=1, warmup_rounds=0
    )


def _read_key(machine_info: Mapping[str, Any]) -> str | None:
    ours = machine_info.get(SECTION)
    return ours.get("hardware_key") if isinstance(ours, dict) else None


def _make_figure(metric: Metric) -> dict[str, Any]:
    kept = ("value", "unit", "better", "q1", "q3", "limit", "clock")
    return {name: getattr(metric, name) for name in kept}


def _make_judgement(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.outcome.value,
        "baseline": None if verdict.baseline is None else verdict.baseline.center,
        "change": verdict.change,
        "bound": verdict.bound,
    }
