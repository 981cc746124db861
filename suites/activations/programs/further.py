"""Further ways to recompute: part of an operation's calls, results that are several tensors, inputs of all kinds."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from suites.activations.programs.recomputing import WAYS, each
from suites.activations.programs.techniques import Technique


def _second_product(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A policy keeps one of a block's two products: the one whose second factor has more rows, hidden features."""

    def keeps(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = operation is torch.ops.aten.mm.default and len(args[1]) > x.shape[1]
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, keeps)
    output: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return output


def _several_results(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Operations whose results are several tensors are kept: largest columns, and the parts of a whole, views of it."""

    def parted(x: torch.Tensor) -> torch.Tensor:
        made = block(x)
        once, twice = torch.stack([made, made.detach() + made]).unbind()
        largest, places = twice.max(dim=1, keepdim=True)
        nothing = largest - twice.gather(1, places)
        output: torch.Tensor = twice - once + once - made.detach() + nothing
        return output * 1

    kept = [torch.ops.aten.max.dim, torch.ops.aten.unbind.int, torch.ops.aten.mm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    output: torch.Tensor = checkpoint(parted, x, use_reentrant=False, context_fn=contexts)
    return output


def _of_all_kinds(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Passes a block tensors and other values by position, by name and in lists; each has a separate effect."""
    offset, taken = x * 3, x * 5

    def of_all(
        factor: int, x: torch.Tensor, nothing: None, offset: torch.Tensor, *, listed: dict[str, list[torch.Tensor]]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert nothing is None
        return block(x) * factor + offset, {"taken": listed["taken"][0].relu()}

    made, others = checkpoint(of_all, 2, x, None, offset, listed={"taken": [taken]}, use_reentrant=False)
    output: torch.Tensor = (made - offset + others["taken"] - taken.relu()) / 2
    return output


FURTHER: Mapping[str, Technique] = {
    "selective, one of two products": each(_second_product),
    "selective, of several results": each(_several_results),
    "of all kinds": each(_of_all_kinds),
}
ALL: Mapping[str, Technique] = {**WAYS, **FURTHER}
