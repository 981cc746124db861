"""What a technique takes of a rank's memory: bytes that are really kept, whatever hooks claim."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_gpuperf import Context
from suites.activations.lending import lending_forward, peers_plan, storing
from suites.activations.programs import TECHNIQUES, Step, Weights, blocks, network, offload, on_device


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations made on a device while it was on, as long as they are alive.

    What autograd saves are tensors like others to it: it sees what is really kept, whatever hooks claim.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.peak = 0
        """The largest ``live()`` after any operation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and notes down what it made."""
        given = {id(tensor.untyped_storage()) for tensor in self._tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in given:  # neither a view nor in place
                self._storages[id(storage)] = weakref.ref(storage), storage.nbytes()
        self.peak = max(self.peak, self.live())
        return result

    def moved(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Counts the copy no more: it stands for one in the host's memory.

        Raises:
            ValueError: it is on another device, or is no copy.
        """
        if copy.device.type != "cpu":
            raise ValueError(f"a tensor was to be moved to the host, and its copy is on {copy.device}")
        if copy.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            raise ValueError("a tensor was to be moved to the host, and nothing was copied")
        self._storages.pop(id(copy.untyped_storage()), None)

    def live(self) -> int:
        """Bytes that are alive now."""
        self._storages = {key: entry for key, entry in self._storages.items() if entry[0]() is not None}
        return sum(nbytes for _, nbytes in self._storages.values())

    def _tensors(self, tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device == self._device]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the rank's device beyond parameters, input and gradients."""

    kept: int
    """Between forward and backward, without the output."""
    peak: int
    """During the step."""
    allocated: int | None
    """During the step, as the CUDA allocator counts; None without GPUs."""


def memory(
    ctx: Context, *, technique: str, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool
) -> Memory:
    """What one step of a technique takes: a key of ``TECHNIQUES``, or ``lend``."""
    model = network(ctx, weights, dropout=dropout)
    x, grad = on_device(ctx, x, grad)
    live = LiveBytes(ctx.device)
    if technique == "lend":
        plan = peers_plan(ctx, model, x, grad)
        if plan is not None:
            return _stored(ctx, live, storing(ctx, plan))
        forward = lending_forward(ctx, model)
    elif technique == "offload":
        forward = offload(ctx, model, moved=live.moved)
    else:
        forward = TECHNIQUES[technique](ctx, model)
    forward(x).backward(grad)  # makes what only a first step makes: gradients, workspaces of matrix products
    before = _allocated(ctx)
    with live:
        output = forward(x)
        for block in blocks(model):
            block.masks.clear()
        kept = live.live() - output.untyped_storage().nbytes()
        output.backward(grad)
    return Memory(kept, live.peak, _peak_since(before))


def _stored(ctx: Context, live: LiveBytes, step: Step) -> Memory:
    step()
    before = _allocated(ctx)
    with live:
        stored = step()
    return Memory(sum(tensor.nbytes for tensor in stored.values()), live.peak, _peak_since(before))


def _allocated(ctx: Context) -> int | None:
    if ctx.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak_since(before: int | None) -> int | None:
    return None if before is None else torch.cuda.max_memory_allocated() - before
