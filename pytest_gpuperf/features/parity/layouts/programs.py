"""The programs that ranks run for a layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_gpuperf.features.parity.layouts.applying import apply
from pytest_gpuperf.features.parity.layouts.asked import Layout, Subject
from pytest_gpuperf.features.parity.layouts.training import SplitError, build, make_optimizer, train
from pytest_gpuperf.features.parity.on_rank import place
from pytest_gpuperf.features.parity.records import Trace
from pytest_gpuperf.ranks.context import Context

SAVED_AFTER = 1
"""The step after which a run saves its checkpoint."""
_OTHER_WEIGHTS = 7919
"""Added to the seed of a model whose weights a checkpoint shall replace."""


def run_whole(ctx: Context, subject: Subject, layout: Layout, plan: Mapping[str, str], folder: str) -> Trace | str:
    """Trains all steps, and saves a checkpoint after the first; returns why the model cannot be split, if so.

    Args:
        ctx: of the rank.
        subject: the user's functions.
        layout: how the model is split.
        plan: of tensor parallelism.
        folder: for the checkpoint.
    """
    torch.set_num_threads(1)
    try:
        model = build(subject).to(ctx.device)
        split = apply(ctx, subject, layout, model, plan)
        optimizer = make_optimizer(subject, model)

        def finish(step: int) -> None:
            if step == SAVED_AFTER and subject.steps > SAVED_AFTER:
                save(model, optimizer, Path(folder))

        return place(train(subject, model, split.wrapped, optimizer, split.shares, finished=finish), ctx)
    except SplitError as error:
        return str(error)


def resume_run(ctx: Context, subject: Subject, layout: Layout, plan: Mapping[str, str], folder: str) -> Trace:
    """Builds the model with other weights, loads a checkpoint, and trains the remaining steps.

    Args:
        ctx: of the rank.
        subject: the user's functions.
        layout: how the model is split.
        plan: of tensor parallelism.
        folder: of the checkpoint.
    """
    torch.set_num_threads(1)
    model = build(subject, subject.seed + _OTHER_WEIGHTS).to(ctx.device)
    split = apply(ctx, subject, layout, model, plan)
    optimizer = make_optimizer(subject, model)
    load(model, optimizer, Path(folder))
    return place(train(subject, model, split.wrapped, optimizer, split.shares, after=SAVED_AFTER), ctx)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Saves by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    dcp.save(_read_state(model, optimizer), checkpoint_id=folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Loads what ``save`` has saved, from any layout."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = _read_state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _read_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}
