"""The user's line that causes an operation, and what it calls there. Runs in rank processes."""

from __future__ import annotations

import os
import sysconfig
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import pytest_gpuperf
from pytest_gpuperf.features.mutating.c10d_internals import (
    CALLED_BY_USERS,
    CALLS_A_MODULE,
    DECORATED,
    SENDS_AND_RECEIVES,
    find_thread_frame,
)

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OWN = os.path.join(os.path.dirname(pytest_gpuperf.__file__), "")
_MODES = ("__torch_dispatch__", "__torch_function__")  # of a mode that only passes on what others call
_INSTALLED = (_OWN, "<", *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")))


def find_place(frame: FrameType, name: str) -> tuple[str, int, str, bool]:
    """The file and the line of the user's code, what is called there, and whether torch sends it by itself.

    Args:
        frame: in which an operator is called.
        name: of the operator.
    """
    found = _place(frame, name)
    if found is None:  # a thread of autograd's or of C++: what the main thread waits in
        main = find_thread_frame(threading.main_thread().ident)
        found = None if main is None else _place(main, name)
    return found or ("", 0, name, True)


def _place(frame: FrameType, name: str) -> tuple[str, int, str, bool] | None:
    called: FrameType | None = None
    for one in _iterate_frames(frame):
        file = one.f_code.co_filename
        if file.startswith(_TORCH):
            if one.f_code.co_name not in DECORATED:
                called = one
        elif is_of_user(one) and one.f_code.co_name not in _MODES:
            return file, one.f_lineno, *_describe_operation(called, name)
    return None


def _describe_operation(called: FrameType | None, name: str) -> tuple[str, bool]:
    if called is None:
        return name, False
    what = called.f_code.co_qualname
    if called.f_code.co_name == CALLS_A_MODULE:
        what = f"{type(called.f_locals['self']).__name__}.forward"
    if os.path.basename(called.f_code.co_filename) in CALLED_BY_USERS:
        return f"{name} in {what}" if what == SENDS_AND_RECEIVES else what, False
    return f"{name} in {what}", True


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame is in the user's code."""
    return not frame.f_code.co_filename.startswith((_TORCH, *_INSTALLED))


def describe_group(group: Any) -> str:
    """Which ranks a process group has, in words; empty for all of them."""
    described = str(group.group_desc)
    if described.startswith("mesh_") and described != "mesh_default":
        return described.removeprefix("mesh_")
    return "" if group.size() == dist.get_world_size() else "a subgroup"


def is_maximum(frame: FrameType) -> bool:
    """Whether a function of torch's that is being called was told to take the maximum."""
    for one in _iterate_frames(frame):
        if not one.f_code.co_filename.startswith((_TORCH, _OWN)):
            return False
        for name in ("op", "reduceOp", "opts"):
            if "max" in str(one.f_locals.get(name, "")).lower():
                return True
    return False


def _iterate_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
