"""Training steps of one Llama-shaped model, replicated and sharded in several ways: for timing, and what each costs.

All ways train the same model on the same tokens, with fused AdamW and gradients that are clipped by the norm of all. A
step returns the loss of all tokens and that norm, on every rank.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.sharded_data_parallel.programs.stages import held, local_shard, state_tensors
from suites.shared.llama import Llama, loss_of
from suites.shared.llm import Workload
from suites.shared.step import Step
from suites.shared.traffic import Traffic, sizes
from suites.shared.training import squared_norm, zero_redundancy
from suites.shared.watchdog import WATCHDOG_SECONDS

MAX_NORM = 1.0
LOOKS = 20
"""At most so many times, beside a busy host."""
STEADY = 4
"""If as much is held so many times in a row, the watchdog has looked in between, also beside a busy host."""
CLOSE = 1.01
"""Times what tensors hold: an allocator that has more may have what NCCL holds."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What of the training's state a rank holds, and when it gathers parameters."""

    sharded: str = ""
    """``state``: ZeRO-1; ``all``: FSDP2. Nothing: DistributedDataParallel."""
    reshard: bool = True
    """Whether backward gathers the parameters anew; of FSDP2."""
    prefetch: int = 0
    """How many units ahead parameters are gathered; 0: as FSDP2 does by itself."""
    mixed: bool = False
    """Whether parameters, gradients and state have the workload's dtype of parameters, and only products the other."""


WAYS: Mapping[str, Sharding] = {
    "DDP": Sharding(),
    "ZeRO-1": Sharding(sharded="state"),
    "FSDP2": Sharding(sharded="all"),
    "FSDP2 gathered once": Sharding(sharded="all", reshard=False),
    "FSDP2 prefetch 2": Sharding(sharded="all", prefetch=2),
    "FSDP2 mixed": Sharding(sharded="all", mixed=True),
}


@dataclass(frozen=True, slots=True)
class Training:
    """A rank's model and optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    units: list[nn.Module]
    """What is gathered together each, in the order of the forward; of FSDP2."""
    copies: int
    """How many ranks hold each gradient."""


def prepared(ctx: Context, way: Sharding, work: Workload) -> Training:
    """The model, split in a way, and its optimizer; the weights are the same numbers in each way."""
    model = work.model(ctx.device)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(work.compute))  # rounded, if it is rounded anywhere
    if not way.mixed:
        model.to(work.compute)
    if way.sharded == "all":
        units = shard_units(ctx, model, way, work)
        return Training(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True), units, 1)
    replicas = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way.sharded == "state":
        make = zero_redundancy()
        optimizer = make(replicas.parameters(), torch.optim.AdamW, lr=LEARNING_RATE, fused=True)
        return Training(replicas, optimizer, [], ctx.world_size)
    return Training(
        replicas, torch.optim.AdamW(replicas.parameters(), lr=LEARNING_RATE, fused=True), [], ctx.world_size
    )


def shard_units(ctx: Context, model: Llama, way: Sharding, work: Workload) -> list[nn.Module]:
    """Shards the model in place: embedding, each layer and the head by itself, the last norm with the whole."""
    policy = MixedPrecisionPolicy(param_dtype=work.compute, reduce_dtype=work.parameters if way.mixed else None)
    units = [unit for unit in (model.embedding, *model.layers.values(), model.head) if unit is not None]
    for unit in (*units, model):
        # Said of the whole as well, which would stay gathered otherwise.
        fully_shard(unit, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=way.reshard, mp_policy=policy)
    if way.prefetch:
        for place, unit in enumerate(units):
            assert isinstance(unit, FSDPModule)
            unit.set_modules_to_forward_prefetch(fsdp(units[place + 1 : place + 1 + way.prefetch]))
            unit.set_modules_to_backward_prefetch(fsdp(units[max(0, place - way.prefetch) : place][::-1]))
    return units


def fsdp(units: list[nn.Module]) -> list[FSDPModule]:
    """Returns the modules as ``FSDPModule``: ``fully_shard`` has changed their class."""
    return [unit for unit in units if isinstance(unit, FSDPModule)]


def gradients(training: Training) -> list[torch.Tensor]:
    """What the rank holds of them."""
    return [local_shard(value.grad) for value in training.model.parameters() if value.grad is not None]


def step_of(ctx: Context, training: Training, work: Workload, max_norm: float = MAX_NORM) -> Step[torch.Tensor]:
    """The step of a rank, whose gradients all together have at most this norm."""
    x, target = work.batch(ctx)
    exact = torch.promote_types(work.compute, torch.float32)

    def step() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = loss_of(training.model(x), target)
        loss.backward()
        own = gradients(training)
        together = torch.stack([loss.detach().to(exact) / ctx.world_size, squared_norm(own) / training.copies])
        dist.all_reduce(together)  # one message for both numbers
        norm = together[1].sqrt()
        torch._foreach_mul_(own, (max_norm / norm).clamp(max=1.0))
        training.optimizer.step()
        return torch.stack([together[0], norm])

    return step


def train(ctx: Context, *, way: Sharding, work: Workload) -> Step[torch.Tensor]:
    """A step of training in a way."""
    return step_of(ctx, prepared(ctx, way, work), work)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a way of training costs a rank."""

    held: int
    """Bytes of parameters, gradients and optimizer state between steps, each byte once."""
    allocated: int | None
    """Bytes by which the device's allocator holds more between steps than before the training; None on CPUs."""
    traffic: dict[str, int]
    """Bytes of each collective of a step, the size of the whole tensor."""
    gathered: int
    """Units that are gathered, or on their way, while a unit runs its forward: the most of all; 0 without units."""
    gathered_back: int
    """Units that are gathered, or on their way, while one runs its backward: the most; 0 if none is gathered again."""

    def sent(self, world_size: int) -> float:
        """Bytes that a rank sends, if collectives go around a ring: of all_reduce 2 (R-1)/R, of others (R-1)/R."""
        times = {"all_reduce": 2}
        whole = sum(times.get(collective, 1) * nbytes for collective, nbytes in self.traffic.items())
        return whole * (world_size - 1) / world_size


def costs(ctx: Context, *, ways: Mapping[str, Sharding], work: Workload) -> dict[str, Cost]:
    """What the third step of each way takes; nothing of it is timed."""
    before = _allocated(ctx)
    return {name: cost(ctx, way, work, before) for name, way in ways.items()}


def cost(ctx: Context, way: Sharding, work: Workload, before: int | None) -> Cost:
    """What the third step of one way takes; nothing of it is timed.

    The device's allocator had ``before`` bytes at first; it is not asked if that is None.
    """
    training = prepared(ctx, way, work)
    step = step_of(ctx, training, work)
    step()
    step()  # DistributedDataParallel makes its buckets anew after the first
    traffic = Traffic()
    ahead: list[int] = []
    hooks = [
        # After the hook that gathers. The root gathers first of all, and each unit before this one has done so.
        unit.register_forward_pre_hook(lambda *_, place=place: ahead.append(_gathers(traffic) - 1 - place))
        for place, unit in enumerate(training.units)
    ]
    with traffic:
        step()
    for hook in hooks:
        hook.remove()
    state = [*training.model.parameters(), *gradients(training), *state_tensors(training.optimizer)]
    of_tensors = held(state).nbytes
    after = None if before is None else _allocated(ctx, CLOSE * of_tensors + before)
    allocated = None if before is None or after is None else after - before
    back = _ahead_in_backward(traffic, len(training.units)) if training.units else 0
    return Cost(of_tensors, allocated, sizes(traffic.calls), max(ahead, default=0), back)


def _gathers(traffic: Traffic) -> int:
    return sum(call.collective == "all_gather" for call in traffic.calls)


def _ahead_in_backward(traffic: Traffic, units: int) -> int:
    """Gathers of a step's backward that come before a unit's gradients are scattered, those of earlier units apart."""
    # The forward has gathered the units and the root. The root is gathered first in backward, and scattered last.
    gathers, scattered, most = -(units + 1) - 1, 0, 0
    for call in traffic.calls:
        gathers += call.collective == "all_gather"
        if call.collective == "reduce_scatter":
            most = max(most, gathers - scattered)
            scattered += 1
    return most


def _allocated(ctx: Context, expected: float = math.inf) -> int | None:
    """Bytes of the device's allocator, once it holds what the first products of matrices make.

    Those are cuBLAS's workspaces. Backward has one of its own, as it runs on a thread of its own.

    If there is more, the watchdog gets some time, and then a collective lets go of what it has seen. All ranks look as
    often.

    Args:
        ctx: the rank.
        expected: what there should be at most; if a rank has more, all look again. If nothing is expected, they look
            until it stays the same.
    """
    if ctx.device.type != "cuda":
        return None
    few = torch.ones(8, 8, dtype=torch.bfloat16, device=ctx.device, requires_grad=True)
    torch.mm(few, few).sum().backward()
    del few
    gc.collect()  # models of earlier programs hold themselves in cycles, and would be given back in between
    torch.cuda.synchronize()
    seen: list[int] = []
    for look in range(LOOKS):
        if look:
            time.sleep(WATCHDOG_SECONDS)  # torch has no event for it
        dist.barrier()
        seen.append(torch.cuda.memory_allocated())
        steady = len(seen) >= STEADY and len({*seen[-STEADY:]}) == 1
        again = not steady if expected == math.inf else seen[-1] > expected
        of_any = torch.tensor(float(again), device=ctx.device)
        dist.all_reduce(of_any, op=dist.ReduceOp.MAX)
        if not of_any.item():
            break
    return seen[-1]
