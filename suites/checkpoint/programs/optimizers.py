"""States of optimizers that are unlike: without state, of several groups, and with more state than the one loaded into.

Gradients are given, and no forward pass is made. Which state passes is told by what the optimizers have and do.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors
from suites.shared.training import Packed

DTYPE = torch.float64
Kind = Literal["without state", "more state", "scalars"]
FormName = Literal["sharded", "flat", "whole", "broadcast", "numbered"]
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
_WHOLE = StateDictOptions(full_state_dict=True)
FORMS: Mapping[FormName, tuple[StateDictOptions, StateDictOptions]] = {
    "sharded": (StateDictOptions(), StateDictOptions()),
    "flat": (_FLAT, _FLAT),
    "whole": (_WHOLE, _WHOLE),
    "broadcast": (
        StateDictOptions(full_state_dict=True, cpu_offload=True),
        StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    ),
    "numbered": (StateDictOptions(), StateDictOptions()),
}
"""Options of the state that leaves, and of the one that enters; a numbered one is the optimizer's own."""


def _groups(model: nn.Module, seed: int) -> list[dict[str, Any]]:
    """Two groups of other rates, in whose second one parameters are not in the model's order."""
    one, *others = model.parameters()
    return [{"params": [one], "lr": 2.0**-seed}, {"params": others[::-1], "lr": 2.0 ** -(seed + 3)}]


MAKERS: Mapping[Kind, tuple[Callable[..., torch.optim.Optimizer], Callable[..., torch.optim.Optimizer]]] = {
    "without state": (torch.optim.SGD, lambda groups: torch.optim.SGD(groups, maximize=True)),
    "more state": (
        lambda groups: torch.optim.AdamW(groups, amsgrad=True, foreach=False),
        lambda groups: torch.optim.AdamW(groups, betas=(0.5, 0.5), foreach=False),
    ),
    "scalars": (
        lambda groups: torch.optim.ASGD(groups, foreach=False),
        lambda groups: torch.optim.ASGD(groups, lambd=0.5, foreach=False),
    ),
}
"""What makes the optimizer that a state leaves, and the one that it enters."""


def _made(ctx: Context, kind: Kind, shard: bool, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = {"module": nn.Linear(3, 5, dtype=DTYPE), "last": nn.Linear(5, 2, bias=False, dtype=DTYPE)}
    model = nn.Sequential(OrderedDict(layers))  # a layer is called as the one that a wrapper has
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value.copy_(integers(tuple(value.shape), DTYPE, seed=number))
    model.to(ctx.device)
    if shard:
        fully_shard(model, mesh=ctx.mesh((ctx.world_size,)))
    optimizer = MAKERS[kind][seed](_groups(model, seed))
    return (model if shard else DistributedDataParallel(model)), optimizer


def _step(ctx: Context, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for number, value in enumerate(model.parameters()):
        gradient = integers(tuple(value.shape), DTYPE, seed=16 * step + number).to(ctx.device)
        value.grad = (
            distribute_tensor(gradient, value.device_mesh, value.placements, src_data_rank=None)
            if isinstance(value, DTensor)
            else gradient
        )
    optimizer.step()
    optimizer.zero_grad()


def _whole(value: Any) -> torch.Tensor:
    tensor = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value, dtype=DTYPE)
    return tensor.detach().cpu().clone()


def _contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> Packed:
    found: Tensors = {}
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params" and isinstance(value, bool | int | float | tuple | list):
                found[f"group {number}, {key}"] = torch.tensor(value, dtype=DTYPE)
    for name, parameter in model.named_parameters():
        found[name] = _whole(parameter)
        found |= {f"{name}: {key}": _whole(value) for key, value in optimizer.state.get(parameter, {}).items()}
    return Packed.of(found)


NAMES = ["last.weight", "module.bias", "module.weight"]
"""The names in the model's state, however it is wrapped."""


def passed(ctx: Context, *, kind: Kind, form: FormName, shard: bool) -> tuple[list[str], list[Packed]]:
    """Passes a model's and an optimizer's state; returns names, what both have then, and after a step more of each.

    Args:
        ctx: the rank's context.
        kind: a key of ``MAKERS``.
        form: a key of ``FORMS``.
        shard: whether ranks share the parameters; else they have all of them, in DistributedDataParallel.
    """
    first, second = (_made(ctx, kind, shard, seed) for seed in range(2))
    for step in range(2):
        _step(ctx, *first, step)
    leaving, entering = FORMS[form]
    state: Any = first[1].state_dict() if form == "numbered" else get_optimizer_state_dict(*first, options=leaving)
    set_optimizer_state_dict(*second, copy.deepcopy(state), options=entering)
    weights = get_model_state_dict(first[0])
    set_model_state_dict(second[0], dict(weights))
    found = [_contents(*first), _contents(*second)]
    for each in (first, second):
        _step(ctx, *each, 2)
    return sorted(weights), [*found, _contents(*first), _contents(*second)]
