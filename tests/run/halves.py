"""The judging and the recording half of a run, as a session wires them, without tests."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pluggy
import pytest

from pytest_gpuperf import hooks
from pytest_gpuperf.baselines.recorded import Saved
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.run.recording import Recording
from pytest_gpuperf.run.session import Session, this_machine
from pytest_gpuperf.verdicts.verdict import Verdict


class Halves:
    """What happens to figures in a run with these options on this machine."""

    def __init__(self, options: Options, machine: Machine, rootpath: Path) -> None:
        plugins = pluggy.PluginManager("pytest")  # no feature is there
        plugins.add_hookspecs(hooks)
        config = SimpleNamespace(
            rootpath=rootpath,
            invocation_params=SimpleNamespace(dir=rootpath),
            getoption=lambda name, default=None: default,
            hook=plugins.hook,
            stash=pytest.Stash(),
        )
        self.session = Session.of(cast(Any, config), options, this_machine(cast(Any, config), options, machine))

    @property
    def recorded(self) -> Recording:
        assert self.session.recording is not None
        return self.session.recording

    def load(self, tests: list[str]) -> None:
        if self.session.launch.measured:
            self.session.load_baselines(tests)

    def begin_launch(self, number: int, software: Mapping[str, str]) -> None:
        self.session.launch.begin(number, software)

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return self.session.concluding._concluded(test, body_hash, metrics)

    def unjudged(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return self.session.concluding._shown(test, metrics)

    def ended(self, test: str, number: int, problem: str) -> None:
        self.recorded.ended(test, number, problem)

    def left_out(self) -> dict[str, str]:
        return self.recorded.left_out()

    def closing_lines(self) -> list[str]:
        return self.session.summary.lines([])

    def save(self, *, interrupted: bool = False) -> Saved | None:
        return None if self.session.recording is None else self.recorded.save(interrupted=interrupted)
