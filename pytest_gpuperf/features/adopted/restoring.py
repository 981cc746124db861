"""Puts back what a test of an adopted class changed in its process: written for fresh processes, it never did.

Runs in rank processes. What cannot be put back here is found after the test like any other test's leavings.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

from pytest_gpuperf.ranks.module_state import owners

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
"""Types of values that can be put back by assignment, because nobody can change the value itself."""
_LIBRARIES = frozenset({"accelerate", "deepspeed", "megatron"})
"""Libraries whose modules keep the groups and settings of one program."""
_FOUNDATIONS = frozenset({"builtins", "abc", "typing", "unittest"})
_MISSING = object()
_ENVIRON = "__gpuperf_environ__"
"""A module's attribute that holds the environment in which it was imported."""


@contextlib.contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Within the block the process has these variables; after it, those that it had before.

    Args:
        changes: by name; None unsets a variable.
    """
    before = dict(os.environ)
    try:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        yield
    finally:
        if before != dict(os.environ):
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """After the block, settings of torch and of the process are what they were before it."""
    folder, argv = os.getcwd(), list(sys.argv)
    dtype, device, grad = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    threads, streams = torch.get_num_threads(), (sys.stdout, sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.argv[:] = argv
        with contextlib.suppress(OSError):
            os.chdir(folder)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_grad_enabled(grad)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def plain_state(cls: type) -> Iterator[None]:
    """After the block, numbers and texts in the modules that define the class are what they were before it.

    These are counters and flags, of the modules themselves and of their classes: each process of the class's own
    harness begins with those of a fresh import.
    """
    owners = list(_iterate_owners(cls))
    before = [(owner, _read_plain(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, values in before:
            _put_back(owner, values)


@contextlib.contextmanager
def bindings(cls: type) -> Iterator[None]:
    """After the block, the class and the modules of libraries that keep one program's state are as they were before it.

    Their attributes are bound to the same objects, and dicts, lists and sets among these have the same content. The
    class is among them because harnesses keep a rank's group in it.
    """
    before = [(owner, _bound(owner)) for owner in (cls, *_iterate_library_owners())]
    try:
        yield
    finally:
        for owner, bound in before:
            _bind_again(owner, bound)


def read_variables_again(cls: type) -> None:
    """Gives constants that were read from the environment, as in ``BACKEND = os.environ["BACKEND"]``, their new values.

    Each process of the class's own harness imports the modules anew, in the environment of its test. Here a constant
    follows its variable if it has the variable's name, and had its value when the module was imported.
    """
    for module in _iterate_modules(cls):
        then = vars(module).setdefault(_ENVIRON, dict(os.environ))
        for name, value in list(vars(module).items()):
            now = os.environ.get(name)
            if isinstance(value, str) and now is not None and then.get(name) == value != now:
                setattr(module, name, now)


def _iterate_modules(cls: type) -> Iterator[ModuleType]:
    names = {base.__module__ for base in cls.__mro__ if base.__module__.partition(".")[0] not in _FOUNDATIONS}
    yield from (sys.modules[name] for name in sorted(names) if name in sys.modules)


def _iterate_owners(cls: type) -> Iterator[Any]:
    for module in _iterate_modules(cls):
        yield module
        yield from _iterate_classes(module, module.__name__)


def _iterate_classes(owner: Any, module: str) -> Iterator[type]:
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module and not _is_lasting(value):
            yield value
            if value is not owner:
                yield from (one for one in _list_nested(value, module))


def _list_nested(owner: type, module: str) -> Iterator[type]:
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module and not _is_lasting(value):
            yield value


def _is_lasting(kind: type) -> bool:
    return issubclass(kind, tuple) or type(kind) is not type  # an enum's members, a namedtuple's fields


def _read_plain(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if type(value) in _PLAIN and not name.startswith("__")}


def _put_back(owner: Any, values: Mapping[str, Any]) -> None:
    now = vars(owner)
    for name, value in values.items():
        if now.get(name, _MISSING) is not value:
            setattr(owner, name, value)
    for name in _read_plain(owner).keys() - values.keys():
        delattr(owner, name)


def _iterate_library_owners() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _LIBRARIES and type(module) is ModuleType:
            yield from (owner for _, owner in owners(name, module))


def _bound(owner: Any) -> dict[str, tuple[Any, Any]]:
    return {
        name: (value, value.copy() if type(value) in (dict, list, set) else None)
        for name, value in vars(owner).items()
        if not name.startswith("__")
    }


def _bind_again(owner: Any, bound: Mapping[str, tuple[Any, Any]]) -> None:
    now = vars(owner)
    for name, (value, content) in bound.items():
        if now.get(name, _MISSING) is not value:
            setattr(owner, name, value)
        if content is not None:
            _fill_again(value, content)
    for name in [name for name in now if not name.startswith("__") and name not in bound]:
        # What a module imports when it is first asked stays, as it does in sys.modules.
        if isinstance(owner, type) or not isinstance(now[name], ModuleType | FunctionType | type):
            delattr(owner, name)


def _fill_again(value: Any, content: Any) -> None:
    # Compared by identity: an element may be a tensor, which has no single truth.
    if isinstance(value, list):
        value[:] = content
    elif isinstance(value, set):
        value ^= value ^ content
    elif len(value) != len(content) or any(value.get(key, _MISSING) is not content[key] for key in content):
        value.clear()
        value.update(content)
