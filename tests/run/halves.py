"""The judging and the recording half of a run, as a session wires them, without tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf import hooks
from pytest_gpuperf.features.recording import plugin as recording
from pytest_gpuperf.features.recording.recording import Recording
from pytest_gpuperf.features.recording.saving import Saved
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.options import Options
from pytest_gpuperf.run.session import Session, make_this_machine
from pytest_gpuperf.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Said(Options):
    """What the user said, of a recording too."""

    update_baselines: bool = True
    launches: int = 2
    reason: str = "first"
    resume: bool | None = None

    def getoption(self, name: str, default: object = None) -> object:
        """As pytest's configuration has it."""
        update = "moved" if self.update_baselines else None
        said = {"update_baselines": update, "launches": self.launches, "reason": self.reason, "resume": self.resume}
        return said.get(name.removeprefix("gpuperf_"), default)


class Halves:
    """What happens to figures in a run with these options on this machine."""

    def __init__(self, options: Said, machine: Machine, rootpath: Path) -> None:
        plugins = pytest.PytestPluginManager()  # no other feature is there
        plugins.add_hookspecs(hooks)
        plugins.register(recording)
        config = SimpleNamespace(
            rootpath=rootpath,
            invocation_params=SimpleNamespace(dir=rootpath),
            option=SimpleNamespace(collectonly=False),
            getoption=options.getoption,
            hook=plugins.hook,
            pluginmanager=plugins,
            stash=pytest.Stash(),
        )
        self.session = Session.of(cast(Any, config), options, make_this_machine(cast(Any, config), options, machine))
        plugins.hook.pytest_gpuperf_begin(config=config, run=self.session)

    @property
    def recorded(self) -> Recording:
        assert isinstance(self.session.judging, Recording)
        return self.session.judging

    def load(self, tests: list[str]) -> None:
        if self.session.launch.measured:
            self.session.load_baselines(tests)

    def begin_launch(self, number: int, software: Mapping[str, str]) -> None:
        self.session.launch.begin(number, software)

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return self.session.concluding._judge_figures(test, body_hash, metrics)

    def unjudged(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return self.session.concluding._show(test, metrics)

    def ended(self, test: str, number: int, problem: str) -> None:
        self.recorded.note_ended(test, number, problem)

    def left_out(self) -> dict[str, str]:
        return self.recorded.left_out()

    def closing_lines(self) -> list[str]:
        return self.session.summary.lines([])

    def save(self, *, interrupted: bool = False) -> Saved | None:
        return self.recorded.save(interrupted=interrupted) if isinstance(self.session.judging, Recording) else None
