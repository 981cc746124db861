"""What is relied on of cloudpickle's private names."""

import importlib.util
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_gpuperf.ranks import cloudpickle_internals


def names_a_submodule() -> object:
    return importlib.util.find_spec


def test_the_finder_is_there_and_finds_what_the_code_names() -> None:
    finder = cloudpickle_internals.read_submodule_finder()
    assert finder is not None
    assert importlib.util in finder(names_a_submodule.__code__, [importlib])


def test_cloudpickle_asks_the_finder_that_was_put_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    original = cloudpickle_internals.read_submodule_finder()
    assert original is not None
    asked: list[CodeType] = []

    def finder(code: CodeType, dependencies: Iterable[Any]) -> list[ModuleType]:
        asked.append(code)
        return original(code, dependencies)

    def local() -> None: ...

    cloudpickle_internals.replace_submodule_finder(finder)
    try:
        cloudpickle.dumps(local)
    finally:
        cloudpickle_internals.replace_submodule_finder(original)
    assert asked == [local.__code__]
    assert cloudpickle_internals.read_submodule_finder() is original


def test_a_cloudpickle_without_it_works_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cloudpickle.cloudpickle, "_find_imported_submodules")
    assert cloudpickle_internals.read_submodule_finder() is None
