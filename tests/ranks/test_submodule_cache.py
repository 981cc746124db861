"""What cloudpickle is spared to look for, function by function, is what it would have found."""

import gc
import importlib.util
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
import torch
from cloudpickle import cloudpickle as internals

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import payload
from tests.ranks.conftest import Call


def names_submodules() -> object:
    return torch.nn.functional.relu, torch.distributed.tensor, importlib.util.find_spec


def test_the_submodule_cache_changes_no_pickle() -> None:
    closed_over = importlib
    functions = [lambda: names_submodules(), lambda: closed_over.util, lambda: 1]
    here = [sys.modules[__name__]]
    plain = [payload.dumps(function, here) for function in functions]
    cache = payload.SubmoduleCache()
    for _ in range(2):
        with cache.used():
            assert [payload.dumps(function, here) for function in functions] == plain


def test_the_submodule_cache_sees_what_is_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "late_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {}
    exec("import late_package\ndef function():\n    return late_package.late.ANSWER", space)
    cache = payload.SubmoduleCache()
    with cache.used():
        assert b"late_package.late" not in payload.dumps(space["function"]).stream
        importlib.import_module("late_package.late")
        assert b"late_package.late" in payload.dumps(space["function"]).stream


def test_the_submodule_cache_asks_again_only_if_a_submodule_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = internals._find_imported_submodules

    def find(code: CodeType, dependencies: Any) -> Any:
        asked.append(code.co_name)
        return original(code, dependencies)

    monkeypatch.setattr(internals, "_find_imported_submodules", find)
    for name in ("of_no_package", "another_one"):
        (tmp_path / f"{name}.py").write_text("")
    package = tmp_path / "grown_package"
    package.mkdir()
    for name in ("__init__", "part"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {}
    exec("import grown_package\ndef function():\n    return grown_package.part", space)
    cache = payload.SubmoduleCache()
    times = []
    with cache.used():
        for change in (
            lambda: None,
            lambda: importlib.import_module("of_no_package"),
            lambda: importlib.import_module("grown_package.part"),
            lambda: (sys.modules.pop("of_no_package"), importlib.import_module("another_one")),
        ):
            change()
            found = b"grown_package.part" in payload.dumps(space["function"]).stream
            times.append((asked.count("function"), found))
    assert times == [(1, False), (1, False), (2, True), (3, True)]


def test_the_submodule_cache_gives_cloudpickle_its_own_function_back() -> None:
    original = internals._find_imported_submodules
    cache = payload.SubmoduleCache()
    with cache.used():
        assert internals._find_imported_submodules is not original
    assert internals._find_imported_submodules is original
    with pytest.raises(TypeError, match="lock"), cache.used():
        payload.dumps(threading.Lock())
    assert internals._find_imported_submodules is original


def test_a_cloudpickle_without_that_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(internals, "_find_imported_submodules")
    with payload.SubmoduleCache().used():
        assert not hasattr(internals, "_find_imported_submodules")


class Sum(NamedTuple):
    """Travels back by value, as its module came."""

    left: int
    right: int

    def total(self) -> int:
        """What a walk through the modules is for."""
        return self.left + self.right


def walks(ctx: Context) -> int:
    """What the rank has remembered so far."""
    (cache,) = (found for found in gc.get_objects() if isinstance(found, payload.SubmoduleCache))
    return len(cache._found)


def test_ranks_remember_too(call: Call) -> None:
    def summed(ctx: Context) -> Sum:
        return Sum(ctx.rank, 1)

    assert call(walks) == [0, 0]
    assert [result.total() for result in call(summed)] == [1, 2]
    once = call(walks)
    assert min(once) > 0
    call(summed)
    assert call(walks) == once
