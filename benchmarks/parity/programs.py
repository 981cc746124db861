"""Programs that train the small models in parallel, rightly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.parity.models import Batch, Deep, Language, Mlp, Setup, batches, build, loss_of, named, optimizer_of
from benchmarks.parity.regions import Copy, Reduce
from pytest_gpuperf import Context, watch
from pytest_gpuperf.features.parity.records import Trace


class _SplitLinear(nn.Linear):
    """A linear layer that adds up blocks of the inner dimension, the last one first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = list(zip(x.chunk(4, -1), self.weight.chunk(4, -1), strict=True))[::-1]
        out = sum((a @ b.T for a, b in pieces[1:]), pieces[0][0] @ pieces[0][1].T)
        return out if self.bias is None else out + self.bias


class _Shift(torch.autograd.Function):
    """To the next rank of the ring."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rank: int, world: int) -> torch.Tensor:
        ctx.place = rank, world
        return _shifted(x, rank, world, 1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rank, world = ctx.place
        return _shifted(g, rank, world, -1), None, None


def _shifted(x: torch.Tensor, rank: int, world: int, by: int) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    operations = [dist.P2POp(dist.isend, x, (rank + by) % world), dist.P2POp(dist.irecv, out, (rank - by) % world)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return out


def _move(x: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    out: torch.Tensor = _Shift.apply(x, rank, world)  # type: ignore[no-untyped-call]
    return out


def ring(rank: int, world: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Causal attention over contiguous chunks of the sequence; keys and values go round."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length, scale = q.shape[2], q.shape[-1] ** -0.5
        mine = torch.arange(rank * length, (rank + 1) * length, device=q.device)[:, None]
        out = lse = torch.zeros((), device=q.device)
        for turn in range(world):
            owner = (rank - turn) % world
            theirs = torch.arange(owner * length, (owner + 1) * length, device=q.device)[None]
            scores = ((q @ k.transpose(-1, -2)) * scale).masked_fill(theirs > mine, -1e30)
            more, more_lse = scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True)
            if turn == 0:
                out, lse = more, more_lse
            else:  # later keys have no weight; all ranks must take part in each backward pass
                more_lse = torch.where(theirs[:, :1] > mine, more_lse.detach() * 0 - 1e30, more_lse) + 0 * more_lse
                both = torch.logaddexp(lse, more_lse)
                out, lse = out * (lse - both).exp() + more * (more_lse - both).exp(), both
            if turn + 1 < world:
                k, v = _move(k, rank, world), _move(v, rank, world)
        return out

    return attend


def program(ctx: Context, setup: Setup, seed: int) -> Trace | dict[str, torch.Tensor]:
    """Trains on ranks what ``reference`` trains on one device."""
    with _kernels(setup):
        return _pipeline(ctx, setup, seed) if setup.parallel == "pipeline" else _trained(ctx, setup, seed)


@contextlib.contextmanager
def _kernels(setup: Setup) -> Iterator[None]:
    """Chooses the kernels of a setup."""
    before = torch.get_float32_matmul_precision()
    if setup.tf32:
        torch.set_float32_matmul_precision("high")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if setup.flash else contextlib.nullcontext():
        yield
    if setup.tf32:
        torch.set_float32_matmul_precision(before)


def _trained(ctx: Context, setup: Setup, seed: int) -> Trace | dict[str, torch.Tensor]:
    model = build(setup, seed).to(ctx.device)
    if setup.split_sums:
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = _SplitLinear
    called: Any
    called, shards, place, dim = _parallelised(ctx, model, setup)
    if setup.checkpointed:
        _checkpoint(model)
    if setup.compiled:
        called = torch.compile(called, backend="aot_eager")
    optimizer = _optimizer(setup, called, model)
    losses = []
    with watch(model, optimizer, activations=not setup.compiled) as trace:
        for x, y in batches(setup, seed, ctx.device):
            optimizer.zero_grad()
            count = (y != -100).sum()
            mine = x.chunk(shards, dim)[place], y.chunk(shards, dim)[place]
            losses.append(_backward(setup, model, called, mine, count, shards))
            if setup.parallel in ("hand", "ring"):
                _add_gradients(model)
            if setup.clip:
                nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
            optimizer.step()
    return named(model, losses) if setup.by_names else trace


def _backward(
    setup: Setup, model: nn.Module, called: nn.Module, mine: Batch, count: torch.Tensor, shards: int
) -> torch.Tensor:
    """The backward pass of this rank's share, in microbatches; the loss of all shares."""
    x, y = mine
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    averaged = setup.parallel in ("ddp", "zero", "fsdp", "hsdp", "fsdp_tp")
    pieces = list(zip(x.chunk(setup.microbatches), y.chunk(setup.microbatches), strict=True))
    for index, (a, b) in enumerate(pieces):
        last = index + 1 == len(pieces)
        if setup.parallel == "fsdp" and setup.microbatches > 1:
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        waits = setup.parallel == "ddp" and not last and not setup.compiled
        cast = torch.autocast(x.device.type, torch.bfloat16) if setup.autocast else contextlib.nullcontext()
        with called.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            with cast:
                out = called(a)
            # A sum over this share's tokens, over the number of all tokens; wrappers that average divide by the shares.
            loss = loss_of(out, b, summed=True) / count
            (loss * shards if averaged else loss).backward()
        total += loss.detach().double()
    if shards > 1:
        dist.all_reduce(total)
        total /= dist.get_world_size() // shards
    return total.to(setup.dtype if setup.dtype == torch.float64 else torch.float32)


def _parallelised(ctx: Context, model: nn.Module, setup: Setup) -> tuple[nn.Module, int, int, int]:
    """What is called, into how many shares the batch is cut, which one is this rank's, and along which dimension."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    world, rank = ctx.world_size, ctx.rank
    if setup.parallel in ("ddp", "zero"):
        return DistributedDataParallel(model), world, rank, 0
    if setup.parallel in ("fsdp", "hsdp"):
        mesh = (
            ctx.mesh((world,), ("dp",)) if setup.parallel == "fsdp" else ctx.mesh((2, world // 2), ("replica", "shard"))
        )
        policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if setup.mixed else {}
        for child in _children(model):
            fully_shard(child, mesh=mesh, **policy)  # type: ignore[call-overload]
        fully_shard(model, mesh=mesh, **policy)  # type: ignore[call-overload]
        return model, world, rank, 0
    if setup.parallel in ("tp", "sp", "fsdp_tp"):
        return _tensor_parallel(ctx, model, setup)
    if setup.parallel == "ring":
        assert isinstance(model, Language)
        for block in model.blocks.values():
            block.attention.ring = ring(rank, world)  # type: ignore[union-attr]
        return model, world, rank, 1
    assert isinstance(model, Mlp)
    return _by_hand(model, rank, world), 1, 0, 0


def _children(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, Language | Deep):
        return list(model.blocks.children())
    return list(model.children())[:2]


def _by_hand(model: Mlp, rank: int, world: int) -> nn.Module:
    """Cuts the linear layers of the block by hand."""
    model.up.weight = nn.Parameter(model.up.weight.data.chunk(world)[rank].clone())
    model.up.bias = nn.Parameter(model.up.bias.data.chunk(world)[rank].clone())
    model.down.weight = nn.Parameter(model.down.weight.data.chunk(world, 1)[rank].clone())

    def forward(x: torch.Tensor) -> torch.Tensor:
        h = model.act(model.up(Copy.apply(x)))  # type: ignore[no-untyped-call]
        h = Reduce.apply(F.linear(h, model.down.weight)) + model.down.bias  # type: ignore[no-untyped-call]
        out: torch.Tensor = model.head(model.norm(x + h))
        return out

    model.forward = forward  # type: ignore[method-assign]
    return model


def _tensor_parallel(ctx: Context, model: nn.Module, setup: Setup) -> tuple[nn.Module, int, int, int]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    world = ctx.world_size
    mesh = ctx.mesh((2, world // 2), ("dp", "tp")) if setup.parallel == "fsdp_tp" else ctx.mesh((world,), ("tp",))
    tp = mesh["tp"] if setup.parallel == "fsdp_tp" else mesh
    if isinstance(model, Mlp):
        parallelize_module(model, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    else:
        sequence = setup.parallel == "sp"
        plan: dict[str, Any] = {}
        for name in ("0", "1"):
            at = f"blocks.{name}."
            plan |= {at + f"attention.{one}": ColwiseParallel() for one in ("query", "key", "value")}
            plan |= {at + one: ColwiseParallel() for one in ("gate", "up")}
            out: dict[str, Any] = {"output_layouts": Shard(1)} if sequence else {}
            plan |= {at + "attention.output": RowwiseParallel(**out), at + "down": RowwiseParallel(**out)}
            if sequence:
                whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
                plan |= {at + "attention_norm": SequenceParallel(), at + "norm": SequenceParallel()}
                plan |= {at + "attention": whole}
                plan |= {at + one: ColwiseParallel(input_layouts=Shard(1)) for one in ("gate", "up")}
        if sequence:
            plan |= {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            }
        parallelize_module(model, tp, plan)
    if setup.parallel != "fsdp_tp":
        return model, 1, 0, 0
    for child in _children(model):
        fully_shard(child, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, 2, ctx.rank // (world // 2), 0


def _checkpoint(model: nn.Module) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name in ("up", "down"):
        setattr(model, name, checkpoint_wrapper(getattr(model, name)))


def _optimizer(setup: Setup, called: nn.Module, model: nn.Module) -> torch.optim.Optimizer:
    if setup.parallel == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(called.parameters(), torch.optim.AdamW, lr=2e-3, weight_decay=0.1)
    return optimizer_of(setup, model.parameters())


def _add_gradients(model: nn.Module) -> None:
    """Adds up what the ranks of a ring hold; a split by hand has its sums in the backward pass."""
    if isinstance(model, Language):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)


def _pipeline(ctx: Context, setup: Setup, seed: int) -> Trace:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    model = build(setup, seed).to(ctx.device)
    assert isinstance(model, Language)
    first, last = ctx.rank == 0, ctx.rank == ctx.world_size - 1
    model.blocks = nn.ModuleDict({str(ctx.rank): model.blocks[str(ctx.rank)]})
    if not first:
        model.embedding = None
    if not last:
        model.norm = model.head = None
    optimizer = optimizer_of(setup, model.parameters())
    stage = PipelineStage(model, ctx.rank, ctx.world_size, ctx.device)
    kind = ScheduleGPipe if setup.clip < 0 else Schedule1F1B
    schedule = kind(stage, setup.microbatches, loss_fn=loss_of)
    with watch(model, optimizer) as trace:
        for x, y in batches(setup, seed, ctx.device):
            optimizer.zero_grad()
            target: dict[str, Any] = {"target": y} if last else {}
            schedule.step(*([x] if first else []), **target)
            optimizer.step()
    return trace
