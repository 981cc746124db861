"""State dictionaries in their forms: whole on one rank or sharded on all, nested or flat; and models without storage.

A state leaves one training and enters another one, which began with other weights, and trains on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.layouts import Layout, split_meta_model
from suites.checkpoint.programs.training import Run, Setup, State, Training
from suites.shared.llama import Config, initial_weights
from suites.shared.step import Tensors
from suites.shared.training import Packed


@dataclass(frozen=True, slots=True)
class Form:
    """How a state leaves a training, and how it enters another one."""

    whole: bool = True
    """Whether rank 0 gets whole tensors on its CPU, and the others nothing; else each rank gets its shards."""
    broadcast: bool = True
    """Whether rank 0 alone loads, and sends the others their parts; else all ranks load whole tensors."""
    flat: bool = False
    """Whether the optimizer's state has one level of names."""
    at_once: bool = False
    """Whether one call is made for both the model and the optimizer."""
    on_cpu: bool = True
    """Whether the state leaves the device."""

    @property
    def leaving(self) -> StateDictOptions:
        """The options of ``get_model_state_dict``."""
        return StateDictOptions(
            full_state_dict=self.whole, cpu_offload=self.on_cpu, flatten_optimizer_state_dict=self.flat
        )

    @property
    def entering(self) -> StateDictOptions:
        """The options of ``set_model_state_dict``."""
        return StateDictOptions(
            full_state_dict=self.whole,
            broadcast_from_rank0=self.whole and self.broadcast,
            strict=True,  # a flat state is recognised by its names, whatever the options say
        )


class Trained(Protocol):
    """A model with its optimizer, or with several."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | tuple[torch.optim.Optimizer, ...]:
        """The optimizer, or all of them."""


def state_in(form: Form, training: Trained) -> tuple[State, State]:
    """The model's and the optimizer's state in a form."""
    if form.at_once:
        both, of_optimizer = get_state_dict(training.model, training.optimizer, options=form.leaving)
        return both, dict(of_optimizer)
    model = get_model_state_dict(training.model, options=form.leaving)
    optimizer = get_optimizer_state_dict(training.model, training.optimizer, options=form.leaving)
    return model, dict(optimizer)


def enter(form: Form, training: Trained, model: State, optimizer: State) -> None:
    """Loads a state of this form."""
    # With both at once, torch takes an empty state for one that should not be loaded: ranks would part.
    if form.at_once and not (form.whole and form.broadcast):
        set_state_dict(
            training.model,
            training.optimizer,
            model_state_dict=model,
            optim_state_dict=optimizer,
            options=form.entering,
        )
        return
    set_model_state_dict(training.model, model, options=form.entering)
    set_optimizer_state_dict(training.model, training.optimizer, optimizer, options=form.entering)


@dataclass(frozen=True, slots=True)
class Passed:
    """What a rank saw of a state that passed from one training to another one."""

    before: Run
    """The training that the state left, and went on."""
    state: Packed
    """The model's state on the rank, of shards its own."""
    names: list[str]
    """Keys of the optimizer's state."""
    devices: set[str]
    """Types of the devices of the model's state."""
    after: Run
    """The training that the state entered."""


def passed(ctx: Context, *, job: Setup, form: Form, before: int, after: int) -> Passed:
    """Trains, passes the state to a training that began with other weights, and trains on with both.

    Args:
        ctx: the rank's context.
        job: what is trained.
        form: of the state.
        before: steps before.
        after: steps of both trainings afterwards.
    """
    first, second = (Training(ctx, job, initial=job.seed + number) for number in range(2))
    first.train(before)
    contents = first.contents()
    model, optimizer = state_in(form, first)
    state = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in model.items()}
    names, devices = sorted(optimizer), {value.device.type for value in state.values()}
    packed = Packed.of(state)
    # Copies, as a file would have them: the first training goes on with its own tensors.
    model, optimizer = copy.deepcopy((model, optimizer))
    if form.whole and not form.broadcast:
        model, optimizer = from_first((model, optimizer))
    enter(form, second, model, optimizer)
    second.step = first.step
    loaded = second.contents()
    return Passed(
        Run(contents, first.train(after), first.parameters()),
        packed,
        names,
        devices,
        Run(loaded, second.train(after), second.parameters()),
    )


def from_first(state: Any) -> Any:
    """Rank 0's, on all ranks."""
    held = [state]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def assigned(ctx: Context, *, job: Setup, by_hand: bool, steps: int) -> Run:
    """A model without storage gets rank 0's weights, and trains.

    Args:
        ctx: the rank's context.
        job: what is trained.
        by_hand: whether each rank cuts its shards and assigns them; else torch broadcasts and assigns them.
        steps: of the training.
    """

    def assign(ctx: Context, config: Config, layout: Layout, *, dtype: torch.dtype, seed: int) -> nn.Module:
        model = split_meta_model(ctx, config, layout, dtype=dtype)
        whole = initial_weights(config, dtype, seed) if by_hand or ctx.rank == 0 else {}
        if by_hand:
            model.load_state_dict(_cut(ctx, model, whole), strict=True, assign=True)
        else:
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(model, dict(whole), options=options)
        return model

    training = Training(ctx, job, initial=job.seed, build=assign)
    return Run(training.contents(), training.train(steps), training.parameters())


def ordinary(ctx: Context, *, job: Setup, steps: int) -> Run:
    """The training of a model that is made with its weights."""
    training = Training(ctx, job, initial=job.seed)
    return Run(training.contents(), training.train(steps), training.parameters())


def _cut(ctx: Context, model: nn.Module, whole: Tensors) -> State:
    """Each rank's part of the weights, as the model has it."""
    parts: State = {}
    for name, held in model.state_dict().items():
        assert isinstance(held, DTensor)
        assert held.is_meta
        parts[name] = distribute_tensor(whole[name].to(ctx.device), held.device_mesh, held.placements)
    return parts


def without_frozen(ctx: Context, *, job: Setup) -> list[str]:
    """Names of a state that leaves out what is not trained: the embedding and all norms."""
    training = Training(ctx, job, initial=job.seed)
    for name, value in training.model.named_parameters():
        value.requires_grad_("norm" not in name and "embedding" not in name)
    return list(get_model_state_dict(training.model, options=StateDictOptions(ignore_frozen_params=True)))


def of_submodule(ctx: Context, *, job: Setup, keep: bool) -> list[str]:
    """Names of the last layer's state, with the model's prefix or without it."""
    training = Training(ctx, job, initial=job.seed)
    layer = training.model.get_submodule("layers.0.feed_forward")
    options = StateDictOptions(keep_submodule_prefixes=keep)
    return list(get_model_state_dict(training.model, submodules={layer}, options=options))


def incomplete(ctx: Context, *, job: Setup, strict: bool) -> tuple[list[str], list[str]]:
    """Loads a state without the head and with a tensor that no model has; returns the missing and unexpected names."""
    training = Training(ctx, job, initial=job.seed)
    state = get_model_state_dict(training.model)
    state["tail.weight"] = state.pop("head.weight")
    found = set_model_state_dict(training.model, state, options=StateDictOptions(strict=strict))
    return list(found.missing_keys), list(found.unexpected_keys)
