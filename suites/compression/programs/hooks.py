"""torch's other hooks of DistributedDataParallel: wrappers that cast, and averages over some of the ranks."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

from pytest_gpuperf import Context
from suites.compression.programs.averaging import Hook, average


def in_bfloat16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """All-reduces the bucket in bfloat16; by another name, as builds without NCCL refuse torch's."""
    hooked: torch.futures.Future[torch.Tensor] = bf16_compress_wrapper(allreduce_hook)(state, bucket)
    return hooked


def in_float16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """All-reduces the bucket in float16."""
    hooked: torch.futures.Future[torch.Tensor] = fp16_compress_wrapper(allreduce_hook)(state, bucket)
    return hooked


def to_bfloat16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends bfloat16 over a group; by another name, too."""
    return bf16_compress_hook(state, bucket)


def local_in_float16(state: PostLocalSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Another hook than an all-reduce in a wrapper that casts."""
    hooked: torch.futures.Future[torch.Tensor] = fp16_compress_wrapper(post_localSGD_hook)(state, bucket)
    return hooked


def pair_of(ctx: Context) -> dist.ProcessGroup:
    """The rank and its neighbour."""
    return ctx.mesh((ctx.world_size // 2, 2), ("outer", "inner")).get_group("inner")


STARTS = {"local": 2, "own": 1, "local in float16": 3}
"""Steps of local hooks in which all ranks average."""


def local_state(ctx: Context, hook: str) -> PostLocalSGDState:
    """Averages over all at first; after that over the rank's neighbour, or of one hook ``own`` gradients stay."""
    return PostLocalSGDState(
        ctx.group,
        pair_of(ctx),
        start_localSGD_iter=STARTS[hook],
        post_local_gradient_allreduce=hook != "own",
    )


HOOKS: Mapping[str, Hook] = {
    "float16": in_float16,
    "bfloat16": in_bfloat16,
    "local": post_localSGD_hook,
    "own": post_localSGD_hook,
    "local in float16": local_in_float16,
    "pairs": fp16_compress_hook,
    "pairs in bfloat16": to_bfloat16,
    "pairs in float32": allreduce_hook,
}


@dataclass(frozen=True, slots=True)
class GivenByRank:
    """A rank's gradients, by rank."""

    of_ranks: list[list[torch.Tensor]]

    def __call__(self, ctx: Context) -> list[torch.Tensor]:
        """The rank's, on its device."""
        return [gradient.to(ctx.device) for gradient in self.of_ranks[ctx.rank]]


def steps(ctx: Context, *, hook: str, gradients: list[list[torch.Tensor]], number: int) -> list[list[torch.Tensor]]:
    """What a hook makes of the ranks' gradients in each of so many steps; from the second on, each is a bucket."""

    def state() -> Any:
        if hook in STARTS:
            return local_state(ctx, hook)
        return pair_of(ctx) if hook.startswith("pairs") else ctx.group

    step = average(ctx, gradients=GivenByRank(gradients), hook=HOOKS[hook], state=state, bucket_cap_mb=1e-5)
    return [[gradient.detach().clone().cpu() for gradient in step()] for _ in range(number)]
