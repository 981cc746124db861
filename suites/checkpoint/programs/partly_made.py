"""Whole states of models that enter models of which a part has no storage yet, as adapters beside weights to be loaded.

The models have tensors without dimensions as well: a buffer, and a parameter if ranks don't share the parameters.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.state_dicts import from_first
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPE = torch.float64


class Adapted(nn.Module):
    """A layer to be loaded, an adapter, a norm with its statistics, and a scale."""

    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.base = nn.Linear(3, 5, dtype=DTYPE)
        self.adapter = nn.Linear(5, 2, bias=False, dtype=DTYPE)
        self.norm = nn.BatchNorm1d(5, dtype=DTYPE)
        self.scale = nn.Parameter(torch.zeros((), dtype=DTYPE)) if scaled else None


def whole(seed: int, *, scaled: bool) -> Tensors:
    """A model's state, of numbers that a seed chooses."""
    state = Adapted(scaled=scaled).state_dict()
    return {
        name: integers(tuple(value.shape), value.dtype, seed=seed + at)
        for at, (name, value) in enumerate(state.items())
    }


def _made(ctx: Context, *, shard: bool, seed: int, lacking: bool) -> nn.Module:
    model = Adapted(scaled=not shard)
    model.load_state_dict(whole(seed, scaled=not shard))
    model.to(ctx.device)
    if lacking:
        model.base.to("meta")
    if shard:
        mesh = ctx.mesh((ctx.world_size,))
        fully_shard(model.base, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def entered(ctx: Context, *, shard: bool, broadcast: bool, lacking: bool) -> Tensors:
    """What a model has once the state of another one has entered it.

    Args:
        ctx: the rank's context.
        shard: whether ranks share the parameters.
        broadcast: whether rank 0 alone has the state and sends it; else all ranks have it, whole.
        lacking: whether a layer of the model that it enters has no storage.
    """
    first = _made(ctx, shard=shard, seed=1, lacking=False)
    second = _made(ctx, shard=shard, seed=1 + 64 * (1 + ctx.rank), lacking=lacking)
    state = get_model_state_dict(first, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if not broadcast:
        state = from_first(state)
    set_model_state_dict(second, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast))
    assert all(isinstance(value, nn.Parameter) and value.requires_grad for value in second.parameters())
    assert all(value.device.type == ctx.device.type for value in second.state_dict().values() if value.dim())
    found = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in second.state_dict().items()
    }
    return {name: value.detach().cpu() for name, value in found.items()}
