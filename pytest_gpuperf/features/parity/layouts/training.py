"""The training loop that one device and ranks share."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf.features.parity.layouts.asked import Subject
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace
from pytest_gpuperf.features.parity.watching import watch

IGNORED = -100
"""The target that cross-entropy leaves out."""


class SplitError(Exception):
    """A model or a batch that an API cannot split; says why."""


def build(subject: Subject, seed: int | None = None) -> nn.Module:
    """Builds the user's model with seeded generators.

    Raises:
        TypeError: ``build`` returned no model.
    """
    seed = subject.seed if seed is None else seed
    torch.manual_seed(seed)
    random.seed(seed)
    model = subject.require("build")()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{subject.build} returned a {type(model).__name__}, expected a torch.nn.Module")
    return model


def make_optimizer(subject: Subject, model: nn.Module) -> torch.optim.Optimizer:
    """Makes the user's optimizer, or AdamW."""
    make = subject.function("optimizer")
    if make is None:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    made = make(model.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{subject.optimizer} returned a {type(made).__name__}, expected a torch.optim.Optimizer")
    return made


def make_batch(subject: Subject, step: int, device: torch.device) -> tuple[Any, Any]:
    """The inputs and targets of a step, from 1 on.

    Raises:
        TypeError: ``batch`` returned something else.
    """
    torch.manual_seed(subject.seed + step)
    random.seed(subject.seed + step)
    batch = subject.require("batch")(step)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"{subject.batch} returned a {type(batch).__name__}, expected (inputs, targets): inputs are a tensor, a "
            "tuple of arguments or a dict of keywords of the model"
        )
    return map_nested(lambda tensor: tensor.to(device), batch[0]), map_nested(
        lambda tensor: tensor.to(device), batch[1]
    )


def map_nested(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Applies a function to the tensors of tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_nested(change, one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map_nested(change, one) for one in value)
    return value


def list_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of tuples, lists and dictionaries."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_nested(note, value)
    return found


def call(model: nn.Module, inputs: Any) -> Any:
    """Calls a model with inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def compute_loss(subject: Subject, output: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sum of the losses of a batch, and their number.

    A user's loss returns this pair, or a mean; the mean counts as one over all targets.

    Raises:
        TypeError: there is no loss that fits.
    """
    function = subject.function("loss")
    if function is not None:
        loss = function(output, targets)
        if isinstance(loss, tuple) and len(loss) == 2:
            return loss[0], torch.as_tensor(loss[1], device=loss[0].device)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(f"{subject.loss} returned no number, expected a mean, or a sum and a count")
        count = sum(tensor.numel() for tensor in list_tensors(targets)[:1])
        return loss * count, torch.tensor(count, device=loss.device)
    if not isinstance(output, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__} for targets of type {type(targets).__name__}: give --loss"
        )
    if targets.is_floating_point():
        return F.mse_loss(output, targets, reduction="sum"), torch.tensor(targets.numel(), device=targets.device)
    flat = output.flatten(0, -2).float() if output.dtype.itemsize < 4 else output.flatten(0, -2)
    return F.cross_entropy(flat, targets.flatten(), reduction="sum"), (targets != IGNORED).sum()


class Shares:
    """How a batch is dealt to ranks, and what their gradients' mean needs; here, of one device."""

    averaged = 1
    """The number of ranks over which gradients are averaged."""

    def cut(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """This rank's part of the batch."""
        return batch

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a number over all parts of the batch."""
        return value

    def within(self, batch: tuple[Any, Any]) -> contextlib.AbstractContextManager[None]:
        """What surrounds forward and backward."""
        return contextlib.nullcontext()


def train(
    subject: Subject,
    model: nn.Module,
    wrapped: nn.Module,
    optimizer: torch.optim.Optimizer,
    shares: Shares,
    *,
    after: int = 0,
    finished: Callable[[int], None] = lambda step: None,
) -> Trace:
    """Trains, and returns the trace.

    Args:
        subject: the user's functions.
        model: whose modules and parameters are recorded.
        wrapped: is called; the model, or DDP around it.
        optimizer: of its parameters.
        shares: how batches are dealt.
        after: the steps that were done before.
        finished: is called at the end of each step.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    losses: list[Record] = []
    with watch(model, optimizer, after=after) as trace:
        for step in range(after + 1, subject.steps + 1):
            optimizer.zero_grad()
            whole = make_batch(subject, step, device)
            inputs, targets = shares.cut(whole)
            with shares.within((inputs, targets)):
                total, count = compute_loss(subject, call(wrapped, inputs), targets)
                loss = total / shares.total(count)
                (loss * shares.averaged).backward()
            losses.append(_make_loss_record(step, shares.total(loss.detach())))
            optimizer.step()
            finished(step)
    return Trace(dict(_merge_losses(trace, losses)), trace.titles, trace.meshes, trace.products)


def _make_loss_record(step: int, loss: torch.Tensor) -> Record:
    return Record(Key(step, Kind.VALUE, f"loss of step {step}"), loss.cpu())


def _merge_losses(trace: Trace, losses: Sequence[Record]) -> Iterator[tuple[Key, Record]]:
    """The records, with each loss behind the outputs of its step."""
    waiting = list(losses)
    for key, record in trace.records.items():
        if waiting and key.step == waiting[0].key.step and key.kind in (Kind.OUTPUT_GRADIENT, Kind.GRADIENT):
            first = waiting.pop(0)
            yield first.key, first
        yield key, record
    yield from ((record.key, record) for record in waiting)


def train_reference(
    subject: Subject, finished: Callable[[nn.Module, torch.optim.Optimizer, int], None] = lambda *_: None
) -> Trace:
    """Trains on one device.

    Args:
        subject: the user's functions.
        finished: is called with model, optimizer and step at the end of each step.
    """
    model = build(subject)
    optimizer = make_optimizer(subject, model)
    return train(subject, model, model, optimizer, Shares(), finished=lambda step: finished(model, optimizer, step))
