"""Private names of torch's distributed operators, each in a function with a test that shows what is relied on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

REDUCE_SCATTER, ALL_GATHER = "_reduce_scatter_base_", "_allgather_base_"
"""Operators of one tensor for all ranks."""
CALLED_BY_USERS = ("distributed_c10d.py", "_functional_collectives.py")
"""Files whose functions users call to communicate."""
SENDS_AND_RECEIVES = "batch_isend_irecv"
"""The one of these functions that calls operators of two kinds."""
DECORATED = {"wrapper", "wrapped", "inner", "_fn"}
"""Functions that only call another one."""
CALLS_A_MODULE = "_wrapped_call_impl"
"""The method by which a module is called."""
_KEYS = ("SparseCUDA", "SparseCPU", "Meta", "CUDA", "CPU")
_VALUELESS = tuple(getattr(torch._C.DispatchKey, name) for name in _KEYS[:3])


def run_kernel(operator: str, keyset: Any, args: Sequence[Any], space: str = "c10d") -> Any:
    """Calls a backend's own kernel of a distributed operator, and lets other threads run meanwhile.

    Publicly, ``torch.library.get_kernel`` has it, and keeps the GIL. Gloo's threads drop tensors under a mutex that the
    next call wants, so ranks would hang.

    Args:
        operator: its name.
        keyset: of its tensors.
        args: of the call.
        space: of ``torch.ops`` in which it is.

    Raises:
        NotImplementedError: the tensors are of no kind that is known here.
    """
    keys = torch._C.DispatchKey
    for name in _KEYS:
        if keyset.has(key := getattr(keys, name)):
            return getattr(getattr(torch.ops, space), operator).default._op_dk(key, *args)
    raise NotImplementedError(f"--mutate knows tensors of CPUs and CUDA, and {operator} got others: run without it")


def find_kernel(operator: str) -> Callable[..., Any] | None:
    """The kernel that an operator has at BackendSelect, such as the one that notes collectives; None without one.

    It is Python's, so that it may be called with the GIL: it releases it before it calls the backend's.
    """
    name = f"c10d::{operator}"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect"):
        return None
    kernel: Any = torch.library.get_kernel(name, "BackendSelect")
    called: Callable[..., Any] = kernel.call_boxed
    return called


def is_of_values(keyset: Any) -> bool:
    """Whether the tensors of a call have values that can be read: they are dense and not of the meta device."""
    return not any(map(keyset.has, _VALUELESS))


class _AlteredWork(dist.Work):
    """Work that is altered when it is waited for; what waits in C++ calls this method too."""

    def __init__(self, work: Any, alter: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._alter = alter
        self._waited = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits once: the work itself would write its result once more."""
        if not self._waited:
            self._waited = True
            self._work.wait(timeout)
            self._alter()
        return True

    def is_completed(self) -> bool:
        """Whether the operation is done."""
        return bool(self._work.is_completed())

    def result(self) -> Any:
        """The operation's result."""
        return self._work.result()


def make_altered_work(work: Any, alter: Callable[[], None], held: list[Any]) -> Any:
    """The boxed work that is done once an operation's is and ``alter`` has been called.

    Publicly, work can be waited for, which in the call itself would block programs that issue operations on two groups
    in different orders on different ranks. Work without a future, such as gloo's reduce_scatter, is altered when the
    program waits for it.

    Args:
        work: boxed.
        alter: changes what the operation came to.
        held: keeps Python's part of the work alive for as long as the program may wait for it.
    """

    def alter_result(future: Any) -> Any:
        value = future.value()
        alter()
        return value

    unbox: Any = dist.Work.unbox
    try:
        future = unbox(work).get_future()
    except RuntimeError:
        altered_work: Any = _AlteredWork(unbox(work), alter)
        held.append(altered_work)
        return altered_work.boxed()
    return _make_work(future.then(alter_result))


def unbox_group(boxed: Any) -> Any:
    """The process group that an operator got; publicly, operators cannot be seen."""
    unbox: Any = dist.ProcessGroup.unbox
    return unbox(boxed)


def may_have_symmetric_memory() -> bool:
    """Whether a program can have got symmetric memory: its module is private, and has been imported by then."""
    return "torch.distributed._symmetric_memory" in sys.modules


def group_named(name: str) -> Any:
    """The process group of a name that torch gave it, by which operators know it; publicly, only they do."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def make_done(value: Any) -> Any:
    """A boxed work that is done, for a call that communicates nothing."""
    future: Any = torch.futures.Future()
    future.set_result(value)
    return _make_work(future)


def _make_work(future: Any) -> Any:
    from torch._C import _distributed_c10d as c10d

    make: Any = vars(c10d)["_create_work_from_future"]  # which torch does not declare
    return make(future).boxed()


def find_caller_frame() -> FrameType:
    """The caller's caller's frame."""
    return sys._getframe(2)


def find_thread_frame(thread: int | None) -> FrameType | None:
    """The frame that another thread is in; None if it is in none."""
    return None if thread is None else sys._current_frames().get(thread)


def remove(library: torch.library.Library) -> None:
    """Takes the kernels of a library away now; publicly, they go when it is collected as garbage."""
    library._destroy()
