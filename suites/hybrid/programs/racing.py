"""Training steps as people take them: gradients clipped by the norm of all, fused AdamW. For timing.

All meshes train the same model on the same tokens. A step returns the loss of all tokens and the norm of all gradients,
on every rank: what all meshes have in common.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Infeasible
from suites.hybrid.programs.clipping import local, parts_of, squared
from suites.hybrid.programs.training import Mesh, Training, training
from suites.shared.llama import Config, Llama, draw_on_device
from suites.shared.step import Step

LEARNING_RATE = 1e-3
MAX_NORM = 1.0


def meshes(world_size: int) -> dict[str, Mesh]:
    """Every mesh of so many ranks, by name: shards of the batch, context, stages and tensors, the last innermost."""

    def degrees(left: int, axes: tuple[str, ...]) -> Iterator[Mesh]:
        if not axes:
            if left == 1:
                yield {}
            return
        for degree in (divisor for divisor in range(1, left + 1) if left % divisor == 0):
            for rest in degrees(left // degree, axes[1:]):
                yield {axes[0]: degree, **rest} if degree > 1 else rest

    found = sorted(degrees(world_size, ("pp", "shard", "cp", "tp")), key=len)
    return {" ".join(f"{axis}{degree}" for axis, degree in mesh.items()): mesh for mesh in found}


def train(
    ctx: Context,
    *,
    mesh: Mesh,
    config: Config,
    arithmetic: torch.dtype,
    sequences: int,
    length: int,
    seed: int,
    max_norm: float = MAX_NORM,
) -> Step[torch.Tensor]:
    """A step of training; a pipeline takes a sequence of each rank of the batch at a time.

    Args:
        ctx: the rank's context.
        mesh: axes and degrees.
        config: the model's sizes.
        arithmetic: dtype of weights, gradients and the optimizer's state.
        sequences: of all ranks together.
        length: tokens of a sequence.
        seed: of the weights and of the tokens.
        max_norm: of all gradients together.

    Raises:
        Infeasible: the mesh does not divide the model or the batch.
    """
    shares = mesh.get("shard", 1)
    if sequences % shares:
        raise Infeasible(f"{sequences} sequences make no {shares} equal shares")
    tokens = torch.randint(config.vocabulary, (sequences, length + 1), generator=torch.Generator().manual_seed(seed))
    try:
        rank = training(
            ctx,
            mesh=mesh,
            config=config,
            dtype=arithmetic,
            seed=seed,
            microbatches=sequences // shares,
            draw=draw_on_device,
            optimize=adamw,
        )
        x, target = (rank.part(part).to(ctx.device) for part in (tokens[:, :-1], tokens[:, 1:]))
    except ValueError as error:
        raise Infeasible(str(error)) from error
    return stepping(ctx, rank, mesh, x, target, max_norm)


def stepping(
    ctx: Context, rank: Training, mesh: Mesh, x: torch.Tensor, target: torch.Tensor, max_norm: float
) -> Step[torch.Tensor]:
    """The step of a rank; returns the loss and the norm of the gradients before they were clipped."""
    of_stage = ctx.world_size // mesh.get("pp", 1)
    parts: list[torch.Tensor] = []  # made once: a copy from the host in each step would have it wait for the GPU

    def step() -> torch.Tensor:
        rank.optimizer.zero_grad()
        loss = rank.step(x, target)
        held = [gradient for value in rank.model.parameters() if (gradient := value.grad) is not None]
        exact = torch.promote_types(held[0].dtype, torch.float32)
        together = torch.zeros(2, dtype=exact, device=ctx.device)
        if loss is not None:
            together[0] = loss / of_stage
        if not parts:
            parts.append(parts_of(held))
        together[1] = squared(held, parts[0], of_stage)
        dist.all_reduce(together)  # one message for both numbers
        norm = together[1].sqrt()
        torch._foreach_mul_([local(gradient) for gradient in held], (max_norm / norm).clamp(max=1.0))
        rank.optimizer.step()
        return torch.stack([together[0], norm])

    return step


def adamw(model: Llama) -> torch.optim.Optimizer:
    """AdamW; a fused kernel takes no tensors of different meshes, so each mesh has a group of its own."""
    groups: dict[object, list[torch.nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], lr=LEARNING_RATE, fused=True)
