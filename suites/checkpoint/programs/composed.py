"""State dictionaries of what models are made of beside plain layers, and of several optimizers with options of groups.

A model has a compiled layer, one that is recomputed, two names for one weight, a frozen weight, one that no optimizer
has, buffers and extra state. One optimizer keeps nested state and plain numbers. Gradients are given, and no
forward pass is made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
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
from suites.checkpoint.programs.state_dicts import Form, enter, from_first, state_in
from suites.shared.inputs import integers
from suites.shared.step import Tensors
from suites.shared.training import Packed

DTYPE = torch.float64


class Scaled(nn.Module):
    """A weight, a buffer that is saved, one that is not, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.history = torch.zeros(2)

    def get_extra_state(self) -> torch.Tensor:
        """What ``state_dict`` has of it besides tensors."""
        return self.history.clone()

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Takes over what was saved."""
        self.history = state.clone()


class Composed(nn.Module):
    """Parts of which none is split evenly over two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.scaled = Scaled()
        self.compiled = torch.compile(nn.Linear(3, 5), backend="eager")
        self.frozen = nn.Linear(5, 3, bias=False).requires_grad_(False)
        self.recomputed = checkpoint_wrapper(nn.Linear(3, 2, bias=False))
        self.idle = nn.Parameter(torch.zeros(5))
        self.head = nn.Linear(3, 7)
        self.head.weight = self.embedding.weight


class Nested(torch.optim.Optimizer):
    """Sums of gradients and of their squares in a state of two levels, a whole number and another one."""

    def __init__(self, params: Any, rate: float) -> None:
        super().__init__(params, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Follows the gradients' sums."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    zeros = {"first": torch.zeros_like(parameter), "second": {"sum": torch.zeros_like(parameter)}}
                    state |= {"count": 0, "share": 1.0, "sums": zeros}
                state["count"] += 1
                state["share"] /= 2
                state["sums"]["first"] += parameter.grad
                state["sums"]["second"]["sum"] += parameter.grad.square()
                update = state["sums"]["first"] * state["share"] + state["sums"]["second"]["sum"] / state["count"]
                parameter -= group["lr"] * update


class Composition:
    """A model with its optimizers."""

    def __init__(self, ctx: Context, *, shard: bool, seed: int) -> None:
        """Builds them, of weights that a seed chooses.

        Args:
            ctx: the rank's context.
            shard: whether ranks share the weights; else they have all of them, in DistributedDataParallel.
            seed: of weights, buffers and options; the gradients are the same for all.
        """
        plain = Composed().to(DTYPE)
        with torch.no_grad():
            for number, value in enumerate([*plain.parameters(), *plain.buffers()]):
                value.copy_(integers(tuple(value.shape), DTYPE, seed=seed * 64 + number))
        plain.scaled.history = integers((2,), DTYPE, seed=seed)
        plain.to(ctx.device)
        self.scaled, self.frozen = plain.scaled, plain.frozen
        if shard:
            fully_shard(plain, mesh=ctx.mesh((ctx.world_size,)))
        self.model = plain if shard else DistributedDataParallel(plain)
        layer: Any = plain.compiled
        rate = 2.0**-seed
        adam = [
            # A rate that is a tensor, as compiled and captured steps need.
            {
                "params": [layer.weight, plain.frozen.weight],
                "lr": torch.tensor(rate / 2, dtype=DTYPE),
                "weight_decay": 0.25 * seed,
            },
            {"params": [layer.bias], "lr": rate / 4, "betas": (0.5, 0.5 + rate / 4)},
        ]
        self.optimizers = (
            Nested([{"params": [plain.embedding.weight]}, {"params": [plain.scaled.weight], "lr": rate / 8}], rate),
            torch.optim.AdamW(adam, foreach=False),
            torch.optim.SGD([plain.head.bias, *plain.recomputed.parameters()], lr=rate, momentum=0.5),
        )

    @property
    def optimizer(self) -> tuple[torch.optim.Optimizer, ...]:
        """All of them, as torch's functions take them."""
        return self.optimizers

    def train(self, step: int) -> None:
        """Takes a step, of gradients that it chooses."""
        for number, (_, parameter) in enumerate(self._parameters()):
            if parameter.requires_grad:
                whole = integers(tuple(parameter.shape), DTYPE, seed=step * 64 + number).to(parameter.device)
                if isinstance(parameter, DTensor):
                    whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.grad = whole
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def contents(self) -> Packed:
        """Whole parameters, buffers, states and settings, as training uses them: no state dictionary is asked."""
        found: Tensors = {"history": self.scaled.history.cpu()}
        found |= {name: _whole(value) for name, value in self._parameters()}
        found |= {_ours(name): _whole(value) for name, value in self.model.named_buffers()}
        for place, optimizer in enumerate(self.optimizers):
            for number, group in enumerate(optimizer.param_groups):
                where = f"optimizer {place}, group {number}"
                for key in ("lr", "weight_decay", "betas", "momentum"):
                    if key in group:
                        found[f"{where}, {key}"] = torch.as_tensor(group[key], dtype=DTYPE).cpu().clone()
        for name, parameter in self._parameters():
            for optimizer in self.optimizers:
                for key, value in _levels(optimizer.state.get(parameter, {})):
                    found[f"{name}: {key}"] = _whole(torch.as_tensor(value, dtype=DTYPE))
        return Packed.of(found)

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(_ours(name), parameter) for name, parameter in self.model.named_parameters()]


def _ours(name: str) -> str:
    return name.removeprefix("module.").replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _levels(state: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _levels(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", value


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def _two(ctx: Context, shard: bool) -> tuple[Composition, Composition]:
    """One that has trained, and one of other weights and options."""
    first, second = (Composition(ctx, shard=shard, seed=seed) for seed in (1, 2))
    for step in (1, 2):
        first.train(step)
    return first, second


def passed(ctx: Context, *, shard: bool, form: Form) -> tuple[list[str], list[str], list[Packed]]:
    """Passes a state to another model and optimizers; returns its names and what both have then, and a step later."""
    first, second = _two(ctx, shard)
    model, optimizer = copy.deepcopy(state_in(form, first))
    names = sorted(model), sorted(optimizer)
    if form.whole and form.on_cpu and not form.broadcast:
        model, optimizer = from_first((model, optimizer))
    enter(form, second, model, optimizer)
    found = [first.contents(), second.contents()]
    for composition in (first, second):
        composition.train(3)
    return (*names, [*found, first.contents(), second.contents()])


@dataclass(frozen=True, slots=True)
class InPart:
    """What a rank saw of a state that lacks parts."""

    names: list[str]
    """Keys of the model's state."""
    missing: list[str]
    unexpected: list[str]
    first: Packed
    """What was saved of."""
    second: Packed
    """What was loaded into, before that."""
    loaded: Packed


def in_part(ctx: Context, *, shard: bool, broadcast: bool, strict: bool) -> InPart:
    """Passes a state without what is frozen, without the head's bias and the state of one weight, and with a new name.

    Args:
        ctx: the rank's context.
        shard: whether ranks share the weights.
        broadcast: whether rank 0 alone has the state, whole, and sends it.
        strict: whether a name that is missing or unexpected is an error.
    """
    first, second = _two(ctx, shard)
    leaving = StateDictOptions(full_state_dict=broadcast, cpu_offload=broadcast, ignore_frozen_params=True)
    model = get_model_state_dict(first.model, options=leaving)
    optimizer = get_optimizer_state_dict(first.model, first.optimizers, options=leaving)
    model, optimizer = copy.deepcopy((model, optimizer))
    names = sorted(model)
    if names:
        model["tail.bias"] = model.pop("head.bias")
        states: Any = optimizer["state"]
        del states["scaled.weight"]
    before = second.contents()
    entering = StateDictOptions(full_state_dict=broadcast, broadcast_from_rank0=broadcast, strict=strict)
    found = set_model_state_dict(second.model, model, options=entering)
    set_optimizer_state_dict(second.model, second.optimizers, optimizer, options=entering)
    missing, unexpected = ([_ours(name) for name in sorted(of)] for of in (found.missing_keys, found.unexpected_keys))
    return InPart(names, missing, unexpected, first.contents(), before, second.contents())


def of_submodule(ctx: Context, *, shard: bool) -> tuple[Packed, Packed, Packed]:
    """Passes the state of two layers, under the names that they have there; returns both contents, and the new one."""
    first, second = _two(ctx, shard)
    before = second.contents()
    model = get_model_state_dict(first.model, submodules={first.scaled, first.frozen})
    by_module: Any = {second.scaled: {}, second.frozen: {}}
    for name, value in model.items():
        layer, _, own = name.partition(".")
        by_module[{"scaled": second.scaled, "frozen": second.frozen}[layer]][own] = value
    set_model_state_dict(second.model, by_module, options=StateDictOptions(strict=False))
    return first.contents(), before, second.contents()


KINDS: Mapping[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "without state": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5),
    "state from the beginning": lambda parameters: torch.optim.Adagrad(parameters, lr=0.5, foreach=False),
    "a tensor's rate": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.5), foreach=False),
}


def asked_between(ctx: Context, *, kind: str, pending: bool) -> list[Packed]:
    """An optimizer's state is asked for before its first step; returns what there is before, after, and after a step.

    The last is what a step without that leaves.

    Args:
        ctx: the rank's context.
        kind: a key of ``KINDS``.
        pending: whether gradients are there already; else they come afterwards.
    """

    def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
        layer = nn.Linear(3, 5, dtype=DTYPE)
        with torch.no_grad():
            for number, value in enumerate(layer.parameters()):
                value.copy_(integers(tuple(value.shape), DTYPE, seed=number))
        layer.to(ctx.device)
        fully_shard(layer, mesh=ctx.mesh((ctx.world_size,)))
        return layer, KINDS[kind](layer.parameters())

    def give_gradients(layer: nn.Linear) -> None:
        for number, value in enumerate(layer.parameters()):
            assert isinstance(value, DTensor)
            whole = integers(tuple(value.shape), DTYPE, seed=5 + number).to(ctx.device)
            value.grad = distribute_tensor(whole, value.device_mesh, value.placements, src_data_rank=None)

    def contents(layer: nn.Linear, optimizer: torch.optim.Optimizer) -> Packed:
        found = {name: _whole(value) for name, value in layer.named_parameters()}
        gradients = {name: value.grad for name, value in layer.named_parameters()}
        found |= {f"{name} gradient": _whole(value) for name, value in gradients.items() if value is not None}
        rate = torch.as_tensor(optimizer.param_groups[0]["lr"], dtype=DTYPE).cpu().clone()
        return Packed.of(found | {"rate": rate})

    asked, other = made(), made()
    for layer, _ in (asked, other):
        if pending:
            give_gradients(layer)
    found = [contents(*asked)]
    get_optimizer_state_dict(*asked)
    found.append(contents(*asked))
    for layer, optimizer in (asked, other):
        give_gradients(layer)
        optimizer.step()
        found.append(contents(layer, optimizer))
    return found


def with_an_empty_group(ctx: Context, *, whole: bool) -> list[Packed]:
    """Passes the state of an optimizer, one of whose groups is empty on these ranks, as a stage of a pipeline has it.

    Args:
        ctx: the rank's context.
        whole: whether the state is of whole tensors.
    """
    found = []
    compositions = [Composition(ctx, shard=False, seed=seed) for seed in (1, 2)]
    optimizers = []
    for number, composition in enumerate(compositions):
        adam = composition.optimizers[1]
        adam.add_param_group({"params": [], "lr": 0.125 + number})
        optimizers.append(adam)
    compositions[0].train(1)
    options = StateDictOptions(full_state_dict=whole)
    state = copy.deepcopy(get_optimizer_state_dict(compositions[0].model, optimizers[0], options=options))
    set_optimizer_state_dict(compositions[1].model, optimizers[1], state, options=options)
    for composition in compositions:
        contents = composition.contents().unpacked()
        found.append(Packed.of({name: value for name, value in contents.items() if _of_adam(name)}))
    return found


def _of_adam(name: str) -> bool:
    return name.startswith("optimizer 1") or (name.startswith("compiled") and ":" in name)
