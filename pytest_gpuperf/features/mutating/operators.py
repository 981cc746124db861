"""The operators of ``torch.ops.c10d`` that communicate: what they are called, and which tensors they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gpuperf.features.mutating.c10d_internals import ALL_GATHER, REDUCE_SCATTER
from pytest_gpuperf.features.mutating.faults import Family


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: where its tensors stand among its arguments."""

    name: str
    """As users call it."""
    family: Family
    group: int = 2
    """Which argument is the process group."""
    in_place: bool = False
    """Whether it reads and writes the same tensors."""

    def outputs(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that it writes."""
        return _flatten(args[0])

    def inputs(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that it reads."""
        return _flatten(args[0] if self.in_place else args[1])


def _flatten(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [tensor for one in argument for tensor in _flatten(one)]


def replace_inputs(operator: Operator, args: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments with other inputs, in the same nesting; only for operators that do not work in place."""
    left = iter(inputs)

    def like(argument: Any) -> Any:
        return next(left) if isinstance(argument, torch.Tensor) else [like(one) for one in argument]

    changed = list(args)
    changed[1] = like(args[1])
    return changed


OPERATORS: Mapping[str, Operator] = {
    "allreduce_": Operator("all_reduce", Family.REDUCE, 1, True),
    "allreduce_coalesced_": Operator("all_reduce_coalesced", Family.REDUCE, 1, True),
    "reduce_": Operator("reduce", Family.REDUCE, 1, True),
    "reduce_scatter_": Operator("reduce_scatter", Family.REDUCE),
    REDUCE_SCATTER: Operator("reduce_scatter_tensor", Family.REDUCE),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter_tensor", Family.REDUCE),
    "allgather_": Operator("all_gather", Family.GATHER),
    ALL_GATHER: Operator("all_gather_into_tensor", Family.GATHER),
    "allgather_into_tensor_coalesced_": Operator("all_gather_into_tensor", Family.GATHER),
    "gather_": Operator("gather", Family.GATHER),
    "alltoall_": Operator("all_to_all", Family.EXCHANGE),
    "alltoall_base_": Operator("all_to_all_single", Family.EXCHANGE),
    "broadcast_": Operator("broadcast", Family.BROADCAST, 1, True),
    "scatter_": Operator("scatter", Family.SCATTER),
    "send": Operator("send", Family.SEND, 1, True),
    "recv_": Operator("recv", Family.OTHER, 1, True),
    "recv_any_source_": Operator("recv", Family.OTHER, 1, True),
    "barrier": Operator("barrier", Family.OTHER, 1, True),
}
"""By the operator's name."""
REDUCTION = {True: 2, False: 3}
"""Which argument of a reduction says how it reduces, by whether it works in place."""
