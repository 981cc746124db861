"""What a rank gives to torch.distributed, collective by collective, as the dispatcher sees it. Runs on ranks.

In the dispatcher alone the calls of Python and those of C++ (DistributedDataParallel's reducer) are both seen, and
those of backward passes: autograd runs them in the mode that it was called in, on GPUs in a thread of its own as well.
CommDebugMode of torch.distributed.tensor sees them too, but counts calls, not bytes.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_gpuperf import Context

RESULT = -1


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of a collective in the dispatcher."""

    collective: str
    """As nccl-tests calls it."""
    given: int
    """The argument that holds what this rank gives."""
    size: int
    """The larger one of what goes in and out, which nccl-tests calls S: an argument, or ``RESULT``."""


# c10d's, which the calls of torch.distributed end in, and those of the functional collectives, which call process
# groups below the dispatcher.
OPERATORS: Mapping[str, Operator] = {
    "c10d.allreduce_": Operator("all_reduce", 0, 0),
    "c10d.broadcast_": Operator("broadcast", 0, 0),
    "c10d._allgather_base_": Operator("all_gather", 1, 0),
    "c10d._reduce_scatter_base_": Operator("reduce_scatter", 1, 1),
    "c10d.alltoall_base_": Operator("all_to_all", 1, 1),
    "c10d.send": Operator("send", 0, 0),
    "_c10d_functional.all_reduce": Operator("all_reduce", 0, 0),
    "_c10d_functional.broadcast": Operator("broadcast", 0, 0),
    "_c10d_functional.all_gather_into_tensor": Operator("all_gather", 0, RESULT),
    "_c10d_functional.reduce_scatter_tensor": Operator("reduce_scatter", 0, 0),
    "_c10d_functional.all_to_all_single": Operator("all_to_all", 0, 0),
}
# Receipts, whose bytes the sender counts, and what moves no data.
MOVES_NOTHING = frozenset(
    [
        "recv_",
        "recv_any_source_",
        "barrier",
        "monitored_barrier_",
        "check_for_nan",
        "wait_tensor",
        "_wrap_tensor_autograd",
    ]
)
# Whole numbers that C++ gives to these are DistributedDataParallel's bookkeeping: which parameters were used, how large
# its buckets are. Those that Python gives may be a program's own, and are counted.
BOOKKEEPING = frozenset(["c10d.allreduce_", "c10d.broadcast_"])

Messages = list[tuple[str, int]]
"""Collectives, and the bytes of what the rank gave to each: of all_to_all with the part that it keeps."""


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that the rank has called."""

    operator: str
    """In the dispatcher, with its namespace."""
    collective: str | None
    """As nccl-tests calls it; None of an operator that is not known."""
    given: int
    """Bytes of what this rank gives; of an operator that is not known, of all tensors that it is called with."""
    size: int
    """Bytes of S, as nccl-tests has it: the larger one of input and output. Of one that is not known as given."""
    bookkeeping: bool
    """Whether it carries whole numbers of torch's own."""

    @property
    def name(self) -> str:
        """The collective's, or the operator's where that is not known."""
        return self.collective or self.operator


class Traffic(TorchDispatchMode):
    """Within its block the collectives that the rank calls are recorded, in their order."""

    def __init__(self, calls: list[Call] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.calls: list[Call] = [] if calls is None else calls

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # it goes first, and issues the collectives
        result = func(*args, **(kwargs or {}))
        # "_c10d_functional" and "_c10d_functional_autograd" as well.
        if "c10d" in func.namespace and func.overloadpacket.__name__ not in MOVES_NOTHING:
            self.calls.append(_call(f"{func.namespace}.{func.overloadpacket.__name__}", args, kwargs, result))
        return result


def _call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, result: Any) -> Call:
    operator = OPERATORS.get(name)
    if operator is None:
        nbytes = sum(tensor.nbytes for tensor in _tensors((args, kwargs)))
        return Call(name, None, nbytes, nbytes, bookkeeping=False)
    given = _tensors(args[operator.given])
    size = _tensors(result if operator.size == RESULT else args[operator.size])
    return Call(
        name,
        operator.collective,
        sum(tensor.nbytes for tensor in given),
        sum(tensor.nbytes for tensor in size),
        bookkeeping=name in BOOKKEEPING
        and not any(tensor.is_floating_point() for tensor in given)
        and not _called_by_python(),
    )


def _called_by_python() -> bool:
    """Whether a function of torch.distributed calls the collective; if not, C++ does so by itself."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is not vars(distributed_c10d):
        frame = frame.f_back
    return frame is not None


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def sizes(calls: Iterable[Call]) -> dict[str, int]:
    """The bytes of each collective together, as nccl-tests counts S: the whole tensor's, not the shard's.

    Raises:
        NotImplementedError: a collective is among them that is not known, so that none goes unseen.
    """
    found: Counter[str] = Counter()
    for call in calls:
        if call.collective is None:
            raise NotImplementedError(f"{call.operator} is a collective whose bytes are not counted")
        if call.size and not call.bookkeeping:
            found[call.collective] += call.size
    return dict(found)


def ring_bytes(calls: Iterable[Call], world_size: int) -> dict[str, int]:
    """What a rank sends of each collective, if it goes around a ring of R ranks.

    Of S bytes (R-1)/R * S for an all-gather, a reduce-scatter or an all-to-all, and twice that for an all-reduce
    (nccl-tests, doc/PERFORMANCE.md). Of others all that they are called with, under their own names: whoever compares
    with a formula finds one that it does not have.
    """
    parts = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    found: Counter[str] = Counter()
    for call in calls:
        if call.collective in parts:
            found[call.collective] += parts[call.collective] * call.size * (world_size - 1) // world_size
        else:
            found[call.name] += call.given
    return dict(found)


def messages_of(ctx: Context, program: Callable[..., Callable[[], Any]], **kwargs: Any) -> Messages:
    """What the rank gives away in one step of a timed program, not in its preparation."""
    step = program(ctx, **kwargs)
    with Traffic() as traffic:
        step()
    return [(call.name, call.given) for call in traffic.calls]
