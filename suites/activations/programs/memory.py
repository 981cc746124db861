"""What a technique takes of a rank's memory: bytes that are really kept, whatever hooks claim."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pytest_gpuperf import Context
from suites.activations.programs.lending import lending_forward, peers_plan, storing
from suites.activations.programs.techniques import TECHNIQUES, Weights, blocks, network, offload, on_device
from suites.shared.memory import LiveBytes
from suites.shared.step import Step, Tensors


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
        forward = offload(ctx, model, moved=live.note_moved)
    else:
        forward = TECHNIQUES[technique](ctx, model)
    forward(x).backward(grad)  # makes what only a first step makes: gradients, workspaces of matrix products
    _forget_masks(model)
    before = _allocated(ctx)
    with live:
        output = forward(x)
        _forget_masks(model)
        kept = live.live() - output.untyped_storage().nbytes()
        output.backward(grad)
    return Memory(kept, live.peak, _peak_since(before))


def _forget_masks(model: nn.Sequential) -> None:
    """Blocks hold their masks for tests that want them; here that would be memory of no technique's."""
    for block in blocks(model):
        block.masks.clear()


def _stored(ctx: Context, live: LiveBytes, step: Step[Tensors]) -> Memory:
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
