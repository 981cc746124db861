"""Trains the same epochs in one process, without torchrun, and sets the moments at which a machine comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch.func import functional_call
from torch.nn import functional

from suites.elastic.programs import MOMENTUM, Epochs
from suites.shared.course import LR
from suites.shared.job_log import Entry, Mishap, attempts_of, plan_mishaps, read_log
from suites.shared.torchrun import DEADLINE, Job, Torchrun, meeting_place


@dataclass(frozen=True, slots=True)
class Moments:
    """When the world changes: both machines have a rank each, and the first one stays."""

    grow: int
    """The step at which rank 0, which is alone, waits for a second machine."""
    shrink: int
    """The step before which the second machine is lost."""

    @classmethod
    def drawn(cls, steps: int, seed: int) -> Moments:
        """Two steps, neither of which is the first one."""
        return cls(*sorted(Random(seed).sample(range(1, steps), 2)))


def come_and_gone(script: Sequence[str], folder: Path, moments: Moments, gpus: Sequence[str]) -> list[Entry]:
    """Runs a script while a second machine comes and is lost; the job's log.

    Args:
        script: torchrun's, with its arguments.
        folder: of the job.
        moments: when the machine comes and when it is lost.
        gpus: one for each machine, or none.
    """
    alone = Mishap(kind="hang", rank=0, step=moments.grow, until=2)
    together = Mishap(kind="hang", rank=1, step=moments.shrink)
    plan_mishaps(folder, [alone, together])
    job = Job(script=script, machines="1:2", max_restarts=3)
    first_gpu, second_gpu = gpus or ("", "")

    def befell(mishap: Mishap) -> bool:
        return any(entry.mishap == mishap for entry in read_log(folder))

    come = folder / "come"
    # The machine that starts first has the lower process id, so it has rank 0.
    with (
        meeting_place() as meeting,
        Torchrun(job, meeting=meeting, log=folder / "first", gpus=first_gpu) as first,
    ):
        with Torchrun(job, meeting=meeting, log=folder / "second", gpus=second_gpu, held=come) as second:
            first.wait_until(lambda: befell(alone), f"rank 0 came to step {moments.grow}")
            come.touch()
            second.wait_until(lambda: befell(together), f"rank 1 came to step {moments.shrink}")
        first.wait(2 * DEADLINE)
    return read_log(folder)


def worlds(log: Sequence[Entry]) -> list[int]:
    """The sizes of the worlds that trained, one after another; attempts in a world of the same size count once."""
    sizes = [attempt[0].world_size for attempt in attempts_of(log)]
    return [size for index, size in enumerate(sizes) if index == 0 or size != sizes[index - 1]]


def losses_in_one_process(epochs: Epochs) -> list[float]:
    """The loss of each step; SGD with momentum written out anew."""
    x, classes = epochs.data()
    network = epochs.network()
    parameters = {name: value.detach().clone() for name, value in network.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in parameters.items()}
    found = []
    for step in range(epochs.steps):
        ids = epochs.ids(step)
        leaves = {name: value.requires_grad_() for name, value in parameters.items()}
        loss = functional.cross_entropy(functional_call(network, leaves, (x[ids],)), classes[ids])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            velocity[name] = MOMENTUM * velocity[name] + gradient
        parameters = {name: value.detach() - LR * velocity[name] for name, value in leaves.items()}
        found.append(loss.item())
    return found
