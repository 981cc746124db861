"""Records what a rank gives to torch.distributed, message by message. Runs on ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_gpuperf import Context

# Operators in the dispatcher, and the argument that holds what this rank gives: c10d's, which the calls of
# torch.distributed end in, and those of the functional collectives. Backward's are seen too: autograd runs in the mode
# that it was called in, on GPUs in a thread of its own as well.
_OPERATORS: dict[str, dict[str, tuple[str, int]]] = {
    "c10d": {"send": ("send", 0), "alltoall_base_": ("all_to_all", 1), "allreduce_": ("all_reduce", 0)},
    "_c10d_functional": {"all_to_all_single": ("all_to_all", 0)},
}

_GIVES_NOTHING = {"recv_", "barrier", "wait_tensor", "_wrap_tensor_autograd"}

Messages = list[tuple[str, int]]
"""Operations, and the bytes of what the rank gave to each: of all_to_all with the part that it keeps."""


class Recorded(TorchDispatchMode):
    """Within its block messages are recorded, in their order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.messages: Messages = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if "c10d" in func.namespace and (operator := func.overloadpacket.__name__) not in _GIVES_NOTHING:
            # One that is not expected is recorded by its own name, with all that it holds: no test knows of it.
            name, place = _OPERATORS.get(func.namespace, {}).get(operator, (operator, slice(None)))
            tensors = [leaf for leaf in tree_leaves(args[place]) if isinstance(leaf, torch.Tensor)]
            self.messages.append((name, sum(tensor.nbytes for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def messages_of(ctx: Context, program: Callable[..., Callable[[], Any]], **kwargs: Any) -> Messages:
    """What the rank gives away in one step of a timed program, not in its preparation."""
    step = program(ctx, **kwargs)
    recorded = Recorded()
    with recorded:
        step()
    return recorded.messages
