"""PowerSGD with its options: matrices that are compressed in batches, a state that is pickled, and what is fed back.

All gradients are in one bucket: of several, gloo's threads would exchange the parts in an order of their own.
"""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from pytest_gpuperf import Context
from suites.compression.programs.averaging import Hook, average
from suites.compression.programs.hooks import GivenByRank, pair_of

Wrapper = Callable[[Hook], Hook]


@dataclass(slots=True)
class Held:
    """A state that may be replaced between steps, and the shapes of the bucket's gradients, in order."""

    state: PowerSGDState
    shapes: list[torch.Size] = field(default_factory=list)

    def replace(self) -> None:
        """Puts in the state's place what is left of it when it has been pickled."""
        stored = io.BytesIO()
        pickle.dump(self.state, stored)
        self.state = pickle.loads(stored.getvalue())


def held_low_rank(held: Held, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's ``powerSGD_hook`` with the state that is held now."""
    held.shapes = [parameter.shape for parameter in bucket.parameters()]
    return powerSGD_hook(held.state, bucket)


def wrapped_low_rank(wrapper: Wrapper) -> Hook:
    """Returns the hook in one of torch's wrappers, by another name: builds without NCCL refuse one wrapper's name."""

    def hook(held: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return wrapper(held_low_rank)(held, bucket)

    return hook


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank has after its steps."""

    steps: list[list[torch.Tensor]]
    """The gradients of each."""
    errors: dict[torch.Size, list[torch.Tensor]]
    """What it feeds back into the next step, by shape."""
    stats: tuple[float, int, int]
    """The state's own: how much smaller gradients have become, their elements before that and after it."""


def low_rank_steps(
    ctx: Context,
    *,
    gradients: list[list[torch.Tensor]],
    number: int,
    restored: int | None = None,
    pairs: bool = False,
    wrapper: Wrapper | None = None,
    **options: Any,
) -> Told:
    """Averages a rank's gradients so many times.

    Args:
        ctx: the rank's context.
        gradients: by rank; the same in each step.
        number: of steps.
        restored: after so many steps the state is pickled and read again.
        pairs: whether a rank averages with its neighbour alone.
        wrapper: of the hook, one that casts.
        options: of the state.
    """
    held = Held(PowerSGDState(pair_of(ctx) if pairs else ctx.group, **{"random_seed": 1, **options}))
    step = average(
        ctx,
        gradients=GivenByRank(gradients),
        hook=held_low_rank if wrapper is None else wrapped_low_rank(wrapper),
        state=lambda: held,
    )
    told = []
    for count in range(number):
        if count == restored:
            held.replace()
        told.append([gradient.detach().clone().cpu() for gradient in step()])
    errors: dict[torch.Size, list[torch.Tensor]] = {}
    for error in held.state.error_dict.values():  # of the one bucket, if errors are fed back
        for shape, part in zip(held.shapes, error.cpu().split([shape.numel() for shape in held.shapes]), strict=True):
            errors.setdefault(shape, []).append(part.view(shape))
    return Told(told, errors, held.state.compression_stats())
