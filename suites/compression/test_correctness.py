"""Compressed gradients are off by no more than rounding to bfloat16 explains, and the bound would see worse."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.compression import programs
from suites.data import once
from suites.strategies import worlds

Future = torch.futures.Future[torch.Tensor]

# Far enough from both ends of the exponents, which bfloat16 shares with float32, for 8 ranks' sums.
magnitudes = st.floats(2.0**-100, 2.0**100, width=32)
values = st.one_of(st.just(0.0), magnitudes, magnitudes.map(lambda value: -value), st.floats(-1, 1, width=16))


@st.composite
def gradients(draw: st.DrawFn, world_size: int) -> list[list[torch.Tensor]]:
    """One to three tensors for each rank, of the same shapes on all of them."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return [
        [torch.tensor(draw(st.lists(values, min_size=size, max_size=size))) for size in sizes]
        for _ in range(world_size)
    ]


def given_to(drawn: list[list[torch.Tensor]]) -> programs.Gradients:
    return lambda ctx: [gradient.to(ctx.device) for gradient in drawn[ctx.rank]]


def excess(results: list[list[torch.Tensor]], drawn: list[list[torch.Tensor]], unit_roundoff: float) -> float:
    """By how much the worst element exceeds its bound; 0 or less where every one keeps it."""
    factor = programs.averaging_error(len(drawn), unit_roundoff)
    worst = -float("inf")
    for index in range(len(drawn[0])):
        stacked = torch.stack([own[index].double() for own in drawn])
        mean, bound = stacked.mean(dim=0), factor * stacked.abs().mean(dim=0)
        slack = 1e-14 * stacked.abs().sum(dim=0)  # float64 rounds too, by 2**-53
        for result in results:
            assert result[index].dtype == torch.float32
            error = (result[index].double() - mean).abs()
            worst = max(worst, (error - bound - slack).max().item())
    return worst


@pytest.mark.ranks(2, 4, 8)
@given(data=st.data())
def test_bfloat16_keeps_its_bound(ranks: Ranks, data: st.DataObject) -> None:
    world = data.draw(worlds(ranks))
    drawn = data.draw(gradients(world.world_size))
    results = world.run(once, programs.average_in_bfloat16, gradients=given_to(drawn))
    assert excess(results, drawn, programs.BFLOAT16_ROUNDOFF) <= 0


@pytest.mark.ranks(2, 4, 8)
@given(data=st.data())
def test_float32_keeps_its_bound(ranks: Ranks, data: st.DataObject) -> None:
    world = data.draw(worlds(ranks))
    drawn = data.draw(gradients(world.world_size))
    results = world.run(once, programs.average_in_float32, gradients=given_to(drawn))
    assert excess(results, drawn, programs.FLOAT32_ROUNDOFF) <= 0


@pytest.mark.ranks(2)
def test_uniform_gradients_differ_by_rank(ranks: Ranks) -> None:
    """Equal ones would be their own mean, and no missing all_reduce could be seen when arms are compared."""
    (first,), (second,) = ranks.run(programs.uniform, layers=1, width=9)
    assert (first - second).abs().min() > 0
    assert max(first.abs().max(), second.abs().max()) <= 1


@pytest.mark.ranks(2)
def test_bound_is_reached(ranks: Ranks) -> None:
    """Both casts round down by half a unit, and so does the sum: a bound 1 % tighter would be wrong."""
    drawn = [[torch.tensor([1 + 2**-8])], [torch.tensor([1 + 2**-7 + 2**-8 - 2**-23])]]
    results = ranks.run(once, programs.average_in_bfloat16, gradients=given_to(drawn))
    assert excess(results, drawn, programs.BFLOAT16_ROUNDOFF) <= 0
    assert excess(results, drawn, 0.99 * programs.BFLOAT16_ROUNDOFF) > 0


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("program", [programs.average_in_float32, programs.average_in_bfloat16])
def test_every_step_gives_the_same_on_every_rank(ranks: Ranks, program: Callable[..., programs.Step]) -> None:
    def several(ctx: Context) -> list[torch.Tensor]:
        step = program(ctx, gradients=functools.partial(programs.uniform, layers=3, width=5))
        first = [gradient.clone() for gradient in step()]
        step()
        # Ranks may be added in another order once DistributedDataParallel has arranged its buckets anew.
        atol = 2 * programs.averaging_error(ctx.world_size, programs.BFLOAT16_ROUNDOFF)
        torch.testing.assert_close(step(), first, rtol=0, atol=atol)
        return first

    first, *others = ranks.run(several)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def summed_not_averaged(_: Any, bucket: dist.GradBucket) -> Future:
    return all_reduced(bucket.buffer().to(torch.bfloat16), bucket)


def rounded_to_float8(_: Any, bucket: dist.GradBucket) -> Future:
    rounded = bucket.buffer().to(torch.float8_e4m3fn).to(torch.bfloat16)
    return all_reduced(rounded.div_(dist.get_world_size()), bucket)


def kept_to_itself(_: Any, bucket: dist.GradBucket) -> Future:
    return all_reduced(bucket.buffer().to(torch.bfloat16), bucket, result=bucket.buffer().clone())


def all_reduced(compressed: torch.Tensor, bucket: dist.GradBucket, result: torch.Tensor | None = None) -> Future:
    work = dist.all_reduce(compressed, async_op=True)
    assert work is not None
    future: Future = work.get_future().then(
        lambda done: bucket.buffer().copy_(done.value()[0] if result is None else result)
    )
    return future


# Each rank's value is exact in bfloat16, so that nothing but the fault is seen. 1 + 2**-4 lies half way
# between two numbers of float8_e4m3, and all ranks lose the same 2**-4 of it.
BROKEN: list[tuple[programs.Hook, Callable[[int], float]]] = [
    (summed_not_averaged, lambda rank: 1.0),
    (kept_to_itself, float),
    (rounded_to_float8, lambda rank: 1 + 2.0**-4),
]


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize(("hook", "value"), BROKEN, ids=[hook.__name__ for hook, _ in BROKEN])
def test_bound_sees_a_broken_hook(ranks: Ranks, hook: programs.Hook, value: Callable[[int], float]) -> None:
    drawn = [[torch.full((4,), value(rank))] for rank in range(ranks.world_size)]
    right = ranks.run(once, programs.average_in_bfloat16, gradients=given_to(drawn))
    broken = ranks.run(once, programs.average, gradients=given_to(drawn), hook=hook)
    assert excess(right, drawn, programs.BFLOAT16_ROUNDOFF) <= 0
    assert excess(broken, drawn, programs.BFLOAT16_ROUNDOFF) > 0
