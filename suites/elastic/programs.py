"""Training in a world that changes: ``torchrun --nnodes=1:2 ... -m suites.elastic.programs FOLDER``.

Each epoch has all samples, in an order of its own. A step has a batch of the same size in every world, and the ranks
share it. The last batch of an epoch may have fewer samples than there are ranks. SGD is written out: torch's optimizer
imports the compiler, which would cost each restart more than a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from suites.shared.course import CLASSES, FEATURES, LR, Course
from suites.shared.job_log import JobLog
from suites.shared.opened_groups import opened_groups
from suites.shared.step import gradient_of
from suites.shared.step_folders import StepFolders

MODULE = "suites.elastic.programs"
MOMENTUM = 0.5
_FILE = "epochs.json"
_CHECKPOINT = "state.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """What the script is to train, and how often it saves."""

    seed: int
    samples: int = 21
    batch: int = 4
    epochs: int = 2
    interval: int = 2
    """Steps between checkpoints."""
    patience: float = 5.0
    """Seconds that a rank waits in a collective of a step. NCCL notices in no other way that a machine is lost."""

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        """The number of steps of all epochs."""
        return self.epochs * self.per_epoch

    def ids(self, step: int) -> list[int]:
        """The samples of a step, in the order that the seed gives the epoch."""
        epoch, position = divmod(step, self.per_epoch)
        generator = torch.Generator().manual_seed(self.seed * 16 + epoch)
        order = torch.randperm(self.samples, generator=generator).tolist()
        return order[position * self.batch : (position + 1) * self.batch]

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All samples and their classes, on the CPU."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.samples, FEATURES, generator=generator, dtype=torch.float64)
        return x, torch.randint(CLASSES, (self.samples,), generator=generator)

    def network(self) -> nn.Module:
        """The network before the first step, on the CPU."""
        return Course(self.seed).network()

    def store(self, folder: Path) -> None:
        """Writes it down for the script."""
        (folder / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def of(cls, folder: Path) -> Epochs:
        """What was written down."""
        return cls(**json.loads((folder / _FILE).read_text(encoding="utf-8")))


def train(folder: Path, epochs: Epochs, device: torch.device, group: dist.ProcessGroup, stop: int) -> None:
    """Trains from the last checkpoint in the folder on, on as many ranks as there are now.

    Args:
        folder: for checkpoints and the log.
        epochs: what to train.
        device: of this rank.
        group: all ranks; for the collectives of steps.
        stop: the step before which it ends.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, classes = (part.to(device) for part in epochs.data())
    network = epochs.network().to(device)
    velocity = [torch.zeros_like(parameter) for parameter in network.parameters()]
    checkpoints = StepFolders(folder)
    first = checkpoints.latest()
    if first:
        _restore(checkpoints.read(first, _CHECKPOINT), network, velocity)
    log = JobLog(folder, first)
    for step in range(first, stop):
        log.at("step", step)
        batch = epochs.ids(step)
        mine = batch[rank::world_size]
        network.zero_grad()
        # A sum, of nothing if there are fewer samples than ranks: the mean is over the whole batch.
        loss = functional.cross_entropy(network(x[mine]), classes[mine], reduction="sum")
        loss.backward()
        mean = _summed(network, loss, group) / len(batch)
        _update(network, velocity, len(batch))
        log.stepped(step, mean, mine)
        following = step + 1
        if following % epochs.interval == 0 and rank == 0:
            checkpoints.write(following, _CHECKPOINT, {"network": network.state_dict(), "velocity": velocity})
            checkpoints.commit(following)
            log.saved(following)
    log.close()


def _summed(network: nn.Module, loss: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Replaces gradients by their sum over the ranks, and returns that of the loss."""
    gradients: list[torch.Tensor] = [gradient_of(parameter) for parameter in network.parameters()]
    flat = torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(flat, group=group)
    total: torch.Tensor
    total, *parts = flat.split([1, *(gradient.numel() for gradient in gradients)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return total


@torch.no_grad()
def _update(network: nn.Module, velocity: list[torch.Tensor], samples: int) -> None:
    for parameter, moving in zip(network.parameters(), velocity, strict=True):
        moving.mul_(MOMENTUM).add_(gradient_of(parameter) / samples)
        parameter.sub_(LR * moving)


@torch.no_grad()
def _restore(state: Mapping[str, object], network: nn.Module, velocity: list[torch.Tensor]) -> None:
    network.load_state_dict(state["network"])  # type: ignore[arg-type]
    for moving, saved in zip(velocity, state["velocity"], strict=True):  # type: ignore[call-overload]
        moving.copy_(saved)


def _main(folder: Path) -> None:
    epochs = Epochs.of(folder)
    with opened_groups(epochs.patience) as (device, group):
        train(folder, epochs, device, group, epochs.steps)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
