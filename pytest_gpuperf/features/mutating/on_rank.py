"""A program is called, and what it communicated and came to is observed. Runs in rank processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_gpuperf.features.mutating import digests
from pytest_gpuperf.features.mutating.faults import Calls, Fault, Site
from pytest_gpuperf.features.mutating.interception import Interception
from pytest_gpuperf.features.mutating.objects import Objects
from pytest_gpuperf.features.mutating.record import Record
from pytest_gpuperf.features.mutating.states import States
from pytest_gpuperf.features.mutating.symmetric import SymmetricSums


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rank saw of one program."""

    sites: Mapping[Site, Calls]
    applied: int
    """How many calls were altered."""
    changed: int
    """How many of these came to other bits."""
    digest: bytes
    """A digest of the result, and of the states of modules and optimizers."""
    sent: bytes
    """A digest of all that was sent."""
    shows: bool
    """Whether the program returned anything or had a state, by which a fault can show afterwards."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A program's result, and what was observed."""

    result: Any
    observation: Observation


def observe(
    context: Any,
    fault: Fault | None,
    trial: str,
    entry: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Observed:
    """Calls ``entry(context, *args, **kwargs)``, with a fault if one is given.

    Args:
        context: of this rank.
        fault: that is made; None to see only.
        trial: names this call among all that these ranks make.
        entry: the program.
        args: its arguments.
        kwargs: those with names.
    """
    record = Record(fault)
    objects = Objects(record)
    interception, states = Interception(record, lambda: objects.within, trial), States(record)
    with _states() as (modules, optimizers):
        with interception.install(), SymmetricSums(record).install(), objects.install(), states.install():
            result = entry(context, *args, **kwargs)
        if record.error is not None:
            raise record.error
        digest = digests.make_digest(digests.digest_states(modules.values(), optimizers.values()))
        digests.add(digest, result)
        shows = result is not None or bool(modules or optimizers)
    seen = Observation(record.sites, record.applied, record.changed, digest.digest(), record.digest(), shows)
    return Observed(result, seen)


@contextmanager
def _states() -> Iterator[tuple[dict[int, torch.nn.Module], dict[int, torch.optim.Optimizer]]]:
    """The modules that get parameters within, and the optimizers that step."""
    modules: dict[int, torch.nn.Module] = {}
    optimizers: dict[int, torch.optim.Optimizer] = {}

    def note_registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        modules[id(module)] = module

    def note_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        optimizers[id(optimizer)] = optimizer

    hooks = register_module_parameter_registration_hook(note_registered), register_optimizer_step_post_hook(note_step)
    try:
        yield modules, optimizers
    finally:
        for hook in hooks:
            hook.remove()
