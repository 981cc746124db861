"""What programs leave in modules, as a rank finds it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.ranks.module_state import ModuleState

SOURCE = """
import json
COUNT = 0
NAMES = []
class Single:
    instance = None
class Shared:
    _shared_state = {}
    def __init__(self):
        self.__dict__ = self._shared_state
def function(): pass
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleState]:
    (tmp_path / "left_here.py").write_text(SOURCE)
    (tmp_path / "left_lazily.py").write_text("def __getattr__(name):\n    globals()[name] = 1\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield ModuleState()
    for name in ("left_here", "left_lazily"):
        sys.modules.pop(name, None)


def imported() -> Any:
    import left_here  # type: ignore[import-not-found]

    return left_here


def test_a_module_that_was_left_alone_is_no_change(state: ModuleState) -> None:
    module = imported()
    state.note()
    module.function()
    assert state.list_changes() == []


def test_rebound_new_and_removed_names_are_changes(state: ModuleState) -> None:
    module = imported()
    state.note()
    module.COUNT += 1000
    module.NEW = object()
    del module.NAMES
    assert state.list_changes() == ["attributes of modules: left_here.COUNT, left_here.NEW, left_here.NAMES"]


def test_an_attribute_of_a_class_is_a_change(state: ModuleState) -> None:
    module = imported()
    state.note()
    module.Single.instance = module.Single()
    assert state.list_changes() == ["attributes of modules: left_here.Single.instance"]


@pytest.mark.parametrize("known", [True, False])
def test_a_shared_state_that_was_filled_is_a_change_even_if_the_program_imported_it(
    state: ModuleState, known: bool
) -> None:
    if known:
        imported()
        state.note()
    imported().Shared().value = 1
    assert state.list_changes() == ["attributes of modules: left_here.Shared._shared_state"]


def test_a_module_that_comes_as_another_one_goes_is_looked_at(state: ModuleState) -> None:
    import left_lazily  # type: ignore[import-not-found]  # noqa: F401

    state.note()
    assert state.list_changes() == []
    del sys.modules["left_lazily"]
    imported().Shared().value = 1
    assert state.list_changes() == ["attributes of modules: left_here.Shared._shared_state"]


def test_an_equal_object_is_a_change(state: ModuleState) -> None:
    module = imported()
    module.LARGE = int("1000000")
    state.note()
    module.LARGE = int("1000000")
    assert state.list_changes() == ["attributes of modules: left_here.LARGE"]


def test_another_name_for_an_equal_object_is_a_change(state: ModuleState) -> None:
    module = imported()
    module.left, module.last = None, None
    state.note()
    del module.last
    module.renamed = None
    assert state.list_changes() == ["attributes of modules: left_here.renamed, left_here.last"]


def test_a_name_that_is_bound_anew_to_the_same_object_is_no_change(state: ModuleState) -> None:
    module = imported()
    state.note()
    names = module.NAMES
    del module.NAMES
    module.NAMES = names
    module.__doc__ = "What Python itself keeps there is not looked at."
    assert state.list_changes() == []


def test_what_a_module_imports_lazily_is_no_change(state: ModuleState) -> None:
    module = imported()
    import left_lazily

    state.note()
    assert left_lazily.anything == 1
    module.json, module.Path, module.loads = sys, Path, imported
    assert state.list_changes() == []


def test_many_changes_are_counted(state: ModuleState) -> None:
    module = imported()
    state.note()
    for index in range(7):
        setattr(module, f"new_{index}", index)
    (text,) = state.list_changes()
    assert text.endswith("left_here.new_4 and 2 more")


def test_what_came_with_the_process_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    state = ModuleState()
    state.note()
    monkeypatch.setattr(numpy, "of_a_test", 1, raising=False)
    assert state.list_changes() == []
