"""Training that stops, and goes on from what was saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.layouts import Layout, split_model
from suites.shared.llama import Config, loss_of
from suites.shared.step import Tensors
from suites.shared.training import Packed

LEARNING_RATE = 0.01
RATE_OF_NORMS = 0.25
"""As a share of that of the matrices: rates that are mixed up are others."""
DECAY = 0.75
"""The factor of the learning rate after each step: training that does not restore the rate continues with another."""
SEQUENCES, LENGTH = 12, 5
"""The number and length of the sequences of a step, on all ranks together; up to 4 ranks share them evenly."""

State = dict[str, Any]
"""What torch.distributed.checkpoint saves: tensors, DTensors and values, nested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained, and how it is split."""

    config: Config
    layout: Layout
    seed: int
    """The seed of weights and tokens."""
    dtype: torch.dtype = torch.float64

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens of a step, and those that follow them; of all ranks."""
        generator = torch.Generator().manual_seed(self.seed * 64 + step)
        tokens = torch.randint(self.config.vocabulary, (SEQUENCES, LENGTH + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]


class Training:
    """One rank's part of a training."""

    def __init__(
        self, ctx: Context, job: Setup, *, initial: int, build: Callable[..., nn.Module] = split_model
    ) -> None:
        """Builds the model and its optimizer.

        Args:
            ctx: the rank's context.
            job: what is trained.
            initial: the seed of the weights.
            build: takes what ``split_model`` takes, and returns the model with these weights.
        """
        self._ctx = ctx
        self._job = job
        self.step = 0
        self.model = build(ctx, job.config, job.layout, dtype=job.dtype, seed=initial)
        # Each group is of one mesh, as a fused kernel takes it: norms are whole where tensors of matrices are split.
        of_dims = [[value for value in self.model.parameters() if (value.dim() > 1) == wide] for wide in (True, False)]
        # Norms do not decay, and learn at a rate of their own.
        of_norms = {"params": of_dims[1], "weight_decay": 0.0, "lr": LEARNING_RATE * RATE_OF_NORMS}
        groups: list[dict[str, Any]] = [{"params": of_dims[0]}, of_norms]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)

    def train(self, steps: int) -> list[float]:
        """Takes so many steps, and returns the loss of each, over all ranks' tokens."""
        return [self._train() for _ in range(steps)]

    def _train(self) -> float:
        layout = self._job.layout
        part = self._ctx.rank // layout.tensor
        x, target = (
            tokens.chunk(layout.replicate * layout.shard)[part].to(self._ctx.device)
            for tokens in self._job.batch(self.step)
        )
        self.optimizer.zero_grad()
        loss = loss_of(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        for group in self.optimizer.param_groups:
            group["lr"] *= DECAY
        self.step += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return float(mean / self._ctx.world_size)

    def state(self) -> State:
        """What has to be saved."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def restore(self, state: State) -> None:
        """Puts back what was loaded into a state of this training."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def contents(self) -> Packed:
        """Whole parameters and optimizer state and settings, as training uses them: no state dictionary is asked."""
        found: Tensors = {"step": torch.tensor(self.step)}
        for number, group in enumerate(self.optimizer.param_groups):
            settings = [group["lr"], group["weight_decay"], *group["betas"], group["eps"]]
            found[f"settings {number}"] = torch.tensor(settings, dtype=torch.float64)
        for name, parameter in self._parameters():
            found[name] = _whole(parameter)
            for key, value in self.optimizer.state.get(parameter, {}).items():  # there is none before the first step
                found[f"{name} {key}"] = _whole(value)
        return Packed.of(found)

    def parameters(self) -> Packed:
        """Whole parameters by name."""
        return Packed.of({name: _whole(parameter) for name, parameter in self._parameters()})

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name.removeprefix("module."), parameter) for name, parameter in self.model.named_parameters()]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


@dataclass(frozen=True, slots=True)
class Run:
    """What a rank has of a training that saves, or that goes on."""

    checkpoint: Packed
    """When it saved, or when it had loaded."""
    losses: list[float]
    """After that."""
    end: Packed
    """Parameters after the last step."""


def fresh(ctx: Context, *, job: Setup) -> Packed:
    """What a training begins with, of which no state was ever taken."""
    return Training(ctx, job, initial=job.seed).contents()


def begun(ctx: Context, *, job: Setup, folder: Path, before: int, after: int) -> Run:
    """Trains, saves, and goes on training: what is never interrupted."""
    training = Training(ctx, job, initial=job.seed)
    training.train(before)
    dcp.save(training.state(), storage_writer=dcp.FileSystemWriter(folder))
    saved = training.contents()
    return Run(saved, training.train(after), training.parameters())


def continued(ctx: Context, *, job: Setup, folder: Path, after: int) -> Run:
    """Begins with other weights, loads what was saved on whatever ranks, and goes on."""
    training = Training(ctx, job, initial=job.seed + 1)
    state = training.state()
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    training.restore(state)
    loaded = training.contents()
    return Run(loaded, training.train(after), training.parameters())
