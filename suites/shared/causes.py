"""What may have led to wrong numbers, as the judge of ``parity`` names it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

CAUSE = "cause: "
UNKNOWN = "unknown"
LEAST, LARGEST = 4, 2**20
"""Elements of a tensor whose cause is looked for: of a few numbers anything may be the cause."""


class _Held:
    """Ranks whose programs ran already: what they hold is at hand."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def run(self, entry: Callable[..., Any], *args: Any) -> list[Any]:
        contexts = [
            SimpleNamespace(rank=rank, world_size=self.world_size, meshes=[], device=torch.device("cpu"))
            for rank in range(self.world_size)
        ]
        return [entry(context, *args) for context in contexts]


def cause_of(name: str, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    """The cause of what ranks hold in place of what is expected of them; empty if none is known.

    Args:
        name: of the tensor.
        got: by rank.
        expected: by rank; parts of one tensor along its first dimension, or copies of it.
    """
    whole = expected[0] if all(_equal(expected[0], part) for part in expected) else _joined(expected)
    if whole is None or not LEAST <= whole.numel() <= LARGEST or len(got) < 2:
        return ""

    def program(ctx: Any) -> dict[str, torch.Tensor]:
        return {name: got[ctx.rank].detach().cpu()}

    # The comparison has failed whatever the judge makes of it: it takes no integers, for example.
    with contextlib.suppress(Exception):
        from pytest_gpuperf import Parity  # only a failure needs the judge

        judge = Parity(cast("Any", _Held(len(got))))
        report = judge.report(lambda: {name: whole.clone()}, program, samples=2)
        for line in str(report).splitlines():
            cause = line.strip().removeprefix(CAUSE)
            if cause != line.strip() and not cause.startswith(UNKNOWN):
                return cause
    return ""


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    if any(part.dim() == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        return None
    return torch.cat([part.detach().cpu() for part in parts])
