"""Arms that launch nothing: files tell what their figures come to, as in scripted_figures.py."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing import racing, wiring
from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.repository import CannotRace

HASH = "body"


class ScriptedArm:
    """One arm; each launch takes the next figure of each test, the last one for ever."""

    def __init__(self, folder: Path, name: str, suffix: str, variables: Mapping[str, str] = {}) -> None:
        self._folder = folder
        self._variables = variables
        self.name = name
        self._suffix = suffix
        self.seconds = 0.0

    def launch(self, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        with (self._folder / "launches").open("a") as log:
            print(self.name, *tests, file=log)
        return {test: self._measured(test) for test in tests}

    def start(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""

    def _measured(self, test: str) -> Measured:
        name = test.partition("::test_")[2].partition("[")[0]
        path = self._folder / f"{name}.{self._suffix}.json"
        figures = json.loads(path.read_text()) if path.exists() else [100e9]
        path.write_text(json.dumps(figures[1:] or figures))
        match figures[0]:
            case "interrupt":
                raise KeyboardInterrupt
            case "gone":
                raise CannotRace("the old code took more than 5 s: give it more")
            case "other":
                return Measured({"time": Metric(1.0, "s", "lower")}, HASH)
            case "unit":
                return Measured({"busbw": Metric(1.0, "s", "lower", clock="host")}, HASH)
            case "body":
                return Measured({"busbw": Metric(1.0, "B/s", "higher", clock="host")}, "another")
            case str(problem):
                return Measured(problem=problem)
            case value:
                figures = {"busbw": Metric(value, "B/s", "higher", limit=450e9, clock="host")}
                return Measured(figures, HASH, self._variables)


class ScriptedOpener:
    """Opens such arms; the file ``no_race`` has why it cannot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def present(self, python: str | None = None, variables: Mapping[str, str] = {}) -> ScriptedArm:
        if variables:
            name = f"undo:{'+'.join(variables)}"
            return ScriptedArm(self._folder, name, "+".join(variables), variables)
        return ScriptedArm(self._folder, *("present", "present") if python is None else (python, "old"))

    def of(self, commit: str, python: str | None = None, build: str | None = None) -> ScriptedArm:
        if (why := self._folder / "no_race").exists():
            raise CannotRace(why.read_text())
        return ScriptedArm(self._folder, commit[:7], "old")

    def close(self) -> None:
        with (self._folder / "launches").open("a") as log:
            print("closed", file=log)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Has all races of runs in this process be of such arms."""
    monkeypatch.setattr(wiring, "Arms", lambda *_: ScriptedOpener(folder))
    here = ScriptedArm(folder, "here", "present")
    monkeypatch.setattr(wiring, "Relaunching", lambda *_: here)
    monkeypatch.setattr(racing, "hash_body", lambda item: HASH)
    monkeypatch.setattr(racing.Racing, "require", lambda self: None)


class _Repeating:
    """Opens the present code alone, whose figures are those of the first launch again."""

    name = "present"
    seconds = 0.0

    def __init__(self, figures: Callable[[], Mapping[str, Metric]]) -> None:
        self._figures = figures

    def present(self, python: str | None = None) -> "_Repeating":
        return self

    def of(self, commit: str, python: str | None = None, build: str | None = None) -> "_Repeating":
        raise CannotRace("there is no git here: install it")

    def start(self) -> None:
        """Nothing runs."""

    def launch(self, tests: Sequence[str], limit: float) -> Mapping[str, Measured]:
        return {test: Measured(self._figures(), HASH) for test in tests}

    def close(self) -> None:
        """Nothing runs."""


def repeat(monkeypatch: pytest.MonkeyPatch, figures: Callable[[], Mapping[str, Metric]]) -> None:
    """Has later launches come to these figures, and nothing race."""
    repeating = _Repeating(figures)
    monkeypatch.setattr(wiring, "Arms", lambda *_: repeating)
    monkeypatch.setattr(wiring, "Relaunching", lambda *_: repeating)


def script(project: pytest.Pytester, arm: str, **of_test: Sequence[float | str]) -> None:
    """What the tests are going to measure in an arm, ``present`` or ``old``."""
    for name, values in of_test.items():
        (project.path / f"{name}.{arm}.json").write_text(json.dumps(values))


def launched(project: pytest.Pytester) -> list[str]:
    """The launches since the last call, a line each: the arm, and the letters of the tests."""
    path = project.path / "launches"
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    told = []
    for line in lines:
        arm, *tests = line.split(" ")
        letters = "".join(test.partition("::test_")[2].partition("[")[0] for test in tests)
        told.append(f"{arm} {letters}".strip())
    return told
