"""The launch that perf tests measure now: fresh processes and communicators, and what they run with."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_gpuperf.baselines.provenance import commit_of, now, settings
from pytest_gpuperf.baselines.recorded import Launch
from pytest_gpuperf.baselines.schema import Baselines, LaunchInfo
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.run.judging import Judging
from pytest_gpuperf.run.recording import Recording
from pytest_gpuperf.verdicts.controls import Control


class CurrentLaunch:
    """Describes each launch when it begins, and tells those who judge or record."""

    def __init__(
        self, machine: Machine, rootpath: Path, *, smoke: bool, judging: Judging | None, recording: Recording | None
    ) -> None:
        """No launch has begun.

        Args:
            machine: of the run.
            rootpath: of the checkout whose commit is measured.
            smoke: whether the run only tries bodies.
            judging: takes the control workload of each launch, if figures are judged.
            recording: is told of each launch, if figures are recorded.
        """
        self._machine = machine
        self._rootpath = rootpath
        self._judging = judging
        self._recording = recording
        self._controlled: set[int] = set()
        """CurrentRanks sizes whose control workload this launch has measured."""
        self._launch: Launch | None = None
        self.measured = bool(machine.gpus) and not smoke
        """Whether figures of the run say how fast the hardware is."""

    @property
    def number(self) -> int | None:
        """1 and up; None before the first launch."""
        return None if self._launch is None else self._launch.number

    @property
    def software(self) -> Mapping[str, str]:
        """Versions that the launch runs with; empty before the first launch."""
        return {} if self._launch is None else self._launch.info.environment

    def begin(self, number: int, software: Mapping[str, str]) -> None:
        """What is measured from now on belongs to a launch of this number, with these versions.

        Raises:
            JournalError: another run is recording, or the one that was interrupted ran with other versions.
        """
        info = LaunchInfo(
            at=now(),
            commit=commit_of(self._rootpath),
            host=platform.node(),
            environment={**software, **self._machine.software, **settings(os.environ)},
            gpus=self._machine.identity,
        )
        self._launch = Launch(number, f"{info.at}-{number}-{uuid.uuid4().hex[:6]}", info)
        self._controlled.clear()
        if self._recording is not None:
            self._recording.begin_launch(self._launch)

    def wants_control(self, test: str, world_size: int) -> bool:
        """Whether the control workload is to be measured before this test, on so many ranks."""
        if not self.measured:
            return False
        if self._judging is not None:
            self._judging.runs_on(test, world_size)
        wanted = world_size not in self._controlled
        self._controlled.add(world_size)
        return wanted

    def control(self, world_size: int, found: Mapping[str, Control]) -> None:
        """Takes the control workload of the launch on so many ranks, by name."""
        assert self._launch is not None
        seconds = {name: control.seconds for name, control in found.items()}
        info = replace(self._launch.info, control={**self._launch.info.control, **seconds})
        self._launch = replace(self._launch, info=info)
        if self._judging is not None:
            self._judging.judge.controls.add(world_size, found, info.environment)
        if self._recording is not None:
            self._recording.launch = self._launch

    def candidate(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> Baselines | None:
        """What a test measured in this launch, as baselines; None for what could never be any."""
        unfit = any(metric.invalid or metric.above_limit for metric in metrics.values())
        if not self.measured or self._launch is None or unfit:
            return None
        return self._launch.candidate(self._machine.key, self._machine.match, test, body_hash, metrics)
