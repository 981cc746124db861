"""What the perf tests of one run measured: judged against the baselines, or recorded as them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.verdicts import storage
from pytest_gpuperf.verdicts.baselines import (
    BaselineError,
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
    Update,
)
from pytest_gpuperf.verdicts.judge import Outcome, Verdict, judge
from pytest_gpuperf.verdicts.metric import Metric

UNKNOWN = "unknown"
_GIT_TIMEOUT = 10.0  # seconds; a repository on a hung network disk must not hang the run


@dataclass(slots=True)
class _Recorded:
    body_hash: str
    metrics: dict[str, list[tuple[str, Metric]]] = field(default_factory=dict)
    """By name: launch id and figure."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a recording went."""

    path: Path
    tests: int
    problem: str | None = None
    """Why it did not go where it should; None if it did."""


class Measurements:
    """Judges each figure when its test ends, or keeps it until the run ends."""

    def __init__(self, options: Options, machine: Machine, rootpath: Path) -> None:
        self._options = options
        self._machine = machine
        self._rootpath = rootpath
        self._baselines: Baselines | None = None
        self._launches: dict[str, LaunchInfo] = {}
        self._launch_id = ""
        self._launch: LaunchInfo | None = None
        self._recorded: dict[str, _Recorded] = {}

    @property
    def path(self) -> Path:
        """The file of this hardware's baselines."""
        return self._options.baselines / f"{self._machine.key}.json"

    @property
    def judged(self) -> bool:
        """Whether figures are held against baselines: on GPUs, and not in a smoke run."""
        return bool(self._machine.gpus) and not self._options.smoke and not self._options.update_baselines

    def software(self) -> Mapping[str, str]:
        """Versions that the current launch runs with; empty before the first."""
        return {} if self._launch is None else self._launch.environment

    def load(self) -> None:
        """Reads the baselines, also before a recording: a file that cannot be read stops the run at once.

        Raises:
            BaselineError: the file is not one of this hardware's baselines.
        """
        if self._machine.gpus and not self._options.smoke:
            self._baselines = storage.load(self.path, self._machine.key)

    def begin_launch(self, number: int, software: Mapping[str, str]) -> None:
        """What is measured from now on belongs to a launch of this number, with these versions."""
        self._launch_id = f"{_now()}-{number}-{uuid.uuid4().hex[:6]}"
        self._launch = LaunchInfo(
            at=_now(),
            commit=_commit(self._rootpath),
            host=platform.node(),
            environment={**software, **self._machine.software},
        )

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The verdicts on one test's figures; when recording, keeps them."""
        if self.judged:
            stored = None if self._baselines is None else self._baselines.tests.get(test)
            return [
                judge(
                    test,
                    name,
                    metric,
                    hardware_key=self._machine.key,
                    body_hash=body_hash,
                    baseline=stored,
                    relative_bound=self._options.tolerance,
                )
                for name, metric in metrics.items()
            ]
        outcome = Outcome.RECORDED if self._options.update_baselines else Outcome.UNJUDGED
        verdicts = []
        for name, metric in metrics.items():
            found = Outcome.BROKEN if self._broken(metric) else outcome
            verdicts.append(Verdict(test, name, metric, found, self._machine.key))
        if self._options.update_baselines and not any(v.outcome is Outcome.BROKEN for v in verdicts):
            self._keep(test, body_hash, metrics)
        return verdicts

    def unjudged(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Figures that are only shown; one above its physical limit is a broken measurement all the same."""
        return [
            Verdict(test, name, metric, Outcome.BROKEN if self._broken(metric) else Outcome.UNJUDGED, self._machine.key)
            for name, metric in metrics.items()
        ]

    def save(self) -> Saved | None:
        """Writes what was recorded; to a temporary folder where the baselines cannot be written.

        None if there is nothing to write: nothing recorded, or tests that lack a launch.
        """
        complete = {test: kept for test, kept in self._recorded.items() if self._complete(kept)}
        if not complete:
            return None
        tests = {test: _baseline(kept) for test, kept in complete.items()}
        update = Update(
            at=_now(),
            commit=_commit(self._rootpath),
            author=_git(self._rootpath, "config", "user.name"),
            reason=self._options.reason,
            tests=tuple(sorted(tests)),
            launches=self._options.launches,
        )

        def change(stored: Baselines | None) -> Baselines:
            empty = Baselines(hardware_key=self._machine.key, match=self._machine.match)
            return (stored or empty).updated(tests, self._launches, update)

        try:
            storage.update(self.path, self._machine.key, change)
        except BaselineError as error:
            folder = Path(tempfile.mkdtemp(prefix="gpuperf-"))
            elsewhere = folder / self.path.name
            storage.update(elsewhere, self._machine.key, lambda _: change(None))
            return Saved(elsewhere, len(tests), str(error))
        return Saved(self.path, len(tests))

    def incomplete(self) -> list[str]:
        """Tests that were recorded in some launches and not in all, and so are not written."""
        return sorted(test for test, kept in self._recorded.items() if not self._complete(kept))

    def _broken(self, metric: Metric) -> bool:
        return metric.above_limit and not self._options.smoke

    def _keep(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> None:
        assert self._launch is not None
        self._launches[self._launch_id] = self._launch
        kept = self._recorded.setdefault(test, _Recorded(body_hash))
        for name, metric in metrics.items():
            kept.metrics.setdefault(name, []).append((self._launch_id, metric))

    def _complete(self, kept: _Recorded) -> bool:
        return bool(kept.metrics) and all(len(figures) == self._options.launches for figures in kept.metrics.values())


def _baseline(kept: _Recorded) -> TestBaseline:
    metrics = {}
    for name, figures in kept.metrics.items():
        first = figures[0][1]
        metrics[name] = MetricBaseline(
            unit=first.unit,
            better=first.better,
            clock=first.clock,
            launches=tuple(
                LaunchFigure(launch, metric.samples, metric.value, metric.q1, metric.q3) for launch, metric in figures
            ),
        )
    return TestBaseline(body_hash=kept.body_hash, metrics=metrics)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _commit(folder: Path) -> str:
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    # A runner may work on an export without history; GitHub's tell the commit in any case.
    return os.environ.get("GITHUB_SHA", commit) if commit == UNKNOWN else commit


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=_GIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
