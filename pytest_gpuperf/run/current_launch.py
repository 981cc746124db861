"""The launch that perf tests measure now: fresh processes and communicators, and what they run with."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pytest_gpuperf.baselines.provenance import is_dirty, read_commit, read_time, select_settings
from pytest_gpuperf.baselines.recorded import Launch
from pytest_gpuperf.baselines.schema import Baselines, LaunchInfo
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.site import Site


class CurrentLaunch:
    """Describes each launch when it begins, and notifies what keeps its metrics."""

    def __init__(
        self,
        machine: Machine,
        site: Callable[[], Site],
        rootpath: Path,
        begins: Callable[[Launch], None],
        *,
        measured: bool,
        hash_seed: str = "",
    ) -> None:
        """No launch has begun.

        Args:
            machine: of the run.
            site: where it runs, and how that is set up now.
            rootpath: of the checkout whose commit is measured.
            begins: is called with each launch, before anything is measured in it.
            measured: whether metrics of the run say how fast something is.
            hash_seed: of the ranks; empty if it is unknown.
        """
        self._machine = machine
        self._site = site
        self._rootpath = rootpath
        self._begins = begins
        self._hash_seed = hash_seed
        self._launch: Launch | None = None
        self._ended = False
        self.measured = measured
        """Whether metrics of the run say how fast something is."""
        self.tests: Collection[str] | None = None
        """Node ids of the tests that the next launch repeats; None for those of the run."""
        self._by_host: set[str] = set()

    @property
    def number(self) -> int | None:
        """1 and up; None before the first launch, and when one has ended early."""
        return None if self._launch is None or self._ended else self._launch.number

    @property
    def began(self) -> bool:
        """Whether a launch has begun in this process; it may have ended since."""
        return self._launch is not None

    @property
    def renews(self) -> bool:
        """Whether the next launch needs a new parent process, because the host bounds a metric of its tests.

        What the host does depends on the addresses of the process that ranks are forked from.
        """
        bound = self._by_host if self.tests is None else self._by_host.intersection(self.tests)
        return not self._machine.gpus or bool(bound)

    def note(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Takes note of whether the host bounds a metric of a test.

        Args:
            test: node id.
            metrics: by name.
        """
        if any(metric.host_bound or metric.clock == "host" for metric in metrics.values()):
            self._by_host.add(test)

    @property
    def info(self) -> LaunchInfo | None:
        """When and where it began, and with what; None before the first launch."""
        return None if self._launch is None else self._launch.info

    @property
    def software(self) -> Mapping[str, str]:
        """Versions that the launch runs with; empty before the first launch."""
        return {} if self._launch is None else self._launch.info.environment

    def begin(self, number: int, software: Mapping[str, str]) -> None:
        """What is measured from now on belongs to a launch of this number, with these versions."""
        site = self._site()
        info = LaunchInfo(
            at=read_time(),
            commit=read_commit(self._rootpath),
            host=site.host,
            environment={**software, **site.setup, **select_settings(os.environ)},
            gpus=site.gpus,
            dirty=is_dirty(self._rootpath),
            nodes=site.nodes,
            hash_seed=self._hash_seed,
        )
        self._ended = False
        self._launch = Launch(number, f"{info.at}-{number}-{uuid.uuid4().hex[:6]}", info)
        self._begins(self._launch)

    def end(self) -> None:
        """The launch is over, though tests of its number may come: its processes are gone."""
        self._ended = True

    def candidate(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> Baselines | None:
        """What a test measured in this launch, as baselines; None for what could never be any."""
        unfit = any(metric.invalid or metric.above_limit for metric in metrics.values())
        if not (self.measured and self._machine.gpus) or self._launch is None or unfit:
            return None
        return self._launch.candidate(self._machine.key, self._machine.match, test, body_hash, metrics)
