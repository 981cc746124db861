"""Runs one test of an adopted class on a rank: the entry of the task that the pytest process sends."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import unittest
from functools import reduce
from types import ModuleType
from typing import Any, cast

import torch.distributed as dist

from pytest_gpuperf.features.adopted import restoring
from pytest_gpuperf.features.adopted.calls import Call, Home
from pytest_gpuperf.features.adopted.families import find_family_by_name
from pytest_gpuperf.ranks.context import Context


def run(context: Context, call: Call) -> int | None:
    """Runs the test; the code with which it would have left its process, None if it came to its end.

    Raises:
        unittest.SkipTest: the test left with a code that means so in its harness.
        BaseException: whatever else the test raises.
    """
    family = find_family_by_name(call.family)
    with restoring.environment(call.environ), restoring.settings():
        cls = find_class(call.home)
        context.note_modules()
        with restoring.plain_state(cls), restoring.bindings(cls):
            restoring.read_variables_again(cls)
            try:
                family.on_rank(cls, context, call)
            except SystemExit as leaving:
                code = _read_exit_code(leaving)
                _hang_up()
                reason = family.skip_reason(code)
                if reason is not None:
                    raise unittest.SkipTest(reason) from None
                return code
    return None


def find_class(home: Home) -> type:
    """The class, from its module, which is imported unless it was.

    Raises:
        ImportError: the module cannot be imported here, or has no class of this name.
    """
    module = sys.modules.get(home.module)
    if module is None or not _is_from(module, home.file):
        module = _import(home)
    try:
        cls: Any = reduce(getattr, home.name.split("."), cast("Any", module))
    except AttributeError:
        raise ImportError(
            f"{home.module} ({home.file}) has no class {home.name} where a rank imports it: make the class when the "
            "module is imported, and not in a function, a conftest.py or under `if __name__ == '__main__'`"
        ) from None
    return cast("type", cls)


def _import(home: Home) -> ModuleType:
    sys.modules.pop(home.module, None)
    try:
        module = importlib.import_module(home.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home.module}.".startswith(f"{error.name}."):
            raise  # one that the module itself imports
        module = None
    if module is not None and _is_from(module, home.file):
        return module
    if home.file is None:
        raise ImportError(f"a rank cannot import {home.module}, which has no file: put the class into a file")
    # As pytest has it under --import-mode=importlib: on no path, or under a name that is another module's as well.
    spec = importlib.util.spec_from_file_location(home.module, home.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[home.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(home.module, None)
        raise
    return module


def _is_from(module: ModuleType, file: str | None) -> bool:
    own = getattr(module, "__file__", None)
    return own == file or (own is not None and file is not None and os.path.realpath(own) == os.path.realpath(file))


def _hang_up() -> None:
    # A process that ends closes its connections, and its peers may wait for just that. NCCL's peers would see nothing.
    if dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def _read_exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)  # as Python does when it exits so
    return 1
