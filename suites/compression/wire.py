"""Counts what a rank sends while a hook of DistributedDataParallel averages gradients. Runs on ranks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}

# Which argument is sent, and how many R-th parts of it to each of the R - 1 others, by R: a part in an all_to_all, all
# of it in an all_gather, and two parts in an all_reduce, which is a reduce-scatter and an all-gather of a part.
SENT: Mapping[str, tuple[int, Callable[[int], int]]] = {
    "allreduce_": (0, lambda world_size: 2),
    "alltoall_base_": (1, lambda world_size: 1),
    "_allgather_base_": (1, lambda world_size: world_size),
}


class Wire(TorchDispatchMode):
    """Notes in ``sent`` how many bytes a rank sends, by c10d's operator in the dispatcher.

    There the calls of Python and of C++ are both seen. An operator that is not in ``SENT`` is noted too, with the bytes
    of all tensors that it is given: whoever compares with a formula finds a name that it does not have.
    """

    def __init__(self, sent: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._sent = sent

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace in NAMESPACES:
            name, world_size = func.overloadpacket.__name__, dist.get_world_size()
            if name in SENT:
                index, parts = SENT[name]
                self._sent[name] += _nbytes(args[index]) * parts(world_size) * (world_size - 1) // world_size
            else:
                self._sent[name] += _nbytes((args, kwargs))
        return func(*args, **(kwargs or {}))


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """The bytes that this rank sends in the block, by operator, those of the futures' callbacks included.

    gloo runs callbacks on threads of its own, where no mode of this thread is on.
    """
    sent: Counter[str] = Counter()

    def counting(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(future: Any, callback: Callable[[Any], Any]) -> Any:
            def run(done: Any) -> Any:
                # Where a mode is on already, as with NCCL, a second one would count all over again.
                seen = any(isinstance(mode, Wire) for mode in _get_current_dispatch_mode_stack())
                with contextlib.nullcontext() if seen else Wire(sent):
                    return callback(done)

            return register(future, run)

        return registered

    with contextlib.ExitStack() as stack:
        for name in ("then", "add_done_callback"):
            counts = counting(getattr(torch._C.Future, name))
            stack.enter_context(mock.patch.object(torch._C.Future, name, counts))
        stack.enter_context(Wire(sent))
        yield sent
