"""Puts back what a test of an adopted class changed in its process: written for fresh processes, it never did.

Runs in rank processes. What cannot be put back here is found after the test like any other test's leavings.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
"""Types of values that can be put back by assignment, because nobody can change the value itself."""
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
    owners = list(_owners(cls))
    before = [(owner, _plain(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, values in before:
            _put_back(owner, values)


def read_variables_again(cls: type) -> None:
    """Gives constants that were read from the environment, as in ``BACKEND = os.environ["BACKEND"]``, their new values.

    Each process of the class's own harness imports the modules anew, in the environment of its test. Here a constant
    follows its variable if it has the variable's name, and had its value when the module was imported.
    """
    for module in _modules(cls):
        then = vars(module).setdefault(_ENVIRON, dict(os.environ))
        for name, value in list(vars(module).items()):
            now = os.environ.get(name)
            if isinstance(value, str) and now is not None and then.get(name) == value != now:
                setattr(module, name, now)


def _modules(cls: type) -> Iterator[ModuleType]:
    names = {base.__module__ for base in cls.__mro__ if base.__module__.partition(".")[0] not in _FOUNDATIONS}
    yield from (sys.modules[name] for name in sorted(names) if name in sys.modules)


def _owners(cls: type) -> Iterator[Any]:
    for module in _modules(cls):
        yield module
        yield from _classes(module, module.__name__)


def _classes(owner: Any, module: str) -> Iterator[type]:
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module and not _is_lasting(value):
            yield value
            if value is not owner:
                yield from (one for one in _nested(value, module))


def _nested(owner: type, module: str) -> Iterator[type]:
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module and not _is_lasting(value):
            yield value


def _is_lasting(kind: type) -> bool:
    return issubclass(kind, tuple) or type(kind) is not type  # an enum's members, a namedtuple's fields


def _plain(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if type(value) in _PLAIN and not name.startswith("__")}


def _put_back(owner: Any, values: Mapping[str, Any]) -> None:
    now = vars(owner)
    for name, value in values.items():
        if now.get(name, _MISSING) is not value:
            setattr(owner, name, value)
    for name in _plain(owner).keys() - values.keys():
        delattr(owner, name)
