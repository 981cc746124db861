"""Submodules that a function's code names are looked up, and are those that cloudpickle finds by a walk."""

import importlib.util
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed.tensor.parallel as tp
from cloudpickle import cloudpickle as internals

from pytest_gpuperf.ranks import payload


class Looks:
    """Whether cloudpickle has the function, each time that one is pickled."""

    seen: ClassVar[list[bool]] = []

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.seen.append(hasattr(internals, "_find_imported_submodules"))
        return Looks, ()


def names_submodules() -> object:
    return torch.nn.functional.relu, torch.distributed.tensor.parallel, importlib.util.find_spec, sys.path


def names_them_out_of_order() -> object:
    functional = importlib.import_module("torch.nn.functional")
    return functional, torch.nn, tp.style, torch.functional


def names_none() -> int:
    return len(names_none.__name__)


@pytest.mark.parametrize("function", [names_submodules, names_them_out_of_order, names_none])
def test_they_are_those_that_cloudpickle_finds(function: Any) -> None:
    dependencies = [torch, importlib, sys, tp, names_none, 1]
    walked = internals._find_imported_submodules(function.__code__, dependencies)
    looked_up = payload.list_named_submodules(function.__code__, dependencies)
    assert sorted(module.__name__ for module in looked_up) == sorted(module.__name__ for module in walked)
    assert bool(walked) == (function is not names_none)


def test_what_is_imported_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "late_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {}
    exec("import late_package\ndef function():\n    return late_package.late.ANSWER", space)
    assert b"late_package.late" not in payload.dumps(space["function"]).stream
    importlib.import_module("late_package.late")
    assert b"late_package.late" in payload.dumps(space["function"]).stream


def test_cloudpickle_walks_for_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[CodeType] = []

    def walk(code: CodeType, dependencies: Any) -> list[Any]:
        walks.append(code)
        return []

    monkeypatch.setattr(internals, "_find_imported_submodules", walk)
    payload.dumps(names_submodules, [sys.modules[__name__]])
    assert walks == []


def test_cloudpickle_gets_its_own_function_back() -> None:
    original = internals._find_imported_submodules
    assert original.__module__ == internals.__name__
    payload.dumps(names_submodules, [sys.modules[__name__]])
    assert internals._find_imported_submodules is original
    with pytest.raises(TypeError, match="lock"):
        payload.dumps(threading.Lock())
    assert internals._find_imported_submodules is original


def test_cloudpickle_gets_it_back_from_two_threads_at_once() -> None:
    original = internals._find_imported_submodules
    first, second = payload.submodules_looked_up(), payload.submodules_looked_up()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert internals._find_imported_submodules is original


def test_a_cloudpickle_without_that_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Looks.seen.clear()
    payload.dumps(Looks())
    monkeypatch.delattr(internals, "_find_imported_submodules")
    payload.dumps(Looks())
    assert Looks.seen == [True, False]
