"""Counts the bytes that a rank gives to torch.distributed. Runs on ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Collectives of torch.distributed, c10d's operators in the dispatcher, and the argument that is counted of each: the
# larger one, which nccl-tests calls S. In the dispatcher alone the calls of Python and those of C++ (the reducer of
# DistributedDataParallel) are both seen; CommDebugMode of torch.distributed.tensor sees them as well, but counts
# calls, not bytes.
OPERATORS = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "send": "send",
}
# What is not counted: receipts, whose bytes the sender counts, and what moves no data. Every other operator is refused.
UNCOUNTED = {"recv_", "recv_any_source_", "barrier", "monitored_barrier_", "check_for_nan", "wait_tensor"}
_LARGER = {"_reduce_scatter_base_": 1}
# Whole numbers that these carry are torch's bookkeeping (which parameters were used, which batches are left).
_BOOKKEEPING = {"allreduce_", "broadcast_"}


class Traffic(TorchDispatchMode):
    """Within its block each collective's bytes are counted.

    Raises:
        NotImplementedError: a collective is called that it cannot count, so that none goes unseen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.bytes: Counter[str] = Counter()
        """By collective, as nccl-tests counts S: the whole tensor's, not the shard's."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        # "c10d", and "_c10d_functional", whose operators call process groups below the dispatcher.
        if "c10d" in func.namespace and name not in UNCOUNTED:
            if func.namespace != "c10d" or name not in OPERATORS:
                raise NotImplementedError(f"{func.namespace}.{name} is a collective whose bytes are not counted")
            counted = args[_LARGER.get(name, 0)]
            tensors = [counted] if isinstance(counted, torch.Tensor) else counted
            nbytes = sum(t.nbytes for t in tensors if t.is_floating_point() or name not in _BOOKKEEPING)
            if nbytes:
                self.bytes[OPERATORS[name]] += nbytes
        return func(*args, **(kwargs or {}))
