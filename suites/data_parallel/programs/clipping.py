"""Gradients that ranks have averaged, clipped by torch's functions in each of their ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPES: Mapping[str, torch.dtype] = {
    "first": torch.float64,
    "second": torch.float32,
    "third": torch.float64,
    "scalar": torch.float64,
    "unused": torch.float64,
}
"""Parameters by name; no gradient reaches the last one."""
SHAPES = {"first": (3, 4), "second": (5,), "third": (2, 2), "scalar": (), "unused": (3,)}


@dataclass(frozen=True, slots=True)
class Clip:
    """A call of a function that clips."""

    of: Literal["all", "one", "unused", "nothing"]
    """Whether it is given all parameters, a tensor, one without a gradient, or none."""
    most: float
    norm_type: float | None = 2.0
    """None if each value is clipped."""
    foreach: bool | None = None
    apart: bool = False
    """Whether the norm is taken by a call of its own."""


CLIPS = {
    "largest": Clip("all", 2.5, float("inf")),
    "sum": Clip("all", 3.0, 1.0, foreach=True),
    "cubes": Clip("all", 3.0, 3.0, foreach=False),
    "tensor": Clip("one", 0.5),
    "tensor's sum": Clip("one", 0.5, 1.0, foreach=False, apart=True),
    "apart": Clip("all", 1.5, apart=True),
    "below": Clip("all", 1e6, 4.0),
    "below, one by one": Clip("all", 1e6, 4.0, foreach=False),
    "unused": Clip("unused", 1.0),
    "nothing": Clip("nothing", 1.0, apart=True),
    "values": Clip("all", 2.0, None),
    "values one by one": Clip("all", 3.0, None, foreach=False),
    "values at once": Clip("all", 3.0, None, foreach=True),
    "tensor's values": Clip("one", 1.0, None),
}


class _Given(nn.Module):
    """A loss whose gradients are given."""

    def __init__(self) -> None:
        super().__init__()
        for name, dtype in DTYPES.items():
            self.register_parameter(name, nn.Parameter(torch.ones(SHAPES[name], dtype=dtype)))

    def forward(self, given: Tensors) -> torch.Tensor:
        losses = [(self.get_parameter(name) * value).sum().double() for name, value in given.items()]
        return torch.stack(losses).sum()


def gradients(rank: int) -> Tensors:
    """A rank's gradients, of either sign; those of two ranks have a mean without rounding."""
    used = [name for name in DTYPES if name != "unused"]
    return {
        name: integers(SHAPES[name], DTYPES[name], seed=8 * rank + place, low=-9, high=9)
        for place, name in enumerate(used)
    }


def clipped(ctx: Context) -> list[Tensors]:
    """The norm that each call of ``CLIPS`` returns, and the gradients after it, by name."""
    module = DistributedDataParallel(_Given().to(ctx.device), find_unused_parameters=True)
    named = {name.removeprefix("module."): value for name, value in module.named_parameters()}
    told = []
    for clip in CLIPS.values():
        module.zero_grad()
        module({name: value.to(ctx.device) for name, value in gradients(ctx.rank).items()}).backward()
        norm = _clip(clip, named)
        held = {name: value.grad.detach().cpu().clone() for name, value in named.items() if value.grad is not None}
        told.append(held if norm is None else {"norm": norm.cpu(), **held})
    return told


def _clip(clip: Clip, named: Mapping[str, nn.Parameter]) -> torch.Tensor | None:
    # An iterator of all, which can be gone through once; but not of one tensor.
    several: Mapping[str, Iterable[nn.Parameter]] = {
        "all": iter(named.values()), "unused": [named["unused"]], "nothing": []
    }  # fmt: skip
    given = named["first"] if clip.of == "one" else several[clip.of]
    if clip.norm_type is None:
        nn.utils.clip_grad_value_(given, clip.most, foreach=clip.foreach)
        return None
    if not clip.apart:
        return nn.utils.clip_grad_norm_(given, clip.most, clip.norm_type, foreach=clip.foreach)
    parameters = [given] if isinstance(given, nn.Parameter) else list(given)
    held = [value.grad for value in parameters if value.grad is not None]
    norm = nn.utils.get_total_norm(held[0] if clip.of == "one" else held, clip.norm_type, foreach=clip.foreach)
    again = parameters[0] if clip.of == "one" else iter(parameters)
    nn.utils.clip_grads_with_norm_(again, clip.most, norm, foreach=clip.foreach)
    return norm
