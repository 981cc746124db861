"""Faults that engineers make, each with the right program beside it, and what the report should say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf import Context
from tests.parity import training as t

Held = Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """A fault in one program."""

    reference: Callable[[], Any]
    program: Callable[[Context, bool], Any]
    """Called with whether it is wrong."""
    first: str
    """The first wrong tensor; several that are as right are separated by ``|``."""
    cause: str
    """The cause's code; ``unknown`` if no hypothesis is about it."""
    words: str = ""
    """What the cause's text says, among other things."""
    world: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)


FAULTS: dict[str, Fault] = {}


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summed(tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum over ranks, in a new tensor."""
    tensor = tensor.clone()
    dist.all_reduce(tensor, group=group)
    return tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """What all ranks hold, along dimension 0."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


# Training loops that are watched.


def _parallel(
    ctx: Context, finish: t.Step, steps: int = 2, make: Callable[..., torch.optim.Optimizer] = t.sgd, **options: Any
) -> Any:
    net = t.build()
    return t.train(net, make(net), t.share(t.batches(steps), ctx.rank, ctx.world_size), finish, **options)


def _skips(name: str) -> t.Step:
    def finish(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for other, parameter in net.named_parameters():
            if other != name:
                assert parameter.grad is not None
                parameter.grad.copy_(summed(parameter.grad) / dist.get_world_size())

    return finish


FAULTS["a gradient is left out of the reduction"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, _skips("norm.weight") if wrong else t.averaged),
    "step 1, gradient of norm.weight",
    "partial mean",
    "their mean over all ranks is right",
)


def _sums(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)


FAULTS["gradients are summed, not averaged"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, _sums if wrong else t.averaged),
    "step 1, gradient of head.bias",
    "factor",
    "times 4 = the 4 ranks: the mean is missing",
    world=4,
)


def _masked(data: list[t.Batch]) -> list[t.Batch]:
    """Targets of padding are -100: six of the first half, one of the second."""
    dropped = torch.tensor([0, 1, 2, 3, 5, 6, 9])
    return [(x, y.index_fill(0, dropped, -100)) for x, y in data]


def _whole_mean(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a share by the number of all valid tokens; gradients are averaged over ranks."""
    count = (y != -100).sum().float()
    return F.cross_entropy(out, y, reduction="sum") * dist.get_world_size() / summed(count)


def _unequal(ctx: Context, wrong: bool) -> Any:
    data = t.share(_masked(t.batches(2, 16)), ctx.rank, ctx.world_size)
    weigh = F.cross_entropy if wrong else _whole_mean
    return t.train(net := t.build(), t.sgd(net), data, t.averaged, weigh=weigh)


FAULTS["a mean of the ranks' means over unequal counts"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), _masked(t.batches(2, 16))),
    _unequal,
    "step 1, gradient of head.bias",
    "weights",
    "it is the mean of the shares' means",
    options={
        "share": lambda rank: t.train(net := t.build(), t.sgd(net), t.share(_masked(t.batches(2, 16)), rank, 2)),
    },
)


def _resumes(ctx: Context, wrong: bool) -> Any:
    net = t.build()
    optimizer = t.adamw(net)

    def finish(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        t.averaged(step, net, optimizer)
        if step == 1:
            saved = optimizer.state_dict()
            optimizer.state.clear()
            if not wrong:
                optimizer.load_state_dict(saved)

    return t.train(net, optimizer, t.share(t.batches(3), ctx.rank, ctx.world_size), finish)


FAULTS["the optimizer's state is lost at a resume"] = Fault(
    lambda: t.train(net := t.build(), t.adamw(net), t.batches(3)),
    _resumes,
    "step 2, state of up.weight.step",
    "state lost",
    "the optimizer counts 1 steps where it should count 2",
)
FAULTS["weight decay is left out"] = Fault(
    lambda: t.train(net := t.build(), t.adamw(net), t.batches(2)),
    lambda ctx, wrong: _parallel(
        ctx, t.averaged, make=lambda net: t.adamw(net, **({"weight_decay": 0.0} if wrong else {}))
    ),
    "step 1, parameter of up.weight",
    "weight decay",
    "weight decay is left out",
)
FAULTS["weight decay is left out on one rank"] = Fault(
    lambda: t.train(net := t.build(), t.adamw(net), t.batches(2)),
    lambda ctx, wrong: _parallel(
        ctx, t.averaged, make=lambda net: t.adamw(net, **({"weight_decay": 0.0} if wrong and ctx.rank == 1 else {}))
    ),
    "step 1, parameter of up.weight",
    "weight decay",
    "on rank 1: weight decay is left out",
)
FAULTS["Adam has another beta"] = Fault(
    lambda: t.train(net := t.build(), t.adamw(net), t.batches(2)),
    lambda ctx, wrong: _parallel(
        ctx, t.averaged, make=lambda net: t.adamw(net, **({"betas": (0.8, 0.999)} if wrong else {}))
    ),
    "step 1, state of up.weight.exp_avg",
    "optimizer",
    "times 2 on all ranks: the optimizer has other settings",
)
FAULTS["Adam has another epsilon"] = Fault(
    lambda: t.train(net := t.build(), t.adamw(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, t.averaged, make=lambda net: t.adamw(net, eps=1e-4 if wrong else 1e-8)),
    "step 1, parameter of up.weight",
    "unknown",
)


def _averages_twice(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    t.averaged(step, net, optimizer)
    for parameter in net.parameters():
        assert parameter.grad is not None
        # Copies that differ by rounding: their sum is right, and they are no parts.
        parameter.grad *= 0.5 * (1 + 1e-7 * dist.get_rank())


FAULTS["gradients are averaged twice"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, _averages_twice if wrong else t.averaged),
    "step 1, gradient of head.bias",
    "factor",
    "times 0.5 = 1 over the 2 ranks: the mean is taken once too often",
)


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.head = nn.Embedding(9, t.WIDTH), nn.Linear(t.WIDTH, t.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(x))
        return out


def _tokens(shift: int) -> list[t.Batch]:
    return [((torch.arange(8) * (3 + step) + shift) % 9, torch.arange(8) % t.CLASSES) for step in range(2)]


def _other_tokens(ctx: Context, wrong: bool) -> Any:
    net = _Embedded()
    return t.train(net, t.sgd(net), t.share(_tokens(2 if wrong else 0), ctx.rank, ctx.world_size), t.averaged)


FAULTS["ranks read other tokens"] = Fault(
    lambda: t.train(net := _Embedded(), t.sgd(net), _tokens(0)), _other_tokens, "step 1, output of embedding", "unknown"
)
FAULTS["the learning rate is scaled by the ranks"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, t.averaged, make=lambda net: t.sgd(net, lr=0.2 if wrong else 0.1)),
    "step 1, parameter of up.weight",
    "update",
    "the update is 2 times the right one = the 2 ranks",
)


def _rounds(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    t.averaged(step, net, optimizer)
    for parameter in net.parameters():
        assert parameter.grad is not None
        parameter.grad.copy_(parameter.grad.bfloat16())


FAULTS["gradients are rounded to bfloat16"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    lambda ctx, wrong: _parallel(ctx, _rounds if wrong else t.averaged),
    "step 1, gradient of head.bias",
    "rounded",
    "every element is a number of bfloat16",
)


def _stale(ctx: Context, wrong: bool) -> Any:
    net = t.build()
    optimizer = t.sgd(net)
    if wrong and ctx.rank == 1:
        kept = [parameter for parameter in net.parameters() if parameter is not net.down.weight]
        optimizer.param_groups[0]["params"] = kept
    return t.train(net, optimizer, t.share(t.batches(2), ctx.rank, ctx.world_size), t.averaged)


FAULTS["a parameter is not updated on one rank"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    _stale,
    "step 1, parameter of down.weight",
    "stale",
    "on rank 1",
)


def _drops(ctx: Context, wrong: bool) -> Any:
    def weigh(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return F.cross_entropy(out, y) * (0.0 if wrong and len(seen) % 4 == 3 else 1.0)

    seen: list[int] = []
    return _parallel(ctx, t.averaged, steps=1, microbatches=4, weigh=weigh)


FAULTS["a microbatch has no gradient"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(1)),
    _drops,
    "step 1, gradient of head.bias",
    "unknown",
    options={"microbatches": 4},
)


def _split(fault: str) -> Callable[[Context, bool], Any]:
    def program(ctx: Context, wrong: bool) -> Any:
        net = t.Split(ctx, fault if wrong else "")
        return t.train(net, t.sgd(net), t.batches(2))

    return program


FAULTS["the bias of a row-parallel layer is added by every rank"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    _split("bias before the sum"),
    "step 1, output of down",
    "bias",
    "each of the 4 ranks adds it; add it once, after the sum",
    world=4,
)
FAULTS["a row-parallel layer is not summed"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    _split("no sum"),
    "step 1, output of down",
    "bias",
    "each rank holds a part, and every row of their sum is off by 1 times parameter down.bias",
)
FAULTS["shards are swapped between ranks"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(2)),
    _split("swapped"),
    "parameter up.weight at the start",
    "order",
    "ranks 0 and 1 hold each other's parts",
)


def _other_start(ctx: Context, wrong: bool) -> Any:
    net = t.build(2 if wrong else 1)
    return t.train(net, t.sgd(net), t.share(t.batches(1), ctx.rank, ctx.world_size), t.averaged)


FAULTS["weights differ at the start"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(1)),
    _other_start,
    "parameter up.weight at the start",
    "start",
    "load the same weights on both sides",
)


def _clips(local: bool) -> t.Step:
    def finish(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if local:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        t.averaged(step, net, optimizer)
        if not local:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    return finish


def _clipped(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)


FAULTS["gradients are clipped before the reduction"] = Fault(
    lambda: t.train(net := t.build(), t.sgd(net), t.batches(1), _clipped),
    lambda ctx, wrong: _parallel(ctx, _clips(local=wrong), steps=1),
    "step 1, gradient of head.bias",
    "weights",
    options={"share": lambda rank: t.train(net := t.build(), t.sgd(net), t.share(t.batches(1), rank, 2))},
)

# Tensors by name.


def _norm(ctx: Context, wrong: bool) -> Held:
    mesh = ctx.mesh((2, 2), ("replica", "shard"))
    mine = draw(3, 24, 5).chunk(2)[ctx.rank % 2]
    square = summed(mine.square().sum(), None if wrong else mesh["shard"].get_group())
    return {"gradient": mine, "norm": square.sqrt()}


FAULTS["a norm counts replicas"] = Fault(
    lambda: {"gradient": (g := draw(3, 24, 5)), "norm": g.norm()},
    _norm,
    "norm",
    "factor",
    "the square root of the 2 ranks of axis replica",
    world=4,
)


def _expert_norm(ctx: Context, wrong: bool) -> Held:
    dense, expert = draw(4, 6, 6), draw(5, 8, 6).chunk(4)[ctx.rank]
    square = expert.square().sum()
    return {"norm": (dense.square().sum() + (square if wrong and ctx.rank == 0 else summed(square))).sqrt()}


def _expert_norm_wrong(ctx: Context, wrong: bool) -> Held:
    dense, expert = draw(4, 6, 6), draw(5, 8, 6).chunk(4)[ctx.rank]
    square = summed(expert.square().sum() * (0.0 if wrong and ctx.rank == 2 else 1.0))
    return {"norm": (dense.square().sum() + square).sqrt()}


FAULTS["a norm leaves a shard out"] = Fault(
    lambda: {"norm": (draw(4, 6, 6).square().sum() + draw(5, 8, 6).square().sum()).sqrt()},
    _expert_norm_wrong,
    "norm",
    "missing terms",
    "chunk 2 of term 1",
    world=4,
)


def _vocabulary_loss(ctx: Context, wrong: bool) -> Held:
    logits, target = draw(6, 9, 16), torch.arange(9)
    mine = logits if wrong else logits.chunk(2, 1)[ctx.rank]
    return {"loss": (summed(mine.exp().sum(1)).log() - logits[torch.arange(9), target]).mean()}


FAULTS["a normaliser counts the vocabulary twice"] = Fault(
    lambda: {"loss": F.cross_entropy(draw(6, 9, 16), torch.arange(9))},
    _vocabulary_loss,
    "loss",
    "constant",
    "log(2)",
)


def _padded_sampler(ctx: Context, wrong: bool) -> Held:
    rows = [(4 * turn + ctx.rank) % 10 for turn in range(3)]
    found = gathered(draw(7, 10, 3)[rows].exp())
    found = torch.stack(found.chunk(4)).transpose(0, 1).flatten(0, 1)
    return {"features": found if wrong else found[:10]}


FAULTS["a sampler pads the last round"] = Fault(
    lambda: {"features": draw(7, 10, 3).exp()},
    _padded_sampler,
    "features",
    "duplicates",
    "the last 2 repeat the first",
    world=4,
)


def _generate(pick: Callable[[torch.Tensor], torch.Tensor]) -> Held:
    state, tokens = torch.zeros(8), []
    for _ in range(10):
        token = pick(F.linear(state, draw(8, 20, 8)).softmax(-1))
        tokens.append(token)
        state = torch.tanh(state + draw(9, 20, 8)[token])
    return {"tokens": torch.stack(tokens)}


def _drawn(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return lambda probabilities: torch.multinomial(probabilities, 1, generator=g)[0]


def _sample(ctx: Context, wrong: bool) -> Held:
    pick = _drawn(50 + ctx.rank)

    def agreed(probabilities: torch.Tensor) -> torch.Tensor:
        token = pick(probabilities)
        if not wrong:
            dist.broadcast(token, 0)
        return token

    return _generate(agreed)


FAULTS["each rank draws its own token"] = Fault(
    lambda: _generate(_drawn(50)), _sample, "tokens", "drawn apart", "draw on one rank and broadcast"
)


def _mask(ctx: Context, wrong: bool) -> Held:
    valid = torch.tensor([1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1]).bool()
    mine = valid.chunk(2)[1 - ctx.rank if wrong else ctx.rank]
    return {"hidden": torch.where(mine[:, None], draw(10, 12, 4).chunk(2)[ctx.rank].exp(), 0.0)}


FAULTS["a mask is cut for the other rank"] = Fault(
    lambda: {
        "hidden": torch.where(
            torch.tensor([1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1]).bool()[:, None], draw(10, 12, 4).exp(), 0.0
        )
    },
    _mask,
    "hidden",
    "mask",
    "rank 0 has the mask of rank 1",
)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) / 2
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def _ring(ctx: Context, wrong: bool) -> Held:
    q, k, v = (draw(11 + i, 12, 2, 4).double().chunk(3)[ctx.rank] for i in range(3))
    keys, values = gathered(k), gathered(v)
    if wrong:
        keys, values = keys[4:], values[4:]
    return {"attention": _attend(q, keys, values)}


FAULTS["attention leaves out the first chunk of keys"] = Fault(
    lambda: {"attention": _attend(*(draw(11 + i, 12, 2, 4).double() for i in range(3)))},
    _ring,
    "attention",
    "keys",
    "leaves out keys 0 to 3 of 12",
    world=3,
)


def _fused(ctx: Context, wrong: bool) -> Held:
    q, k, v = (draw(20 + i, 8, 6) for i in range(3))
    if wrong:
        mine = torch.cat([q, k, v]).chunk(2)[ctx.rank]
    else:
        mine = torch.cat([part.chunk(2)[ctx.rank] for part in (q, k, v)])
    names = ("query", "key", "value")
    return dict(zip(names, mine.chunk(3), strict=True))


FAULTS["a fused weight is cut as one block"] = Fault(
    lambda: dict(zip(("query", "key", "value"), (draw(20 + i, 8, 6) for i in range(3)), strict=True)),
    _fused,
    "query|key|value",
    "order",
    "cut each of them apart",
)


def _rates(ahead: int) -> list[float]:
    schedule = [0.1 * (1 - step / 12) ** 2 for step in range(12)]
    return schedule[:5] + (schedule[5 + ahead :] + [0.0] * ahead)


FAULTS["a schedule is restored twice"] = Fault(
    lambda: {"rates": torch.tensor(_rates(0))},
    lambda ctx, wrong: {"rates": torch.tensor(_rates(4 if wrong else 0))},
    "rates",
    "position",
    "entries later",
)


def _indices(again: bool) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    found = []
    for step in range(6):
        if again and step == 3:
            g.manual_seed(3)
        found.append(torch.randperm(40, generator=g)[:4])
    return torch.stack(found)


FAULTS["a sampler begins anew after the resume"] = Fault(
    lambda: {"samples": _indices(False)},
    lambda ctx, wrong: {"samples": _indices(wrong)},
    "samples",
    "state lost",
    "repeats itself from entry 0",
)


def _evaluated(refresh: bool) -> Held:
    weight, losses, copy = draw(30, 5, 5), [], None
    for step in range(5):
        weight = weight * 0.9 + draw(31 + step, 5, 5) / 10
        copy = weight if refresh or copy is None else copy
        losses.append(copy.square().mean())
    return {"eval": torch.stack(losses), "weight": weight}


FAULTS["evaluation uses a stale copy"] = Fault(
    lambda: _evaluated(True), lambda ctx, wrong: _evaluated(not wrong), "eval", "stale", "all 5 are equal"
)


def _greedy(ctx: Context, wrong: bool) -> Held:
    logits = F.pad(draw(40, 6, 7) - 1, (0, 1)).chunk(2, 1)[ctx.rank]
    if not wrong and ctx.rank == 1:
        logits = logits.masked_fill(torch.arange(4) == 3, -math.inf)
    return {"best": torch.stack([*gathered(logits.amax(1)[None])]).amax(0)}


FAULTS["the padding wins a maximum"] = Fault(
    lambda: {"best": (draw(40, 6, 7) - 1).amax(1)}, _greedy, "best", "padding", "mask the padding"
)


def _whitened(ctx: Context, wrong: bool) -> Held:
    mesh = ctx.mesh((2, 2), ("dp", "cp"))
    mine = draw(41, 4, 16)[ctx.rank] + ctx.rank
    sums = summed(torch.stack([mine.sum(), mine.square().sum()]), mesh["dp"].get_group() if wrong else None)
    mean, square = sums / (32 if wrong else 64)
    return {"advantages": (mine - mean) * (square - mean**2).rsqrt()}


def _white(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) * (x.square().mean() - x.mean() ** 2).rsqrt()


FAULTS["statistics are taken over a part of the ranks"] = Fault(
    lambda: {"advantages": _white(draw(41, 4, 16) + torch.arange(4)[:, None])},
    _whitened,
    "advantages",
    "statistics",
    "the groups of axis dp",
    world=4,
)
FAULTS["updates are skipped"] = Fault(
    lambda: {"updates": 12, "mean": draw(42, 5)},
    lambda ctx, wrong: {"updates": 8 if wrong else 12, "mean": draw(42, 5)},
    "updates",
    "count",
    "it counts 8 where the reference counts 12 (-4)",
)


def _ungathered(ctx: Context, wrong: bool) -> Held:
    weight = nn.Parameter(draw(43, 8, 6))
    start = weight.detach().clone()
    (weight @ draw(44, 6, 3)).square().mean().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    if wrong:
        others = torch.arange(8) // 4 != ctx.rank
        weight.data[others] = start[others]
    return {"weight": weight}


def _updated() -> Held:
    weight = nn.Parameter(draw(43, 8, 6))
    (weight @ draw(44, 6, 3)).square().mean().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    return {"weight": weight}


FAULTS["parameters are not gathered after the update"] = Fault(
    _updated, _ungathered, "weight", "stale", "all but its own block is that of the start"
)
FAULTS["a sign is wrong"] = Fault(
    lambda: {"gradient": draw(45, 6, 4).tanh()},
    lambda ctx, wrong: {"gradient": draw(45, 6, 4).tanh() * (-1 if wrong else 1)},
    "gradient",
    "sign",
)
FAULTS["a buffer is never written on one rank"] = Fault(
    lambda: {"hidden": draw(46, 6, 4).tanh()},
    lambda ctx, wrong: {"hidden": draw(46, 6, 4).tanh() * (0 if wrong and ctx.rank == 1 else 1)},
    "hidden",
    "zeros",
    "on rank 1",
)
FAULTS["a rank divides by zero"] = Fault(
    lambda: {"ratio": draw(47, 6, 4).tanh()},
    lambda ctx, wrong: {"ratio": draw(47, 6, 4).tanh() / (0 if wrong and ctx.rank == 0 else 1)},
    "ratio",
    "not finite",
    "on rank 0",
)
FAULTS["a square weight is transposed"] = Fault(
    lambda: {"weight": draw(48, 6, 6).tanh()},
    lambda ctx, wrong: {"weight": draw(48, 6, 6).tanh().T if wrong else draw(48, 6, 6).tanh()},
    "weight",
    "transposed",
)
FAULTS["a weight is left in the buffer of its gradient"] = Fault(
    lambda: {"weight": draw(49, 6, 5).tanh(), "gradient": draw(50, 6, 5).tanh()},
    lambda ctx, wrong: {
        "weight": draw(49, 6, 5).tanh(),
        "gradient": draw(50, 6, 5).tanh() + (draw(49, 6, 5).tanh() if wrong else 0),
    },
    "gradient",
    "another tensor",
    "off by 1 times weight (once)",
)


def _auxiliary(weight: float) -> Held:
    router, x = draw(51, 4, 6).requires_grad_(), draw(52, 20, 6)
    probabilities = F.linear(x, router).softmax(-1)
    main, auxiliary = (probabilities * draw(53, 20, 4)).sum(), probabilities.square().sum()
    (main + weight * auxiliary).backward()
    return {"router": router.grad}


FAULTS["an auxiliary loss counts once per rank"] = Fault(
    lambda: _auxiliary(1.0), lambda ctx, wrong: _auxiliary(3.0 if wrong else 1.0), "router", "weights", "3 times", 3
)


def _scattered(ctx: Context, wrong: bool) -> Held:
    whole = draw(54, 12, 4).sin()
    mine = whole.chunk(4)[(ctx.rank + 1) % 4 if wrong else ctx.rank]
    return {"rows": mine}


FAULTS["a ring hands out the neighbour's chunk"] = Fault(
    lambda: {"rows": draw(54, 12, 4).sin()}, _scattered, "rows", "order", "the part of the rank 1 further on", 4
)


def _broadcast(ctx: Context, wrong: bool) -> Held:
    return {"noise": draw(60 if wrong else 60 + ctx.rank, 8)}


FAULTS["one rank's random state is given to all"] = Fault(
    lambda: {"noise": torch.stack([draw(60 + rank, 8) for rank in range(3)])},
    _broadcast,
    "noise",
    "order",
    "all ranks hold the part of rank 0",
    3,
)


def _gradient_of_sum(ctx: Context, wrong: bool) -> Held:
    x, w = draw(61, 8, 6), draw(62, 5, 6).requires_grad_()
    F.linear(x.chunk(2)[ctx.rank], w).tanh().sum().backward()
    assert w.grad is not None
    return {"gradient": w.grad if wrong else summed(w.grad)}


def _whole_gradient() -> Held:
    w = draw(62, 5, 6).requires_grad_()
    F.linear(draw(61, 8, 6), w).tanh().sum().backward()
    return {"gradient": w.grad}


FAULTS["a gradient by name is not summed"] = Fault(
    _whole_gradient, _gradient_of_sum, "gradient", "partial sum", 'layouts={"gradient": "partial(sum)"}'
)


def _half(ctx: Context, wrong: bool) -> Held:
    x, w = draw(61, 8, 6), draw(62, 5, 6).requires_grad_()
    mine = 0 if wrong else ctx.rank  # both ranks read the first half
    F.linear(x.chunk(2)[mine], w).tanh().sum().backward()
    assert w.grad is not None
    return {"gradient": summed(w.grad)}


FAULTS["all ranks read the same half of the data"] = Fault(
    _whole_gradient, _half, "gradient", "weights", "have the weights [2, 0]"
)
