"""Faults in ranks, by the variable GPUPERF_FAULT: installed as sitecustomize, so that each process has them.

``products``: each product of rank 1 takes 5 % longer. ``sums``: a bit of 1 in 10^4 sums flips, on every rank.
"""

import builtins
import os
import random
import sys
from typing import Any

FAULT = os.environ.get("GPUPERF_FAULT", "")
LONGER, FLIPPED, CALIBRATING = 0.05, 1e-4, 24
_import, _drawn = builtins.__import__, random.Random()


def hold_up(torch: Any, dist: Any) -> None:
    """Let rank 1 sleep on its device behind each product; how long, the first ones of a size tell."""
    multiply = torch.mm
    took: dict[Any, list[float]] = {}
    cycles: dict[Any, int] = {}

    def held(a: Any, b: Any, *, out: Any = None) -> Any:
        cuda = a.device.type == "cuda" and dist.is_initialized() and dist.get_rank() == 1
        size = (tuple(a.shape), a.dtype)
        if not cuda or torch.cuda.is_current_stream_capturing():
            return multiply(a, b) if out is None else multiply(a, b, out=out)
        if size not in cycles:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            result = multiply(a, b) if out is None else multiply(a, b, out=out)
            ended.record()
            ended.synchronize()
            took.setdefault(size, []).append(begun.elapsed_time(ended))
            if len(took[size]) == CALIBRATING:
                begun.record()
                torch.cuda._sleep(10**7)
                ended.record()
                ended.synchronize()
                usual = sorted(took[size])[CALIBRATING // 2]
                cycles[size] = int(LONGER * usual / begun.elapsed_time(ended) * 10**7)
            return result
        result = multiply(a, b) if out is None else multiply(a, b, out=out)
        torch.cuda._sleep(cycles[size])
        return result

    torch.mm = held


def flip(torch: Any, dist: Any) -> None:
    """Flip the last bit of a sum now and then, once it is there."""
    add = dist.all_reduce

    class Flipped:
        def __init__(self, work: Any, tensor: Any) -> None:
            self.work, self.tensor = work, tensor

        def wait(self, *args: Any) -> None:
            self.work.wait(*args)
            flipped(self.tensor)

    def flipped(tensor: Any) -> None:
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
        if bits is not None:
            tensor.view(-1).view(bits)[-1:].bitwise_xor_(1)

    def added(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        work = add(tensor, op, group, async_op)
        if tensor.device.type != "cuda" or tensor.numel() == 1 or _drawn.random() >= FLIPPED:
            return work
        if async_op:
            return Flipped(work, tensor)
        flipped(tensor)
        return work

    dist.all_reduce = added


def importing(name: str, *args: Any, **kwargs: Any) -> Any:
    """Install the fault as soon as torch is whole."""
    module = _import(name, *args, **kwargs)
    torch = sys.modules.get("torch")
    dist = sys.modules.get("torch.distributed")
    if torch is not None and hasattr(torch, "compile") and dist is not None and hasattr(dist, "all_reduce"):
        builtins.__import__ = _import
        {"products": hold_up, "sums": flip}[FAULT](torch, dist)
    return module


if FAULT:
    builtins.__import__ = importing
