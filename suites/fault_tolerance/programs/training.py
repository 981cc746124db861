"""Data-parallel training that saves all its state: ``torchrun ... -m suites.fault_tolerance.programs.training FOLDER``.

What a step depends on is in a checkpoint: parameters, momentum, each rank's random numbers (dropout), and the step,
which gives the learning rate and the batch. SGD and the average of gradients are written out: torch's optimizer and
DistributedDataParallel import the compiler, which would cost each restart more than a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from suites.shared.course import IGNORED, LR, Course
from suites.shared.job_log import JobLog
from suites.shared.opened_groups import opened_groups
from suites.shared.step import gradient_of
from suites.shared.step_folders import StepFolders

MODULE = "suites.fault_tolerance.programs.training"
MOMENTUM = 0.5
DROPOUT = 0.25
_FILE = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the script is to train, and how it is to save."""

    seed: int
    steps: int = 17
    interval: int = 3
    """Steps between checkpoints."""
    patience: float = 3
    """Seconds that a rank waits in a collective of a step."""

    def store(self, folder: Path) -> None:
        """Writes it down for the script."""
        (folder / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def of(cls, folder: Path) -> Training:
        """What was written down."""
        return cls(**json.loads((folder / _FILE).read_text(encoding="utf-8")))


def train(folder: Path, training: Training, device: torch.device, group: dist.ProcessGroup) -> None:
    """Trains from the last checkpoint in the folder to the end, in the ranks' default group.

    Args:
        folder: for checkpoints and the log.
        training: what to train.
        device: of this rank.
        group: all ranks; for the collectives of steps.
    """
    rank = dist.get_rank()
    course = Course(training.seed, training.steps)
    network = course.network().to(device)
    velocity = [torch.zeros_like(parameter) for parameter in network.parameters()]
    torch.manual_seed(16 * training.seed + rank)
    checkpoints = StepFolders(folder)
    first = checkpoints.latest()
    if first:
        _restore(checkpoints.read(first, "rank-0.pt"), network, velocity)
        _set_random(checkpoints.read(first, f"rank-{rank}.pt")["random"], device)
    log = JobLog(folder, first)
    with _deterministic():
        for step in range(first, training.steps):
            log.at("step", step)
            x, classes = (part.to(device) for part in course.batch(rank, step))
            network.zero_grad()
            output = network(functional.dropout(x, DROPOUT))
            loss = functional.cross_entropy(output, classes, ignore_index=IGNORED)
            loss.backward()
            mean = _average(network, loss, group)
            _update(network, velocity, LR / (1 + step))
            log.stepped(step, mean)
            following = step + 1
            if following % training.interval == 0:
                state: dict[str, Any] = {"random": _random(device)}
                if rank == 0:
                    state |= {"network": network.state_dict(), "velocity": velocity}
                checkpoints.write(following, f"rank-{rank}.pt", state, lambda: log.at("save", following))  # noqa: B023
                _wait_for_all(device)
                if rank == 0:
                    checkpoints.commit(following)
                _wait_for_all(device)
                log.saved(following)
    log.close()


def _average(network: nn.Module, loss: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Replaces gradients by their mean over the ranks, and returns that of the loss."""
    gradients: list[torch.Tensor] = [gradient_of(parameter) for parameter in network.parameters()]
    flat = torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    mean: torch.Tensor
    mean, *parts = flat.split([1, *(gradient.numel() for gradient in gradients)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return mean


@torch.no_grad()
def _update(network: nn.Module, velocity: list[torch.Tensor], lr: float) -> None:
    for parameter, moving in zip(network.parameters(), velocity, strict=True):
        moving.mul_(MOMENTUM).add_(gradient_of(parameter))
        parameter.sub_(lr * moving)


@torch.no_grad()
def _restore(state: dict[str, Any], network: nn.Module, velocity: list[torch.Tensor]) -> None:
    network.load_state_dict(state["network"])
    for moving, saved in zip(velocity, state["velocity"], strict=True):
        moving.copy_(saved)


def _random(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the random numbers that dropout draws."""
    on_gpu = {"gpu": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **on_gpu}


def _set_random(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["gpu"], device)


def _wait_for_all(device: torch.device) -> None:
    here = torch.ones(1, device=device)
    dist.all_reduce(here)
    here.item()


@contextmanager
def _deterministic() -> Iterator[None]:
    """Equal bits in each run; unlike ``use_deterministic_algorithms`` this does not import the compiler."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _main(folder: Path) -> None:
    training = Training.of(folder)
    with opened_groups(training.patience) as (device, group):
        train(folder, training, device, group)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
