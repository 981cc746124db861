"""DeepSpeed in ranks that its own launcher has not started."""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pynvml

from pytest_gpuperf import Context
from suites.shared.sharding import is_registered


@contextlib.contextmanager
def launched(ctx: Context) -> Iterator[None]:
    """An environment as DeepSpeed's launcher makes it; what it sets there itself goes with it as well.

    The next test's ranks may be the same processes.
    """
    before = dict(os.environ)
    # An engine wants it when it is made; on CPUs stage 3 reads it in each step, too.
    os.environ["LOCAL_RANK"] = str(ctx.local_rank)
    if ctx.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    else:
        # Stages 1 and 2 ask NVML how much memory is free, and read this as numbers. CUDA has read it already.
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_numbers(os.environ["CUDA_VISIBLE_DEVICES"])
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def visible_numbers(visible: str) -> str:
    """CUDA_VISIBLE_DEVICES with NVML's indices for the UUIDs that it has."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in visible.split(",")]
        return ",".join(str(pynvml.nvmlDeviceGetIndex(handle)) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def load_deepspeed(ctx: Context) -> ModuleType:
    """DeepSpeed, without what it keeps of process groups that are gone; its first import wants ``launched``."""
    deepspeed = importlib.import_module("deepspeed")
    if ctx.device.type == "cpu":
        # On CPUs it would compile an all_reduce of its own through shared memory, which takes minutes; no operation
        # of its own is compatible, then, and gloo does it. It says of this table that edits persist.
        vars(importlib.import_module("deepspeed.ops"))["__compatible_ops__"] = collections.defaultdict(bool)
    # It clones the default group once in a process and keeps the clone, while each test has a group of its own.
    groups: Any = importlib.import_module("deepspeed.utils.groups")
    if groups._WORLD_GROUP is not None and not is_registered(groups._WORLD_GROUP, ctx.rank):
        groups._WORLD_GROUP = None
    return deepspeed
