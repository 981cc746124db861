"""The faults: each goes wrong on rank 1, on some ranks, or on all, and says when.

Copied beside the tests of an inner run, so nothing of ``tests`` is imported here.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

ODD = 1  # the rank that does it
SPIN = """
__global__ void spin(volatile int* stop) { while (*stop == 0) { } }
"""
STRAY = """
__global__ void stray(int* nothing) { *(int*)(0x10) = nothing == nullptr ? 1 : 2; }
"""


class Fault:
    """Where a program says that its fault is about to happen."""

    def __init__(self, ctx: Any, folder: Path, name: str) -> None:
        self.ctx = ctx
        self._file = folder / f"{name}.{ctx.rank}"

    @property
    def odd(self) -> bool:
        return bool(self.ctx.rank == ODD)

    def now(self) -> None:
        self._file.write_text(repr(time.time()))

    def all_reduce(self, numel: int = 4) -> torch.Tensor:
        x = torch.ones(numel, device=self.ctx.device)
        dist.all_reduce(x)
        return x


def wait_for_ever() -> NoReturn:
    while True:
        threading.Event().wait()


def raises(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        raise ValueError("cause")


def raises_while_others_wait(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        raise ValueError("cause")
    fault.all_reduce()


def raises_differently(fault: Fault) -> None:
    if not fault.odd:
        time.sleep(0.2)  # the one that is to blame comes first
    fault.now()
    raise (KeyError, ValueError, TypeError)[fault.ctx.rank % 3](f"of rank {fault.ctx.rank}")


def raises_everywhere_after_they_met(fault: Fault) -> None:
    fault.all_reduce()
    fault.now()
    raise ValueError("after they met")


def raises_what_cannot_be_pickled(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        raise ValueError("holds", threading.Lock())


def sys_exit(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        sys.exit(0)
    fault.all_reduce()


def os_exit(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        os._exit(3)
    fault.all_reduce()


def sigkill(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        os.kill(os.getpid(), signal.SIGKILL)
    fault.all_reduce()


def sigsegv(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        ctypes.string_at(0)
    fault.all_reduce()


def sigabrt(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        os.abort()
    fault.all_reduce()


def out_of_host_memory(fault: Fault) -> None:
    if fault.odd:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        fault.now()
        bytearray(1 << 30)


def out_of_device_memory(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        torch.empty(1 << 50, device=fault.ctx.device)


def device_side_assert(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        index = torch.tensor([5], device=fault.ctx.device)
        torch.zeros(2, device=fault.ctx.device)[index].cpu()


def illegal_address(fault: Fault) -> None:
    if fault.odd:
        kernel = torch.cuda._compile_kernel(STRAY, "stray")
        fault.now()
        kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, dtype=torch.int32, device=fault.ctx.device)])
        torch.cuda.synchronize()


def returns_what_cannot_be_pickled(fault: Fault) -> Any:
    fault.now()
    return threading.Lock() if fault.odd else None


def returns_2_gib(fault: Fault) -> torch.Tensor:
    fault.now()
    return torch.full((1 << 31,) if fault.odd else (1,), 7, dtype=torch.uint8)


def skips_on_one_rank(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        pytest.skip("no such thing here")


def skips_on_all_ranks(fault: Fault) -> None:
    fault.now()
    pytest.skip("no such thing here")


def another_operation(fault: Fault) -> None:
    fault.now()
    if fault.odd:
        dist.broadcast(torch.ones(4, device=fault.ctx.device), 0)
    else:
        fault.all_reduce()
    torch_synchronize(fault)


def another_order(fault: Fault) -> None:
    fault.now()
    x = torch.ones(4, device=fault.ctx.device)
    if fault.odd:
        dist.broadcast(x, 0)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
    torch_synchronize(fault)


def another_size(fault: Fault) -> None:
    fault.now()
    fault.all_reduce(1 << 20 if fault.odd else 4)
    torch_synchronize(fault)


def never_calls(fault: Fault) -> None:
    fault.all_reduce()
    fault.now()
    if not fault.odd:
        fault.all_reduce()
        torch_synchronize(fault)


def nobody_waits(fault: Fault) -> None:
    fault.now()
    if fault.odd and fault.ctx.backend == "gloo":
        dist.all_reduce(torch.ones(4), async_op=True)
    elif fault.odd:
        fault.all_reduce()


def hangs_in_python(fault: Fault) -> None:
    fault.all_reduce()
    if fault.odd:
        fault.now()
        wait_for_ever()
    fault.all_reduce()
    torch_synchronize(fault)


def hangs_with_the_gil(fault: Fault) -> None:
    if fault.odd:
        fault.now()
        ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL


def hangs_in_a_kernel(fault: Fault) -> None:
    if fault.odd:
        kernel = torch.cuda._compile_kernel(SPIN, "spin")
        fault.now()
        kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.zeros(1, dtype=torch.int32, device=fault.ctx.device)])


def ignores_sigterm(fault: Fault) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if fault.odd:
        fault.now()
        wait_for_ever()


def leaves_children(fault: Fault) -> int:
    fault.now()
    return subprocess.Popen(["sleep", "600"]).pid if fault.odd else 0


def leaves_a_thread(fault: Fault) -> None:
    fault.now()
    if fault.odd:
        threading.Thread(target=wait_for_ever, name="left").start()


def leaks_a_group(fault: Fault) -> None:
    fault.now()
    group = dist.new_group(list(range(fault.ctx.world_size)))
    dist.all_reduce(torch.ones(1, device=fault.ctx.device), group=group)


def closes_all_groups(fault: Fault) -> None:
    fault.all_reduce()
    fault.now()
    dist.destroy_process_group()


def leaves_a_mesh_behind(fault: Fault) -> None:
    fault.now()
    backward_on_a_mesh(fault.ctx, groups_before=5)


def changes_the_environment(fault: Fault) -> None:
    fault.now()
    if fault.odd:
        os.environ["OF_A_FAULT"] = "1"


def changes_the_default_dtype(fault: Fault) -> None:
    fault.now()
    if fault.odd:
        torch.set_default_dtype(torch.float64)


def changes_the_default_device(fault: Fault) -> None:
    fault.now()
    if fault.odd:
        torch.set_default_device("meta")


def torch_synchronize(fault: Fault) -> None:
    if fault.ctx.device.type == "cuda":
        torch.cuda.synchronize()


def run(ctx: Any, folder: Path, fault: Callable[[Fault], Any]) -> Any:
    """Runs a fault."""
    return fault(Fault(ctx, folder, fault.__name__))


def healthy(ctx: Any) -> tuple[float, str, str, bool, list[str], int]:
    """What a program finds on ranks that nothing has happened to."""
    x = torch.full((4,), float(ctx.rank + 1), device=ctx.device)
    dist.all_reduce(x)
    dist.barrier()
    threads = [thread.name for thread in threading.enumerate() if not thread.daemon]
    groups = len(dist.distributed_c10d._world.pg_map)
    made = torch.ones(1)
    return float(x[0]), str(made.dtype), made.device.type, "OF_A_FAULT" in os.environ, threads, groups


def backward_on_a_mesh(ctx: Any, groups_before: int) -> None:
    """A gradient that is summed over a mesh, whose group is named by how many groups were made before."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    everybody = list(range(ctx.world_size))
    for _ in range(groups_before):
        dist.new_group(everybody)
    group = dist.new_group(everybody)
    mesh = DeviceMesh.from_group(group, ctx.device.type)
    print(f"the mesh's group is named {group.group_name}")
    x = torch.ones(4, 4, device=ctx.device, requires_grad=True)
    weight = distribute_tensor(torch.ones(4, 3 * ctx.world_size, device=ctx.device), mesh, [Shard(1)])
    y = DTensor.from_local(x, mesh, [Replicate()]) @ weight
    assert isinstance(y, DTensor)
    y.to_local().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0 * ctx.world_size] * 4] * 4
