"""What a test's module defines is found by its name on ranks, as the standard pickle looks for it."""

import enum
import importlib
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import importable, payload
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.module_state import ModuleState
from pytest_gpuperf.ranks.pool import Pool
from tests.ranks.conftest import Call
from tests.whole_run import environment


@dataclass
class Sample:
    number: int

    def doubled(self) -> int:
        return 2 * self.number


class Colour(enum.Enum):
    RED = 1


def test_ranks_exchange_objects_of_the_tests_module(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> list[Any]:
        found: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(found, (Sample(ctx.rank), Colour.RED))
        assert all(type(sample) is Sample and colour is Colour.RED for sample, colour in found)
        assert [sample.doubled() for sample, _ in found] == [0, 2]
        return found

    for _ in range(3):
        assert call(program) == [[(Sample(0), Colour.RED), (Sample(1), Colour.RED)]] * 2
    assert pool.settle() == []


def test_an_object_of_the_tests_module_can_be_saved(call: Call) -> None:
    def program(ctx: Context) -> Sample:
        file = io.BytesIO()
        torch.save(Sample(ctx.rank), file)
        file.seek(0)
        loaded: Sample = torch.load(file, weights_only=False)
        assert type(loaded) is Sample
        return loaded

    assert call(program) == [Sample(0), Sample(1)]


FILE = """
class Point:
    x = 0

class Line:
    pass

def double(point):
    return 2 * point.x

def make():
    return Point()
"""
SCALED = (
    FILE
    + """
FACTOR = 1

def double(number):
    return FACTOR * number
"""
)
ELSEWHERE = """
import pickle, sys
from pytest_gpuperf.ranks import importable, payload
from pytest_gpuperf.ranks.channel import Parcel
importable.install()
before = set(sys.modules)
function, args = payload.loads(Parcel(sys.stdin.buffer.read()))
assert not (set(sys.modules) - before) & {"shapes", "nowhere", "nowhere.shapes"}
sys.stdout.buffer.write(payload.dumps(function(*args)).stream)
"""


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that only this process has imported."""
    (tmp_path / "shapes.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    import shapes  # type: ignore[import-not-found]

    yield shapes
    sys.modules.pop("shapes", None)


def elsewhere(program: Any, *args: Any, path: Path | None, by_value: ModuleType) -> Any:
    """What a process returns that may find the module on its path."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=payload.dumps((program, args), [by_value, sys.modules[__name__]]).stream,
        env=environment(PYTHONPATH=str(path)) if path else environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        check=True,
    )
    return pickle.loads(done.stdout)


def found_there(point: type, name: str) -> tuple[bool, list[str]]:
    import importlib

    module = importlib.import_module(name)
    same = pickle.loads(pickle.dumps(point())).__class__ is point is module.Point
    made = "make" not in vars(module) or type(module.make()) is point
    return same and made, sorted(key for key in vars(module) if not key.startswith("__"))


def test_a_module_that_is_found_has_the_programs_classes_and_the_rest_of_its_own(
    tmp_path: Path, shapes: ModuleType
) -> None:
    found = elsewhere(found_there, shapes.Point, "shapes", path=tmp_path, by_value=shapes)
    assert found == (True, ["Line", "Point", "double", "make"])


def test_a_module_that_is_not_found_has_the_programs_classes_only(shapes: ModuleType) -> None:
    assert elsewhere(found_there, shapes.Point, "shapes", path=None, by_value=shapes) == (True, ["Point"])


def test_the_packages_of_a_module_that_is_not_found_are_there_too(shapes: ModuleType, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "nowhere.shapes", shapes)
    shapes.__name__ = shapes.Point.__module__ = "nowhere.shapes"
    found = elsewhere(found_there, shapes.Point, "nowhere.shapes", path=None, by_value=shapes)
    assert found == (True, ["Point"])


def the_loader(point: type) -> tuple[str, str]:
    import shapes

    return type(shapes.__loader__).__name__, type(shapes.__spec__.loader).__name__


def test_a_module_keeps_its_own_loader(tmp_path: Path, shapes: ModuleType) -> None:
    found = elsewhere(the_loader, shapes.Point, path=tmp_path, by_value=shapes)
    assert found == ("SourceFileLoader", "SourceFileLoader")


def arrives_later(point: bytes) -> tuple[bool, list[str], list[str]]:
    state = ModuleState()
    import shapes

    own = shapes.Point
    state.note()
    arrived = payload.loads(Parcel(point))
    state.note()
    shapes.make = None
    same = shapes.Point is arrived is not own
    importable.begin({})
    return same, state.list_changes(), [name for name in ("make", "Point") if getattr(shapes, name) is None]


def test_a_class_that_arrives_after_its_module_was_imported_replaces_its_own_for_the_run(
    tmp_path: Path, shapes: ModuleType
) -> None:
    point = payload.dumps(shapes.Point, [shapes]).stream
    assert elsewhere(arrives_later, point, path=tmp_path, by_value=shapes) == (True, [], [])


def functions_by_name(double: Any) -> tuple[bool, bool, int]:
    import shapes

    shapes.FACTOR = 3
    return pickle.loads(pickle.dumps(double)) is shapes.double is double, shapes.make() is not None, double(2)


@pytest.mark.parametrize("found", [True, False])
def test_a_function_arrives_in_the_module_that_has_its_name(tmp_path: Path, shapes: ModuleType, found: bool) -> None:
    (tmp_path / "shapes.py").write_text(SCALED)
    importlib.reload(shapes)
    args = (shapes.double, shapes.make)  # the second one is there by its file, or because it was sent
    path = tmp_path if found else None
    assert elsewhere(lambda *both: functions_by_name(both[0]), *args, path=path, by_value=shapes) == (True, True, 6)


def test_what_comes_back_changes_nothing_here(shapes: ModuleType) -> None:
    before = dict(vars(shapes))
    copied = payload.loads(payload.dumps((shapes.double, shapes), [shapes]))
    assert copied[0] is not shapes.double
    assert vars(shapes) == before


def test_classes_that_their_module_does_not_name_are_left_alone(shapes: ModuleType) -> None:
    named = importable.is_named(shapes.Point)
    shapes.Point = None  # type: ignore[attr-defined]
    assert named
    assert not importable.is_named(shapes.Line.__class__("Other", (), {"__module__": "shapes"}))
    assert not importable.is_named(type("Other", (), {"__module__": "never_imported"}))
    assert not importable.is_named(type("Other", (), {"__module__": "__main__"}))
