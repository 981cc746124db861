"""Compressed gradients are off by no more than rounding to bfloat16 explains, and the bound would see worse."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from pytest_gpuperf import Context, Ranks
from suites.compression.programs import averaging as programs
from suites.compression.programs import quantized
from suites.shared.comparison import assert_close, assert_unlike, assert_within
from suites.shared.inputs import full_width, integers
from suites.shared.step import Step, Tensors, once
from suites.shared.strategies import seeds, worlds

Future = torch.futures.Future[torch.Tensor]

# Without a hook, and with each that rounds: the unit roundoff, and the dtype that is summed in.
ROUNDING = {
    "float32": (programs.FLOAT32_ROUNDOFF, torch.float32),
    "bfloat16": (programs.BFLOAT16_ROUNDOFF, torch.bfloat16),
    "float16": (programs.FLOAT16_ROUNDOFF, torch.float16),
}
QUANTIZERS = {"int8": quantized.INT8, "float8": quantized.FLOAT8}
LARGEST_FLOAT16 = 60000.0  # sums of R shares of these round to no more than its 65504

Gradients = list[list[torch.Tensor]]
"""For each rank its tensors."""


@st.composite
def gradients(draw: st.DrawFn, world_size: int) -> Gradients:
    """One to three tensors for each rank, of the same shapes on all of them.

    Magnitudes are spread over none, some and most of the powers of two that bfloat16 and float32 share, with room
    for 8 ranks' sums; some elements are zero, and some are of equal magnitude on all ranks, and may cancel out.
    """
    sizes = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3))
    spread = draw(st.sampled_from([0, 4, 60]))
    generator = torch.Generator().manual_seed(draw(seeds))
    numel = sum(sizes)

    def below(bound: int, rows: int = world_size) -> torch.Tensor:
        return torch.randint(0, bound, (rows, numel), generator=generator)

    significands = 1 + torch.rand(world_size, numel, generator=generator)
    powers = torch.ldexp(significands, below(2 * spread + 1) - spread)
    equal = below(4, 1) == 0
    magnitudes = torch.where(equal, powers[:1], powers) * (below(8) != 0)
    flat = magnitudes * (2 * below(2) - 1)
    return [list(row.split(sizes)) for row in flat]


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


def averages(ctx: Context, *, drawn: Gradients, names: list[str], block: int) -> Tensors:
    """What each way to average gives, as one vector."""
    own = [gradient.to(ctx.device) for gradient in drawn[ctx.rank]]
    results = {}
    for name in names:
        if name in QUANTIZERS:
            # One tensor, so that the test knows which elements share a block.
            step = programs.average_quantized(
                ctx, gradients=functools.partial(itself, [torch.cat(own)]), quantizer=QUANTIZERS[name], block=block
            )
        else:
            hook, state = (None, None) if name == "float32" else programs.HOOKS[name]
            mine = limited(own) if name == "float16" else own
            step = programs.average(ctx, gradients=functools.partial(itself, mine), hook=hook, state=state)
        results[name] = torch.cat([gradient.clone() for gradient in step()])
    return results


def itself(tensors: list[torch.Tensor], ctx: Context) -> list[torch.Tensor]:
    return tensors


def limited(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16) for tensor in tensors]


def bounds(name: str, drawn: Gradients, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact mean of all elements, and how far each may be off."""
    stacked = torch.stack([torch.cat(limited(own) if name == "float16" else own) for own in drawn]).double()
    if name in QUANTIZERS:
        bound = quantized.quantization_error(QUANTIZERS[name], stacked, block)
    else:
        roundoff, dtype = ROUNDING[name]
        bound = programs.averaging_error(len(drawn), roundoff) * stacked.abs().mean(dim=0)
        bound += programs.averaging_underflow(len(drawn), dtype)
    return stacked.mean(dim=0), bound + 1e-14 * stacked.abs().sum(dim=0)  # float64 rounds too, by 2**-53


@pytest.mark.ranks(2, 4, 8)
@given(data=st.data(), block=st.sampled_from([3, 8, 32]))
def test_every_hook_keeps_its_bound(ranks: Ranks, data: st.DataObject, block: int) -> None:
    world = data.draw(worlds(ranks))
    names = [*ROUNDING, *QUANTIZERS]
    drawn = data.draw(gradients(world.world_size))
    first, *others = world.run(averages, drawn=drawn, names=names, block=block)
    for name in names:
        assert first[name].dtype == torch.float32
        assert_within(first[name], *bounds(name, drawn, block), f"rank 0, {name}")
        for rank, other in enumerate(others, start=1):
            assert torch.equal(other[name], first[name]), f"{name}: rank {rank} has another mean than rank 0"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_mean_is_finite_if_the_sum_would_not_be(ranks: Ranks, name: str) -> None:
    """Each rank divides before the sum."""
    large = 2.0**15 if name == "float16" else 2.0**127
    means = ranks.run(averages, drawn=[[torch.full((3,), large)]] * ranks.world_size, names=[name], block=1)
    for mean in means:
        assert torch.equal(mean[name], torch.full((3,), large))


@pytest.mark.ranks(2)
def test_uniform_gradients_differ_by_rank(ranks: Ranks) -> None:
    """Equal ones would be their own mean, and no missing all_reduce could be seen when arms are compared."""
    drawn = ranks.run(programs.uniform, layers=2, width=9)
    assert_unlike({f"rank {rank}, layer {layer}": own for rank, of in enumerate(drawn) for layer, own in enumerate(of)})
    for own in itertools.chain(*drawn):
        assert own.abs().max() <= 1
        assert own.min() < -0.5, "gradients of one sign"
        assert own.max() > 0.5, "gradients of one sign"


@pytest.mark.ranks(2)
def test_bound_is_reached(ranks: Ranks) -> None:
    """Both casts round down by half a unit, and so does the sum: a bound 1 % tighter would be wrong."""
    drawn = [[torch.tensor([1 + 2**-8])], [torch.tensor([1 + 2**-7 + 2**-8 - 2**-23])]]
    results = ranks.run(once, programs.average_in_bfloat16, gradients=given_to(drawn))
    assert excess(results, drawn, programs.BFLOAT16_ROUNDOFF) <= 0
    assert excess(results, drawn, 0.99 * programs.BFLOAT16_ROUNDOFF) > 0


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("program", [programs.average_in_float32, programs.average_in_bfloat16])
def test_every_step_gives_the_same_on_every_rank(
    ranks: Ranks, program: Callable[..., Step[list[torch.Tensor]]]
) -> None:
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


@pytest.mark.ranks(2)
def test_gradients_are_views_of_the_buckets(ranks: Ranks) -> None:
    """If they are not, each step copies all of them once more, and no number shows it."""

    def storages(ctx: Context) -> tuple[set[int], set[int]]:
        buckets = set[int]()

        def hook(state: None, bucket: dist.GradBucket) -> Future:
            buckets.add(bucket.buffer().untyped_storage().data_ptr())
            return allreduce_hook(ctx.group, bucket)

        gradients = functools.partial(programs.uniform, layers=3, width=5)
        step = programs.average(ctx, gradients=gradients, hook=hook)
        step()  # buckets are arranged anew after it
        buckets.clear()
        return {gradient.untyped_storage().data_ptr() for gradient in step()}, buckets

    for rank, (of_gradients, of_buckets) in enumerate(ranks.run(storages)):
        assert of_gradients == of_buckets, f"rank {rank}"


@pytest.mark.ranks(2)
def test_bound_of_int8_is_reached(ranks: Ranks) -> None:
    """Both roundings lose half a unit: 2.5 to 2 and, in units of 3, 1.5 to 0 on the ranks; their mean of 1, in 2, to 0.

    The ranks' magnitudes are unlike: a bound of the largest one would be wider than it need be.
    """
    drawn = [[torch.tensor([127, 2.5])], [torch.tensor([381, 1.499])]]
    first, _ = ranks.run(averages, drawn=drawn, names=["int8"], block=2)
    mean, bound = bounds("int8", drawn, 2)
    assert_within(first["int8"], mean, bound, "int8")
    with pytest.raises(AssertionError, match="beyond the bound"):
        assert_within(first["int8"], mean, 0.99 * bound, "int8")


@pytest.mark.ranks(2)
def test_what_is_not_finite_stays_visible(ranks: Ranks) -> None:
    """A loss scaler must see on every rank that one of them overflowed; and nothing of it is left in the step after it.

    The largest float is finite, and int8's scale may make an infinite one of it. Beside it ones round to zero, which a
    step with feedback gives back to the next: their mean may be off by the one of one rank.
    """

    def program(ctx: Context, name: str, value: float) -> list[torch.Tensor]:
        gradient = torch.ones(8, device=ctx.device)
        hook, state = programs.HOOKS[name]
        step = programs.average(ctx, gradients=functools.partial(itself, [gradient]), hook=hook, state=state)
        results = []
        for overflows in (False, False, True, False):
            gradient[3] = value if overflows and ctx.rank == 1 else 1
            results.append(step()[0].clone())
        return results

    largest = torch.finfo(torch.float32).max
    cases = [
        *itertools.product(
            ("float32", "bfloat16", "float16", "int8 with feedback", "float8 with feedback"),
            (math.inf, -math.inf, math.nan),
        ),
        ("int8 with feedback", largest),
        ("int8 with feedback", -largest),
    ]
    for name, value in cases:
        for *_, overflowed, after in ranks.run(program, name, value):
            assert math.isfinite(value) or not overflowed[3].isfinite(), f"{name}, {value}"
            # Ones are their own mean: in blocks of one magnitude 8 bits hold them too.
            fed_back = 1 / ranks.world_size if math.isfinite(value) else 0.0
            assert_close(after.cpu(), torch.ones(8), f"{name}, after {value}", atol=fed_back, rtol=2.0**-22)


@pytest.mark.ranks(2)
def test_float16_overflows_where_bfloat16_does_not(ranks: Ranks) -> None:
    """PyTorch's hooks cast first and divide then: the mean would have fitted, the summand does not."""
    drawn = [[torch.full((2,), 70000.0 * rank)] for rank in range(2)]
    for name, finite in (("to_float16", False), ("to_bfloat16", True)):
        hook = getattr(programs, name)
        for (result,) in ranks.run(once, programs.average, gradients=given_to(drawn), hook=hook):
            assert bool(result.isfinite().all()) == finite, name


def sum_of_steps(ctx: Context, *, drawn: Gradients, feedback: bool, name: str, block: int, steps: int) -> torch.Tensor:
    """Returns the sum of the results of a number of steps with the same gradients."""
    step = programs.average_quantized(
        ctx, gradients=given_to(drawn), quantizer=QUANTIZERS[name], block=block, feedback=feedback, start=0
    )
    return torch.stack([step()[0].clone() for _ in range(steps)]).double().sum(dim=0)


@pytest.mark.ranks(2, 4)
@given(
    data=st.data(),
    numel=st.integers(1, 40),
    block=st.sampled_from([3, 8, 32]),
    name=st.sampled_from(sorted(QUANTIZERS)),
    steps=st.integers(1, 6),
    seed=seeds,
)
def test_feedback_bounds_the_error_of_all_steps_together(
    ranks: Ranks, data: st.DataObject, numel: int, block: int, name: str, steps: int, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    drawn = [[integers((numel,), torch.float32, seed=seed * 8 + rank)] for rank in range(world.world_size)]
    first, *others = world.run(sum_of_steps, drawn=drawn, feedback=True, name=name, block=block, steps=steps)
    assert all(torch.equal(first, other) for other in others)
    assert_within(first, *bounds_with_feedback(drawn, name, block, steps), f"rank 0, step {steps}, {name}")


def bounds_with_feedback(drawn: Gradients, name: str, block: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    stacked = torch.stack([own[0] for own in drawn]).double()
    bound = quantized.feedback_error(QUANTIZERS[name], stacked, block)
    # Each step rounds in float32 too: what quantization_error allows for, and the sums with what is fed back.
    float32 = steps * (len(drawn) + 8) * programs.FLOAT32_ROUNDOFF * 1.25 * stacked.abs().max()
    return steps * stacked.mean(dim=0), bound + float32


@pytest.mark.ranks(2)
@given(rows=st.integers(1, 8), columns=st.integers(1, 8), seed=seeds)
def test_power_sgd_is_exact_where_the_mean_has_its_rank(ranks: Ranks, rows: int, columns: int, seed: int) -> None:
    assert_exact_with_power_sgd(ranks, rows, columns, seed)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("rank_of_mean", [1, 3])
def test_all_ranks_begin_power_sgd_with_the_same_matrix(ranks: Ranks, rank_of_mean: int) -> None:
    """So a mean of few columns is right from the first compressed step on, if the seed's Q is not orthogonal to a row.

    With other Qs the columns of each rank would weigh otherwise. A later step begins with what all have in common.
    """
    rows = integers((rank_of_mean, 5), torch.float32, seed=7, low=-9, high=9)
    columns = [integers((7, rank_of_mean), torch.float32, seed=rank, low=1, high=9) for rank in range(ranks.world_size)]
    drawn = [[column @ rows] for column in columns]

    def program(ctx: Context) -> torch.Tensor:
        state = functools.partial(programs.low_rank, rank_of_mean, feedback=False)
        step = programs.average(ctx, gradients=given_to(drawn), hook=programs.to_low_rank, state=state)
        for _ in range(quantized.START):
            step()
        return step()[0].clone()

    mean = torch.stack([matrix.double() for (matrix,) in drawn]).mean(0)
    for rank, got in enumerate(ranks.run(program)):
        off = float((got.double() - mean).norm() / mean.norm())
        assert off < 1e-4, f"rank {rank}: the first compressed step is off by {off:.2g}"


@pytest.mark.ranks(2, 3)
def test_power_sgd_goes_on_from_the_step_before(ranks: Ranks) -> None:
    """Steps with the same gradients are a power iteration (Vogels et al., section 3): the best approximation is left.

    Each step brings it nearer by the square of the ratio of singular values, 1 / 16. Of a step that begins anew most
    of that is left.
    """
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(size, 3, generator=generator)).Q for size in (8, 6))
    shares = torch.tensor([[1.0 + rank, 2.0 - rank, 1.0] for rank in range(ranks.world_size)])
    values = torch.tensor([64.0, 16.0, 4.0]) / shares.sum(dim=0)
    drawn = [[(left * share * values) @ right.T * ranks.world_size] for share in shares]

    def program(ctx: Context) -> torch.Tensor:
        state = functools.partial(programs.low_rank, 1, feedback=False)
        step = programs.average(ctx, gradients=given_to(drawn), hook=programs.to_low_rank, state=state)
        for _ in range(quantized.START + 5):
            step()
        return step()[0].clone()

    best = 64 * torch.outer(left[:, 0], right[:, 0])
    for rank, got in enumerate(ranks.run(program)):
        off = float((got - best).norm() / best.norm())
        assert off < 1e-3, f"rank {rank}: off the best approximation by {off:.2g} of it"


@pytest.mark.ranks(4, 8)
def test_power_sgd_is_exact_on_more_ranks(ranks: Ranks) -> None:
    assert_exact_with_power_sgd(ranks, rows=7, columns=5, seed=1)


def assert_exact_with_power_sgd(ranks: Ranks, rows: int, columns: int, seed: int) -> None:
    """Checks PowerSGD's means of two matrices, which have rank 1 on each rank, and of vectors.

    The first matrix has the same row space on all ranks, so the mean has rank 1 as well. Its columns differ by rank:
    a rank that keeps to its own P has another mean. The second matrix has the same column space on all ranks.
    Compression would not shrink the vectors, so they are averaged. They travel as one, and each has another length.
    """
    columns_of = [
        integers((rows,), torch.float32, seed=seed * 8 + rank, low=1, high=9) for rank in range(ranks.world_size)
    ]
    row = integers((columns,), torch.float32, seed=seed * 8 + 7, low=1, high=9)
    drawn = [
        [
            torch.outer(column, row),
            torch.outer(row, column),
            *(
                full_width((rows + more,), torch.float32, seed=seed * 8 + rank + more, addends=ranks.world_size)
                for more in range(3)
            ),
        ]
        for rank, column in enumerate(columns_of)
    ]

    def program(ctx: Context) -> list[torch.Tensor]:
        step = programs.average(
            ctx,
            gradients=given_to(drawn),
            hook=programs.to_low_rank,
            state=lambda: programs.low_rank(1, feedback=False, least_rate=1.0),
        )
        # In the first compressed step Q is random, and may be nearly orthogonal to all rows; the second has its result.
        for _ in range(quantized.START + 1):
            step()
        return [gradient.clone() for gradient in step()]

    *matrices, first, second, third = (
        torch.stack(of_ranks).double().mean(dim=0) for of_ranks in zip(*drawn, strict=True)
    )
    # M is n x m, u = 2**-24; an inner product of k numbers is off by k u of its factors' norms (Higham, section 3.1).
    # P = M Q takes m of them, and R summands; normalising it n / 2 + 2 roundings more. The projection P P^T M is off
    # by twice as much of |M|; Q = P^T M by (n + R) u |M|, and P Q^T by 2u more.
    bound = 4 * (rows + columns + ranks.world_size + 3) * programs.FLOAT32_ROUNDOFF * float(matrices[0].norm())
    for rank, (*of_matrices, one, two, three) in enumerate(ranks.run(program)):
        for number, (matrix, mean) in enumerate(zip(of_matrices, matrices, strict=True)):
            assert_within(matrix, mean, torch.full_like(mean, bound), f"PowerSGD, rank {rank}, matrix {number}")
        # Whole numbers: their sum is exact, and so is its half, quarter or eighth.
        vectors = ((one, first), (two, second), (three, third))
        for number, (of_vector, vector) in enumerate(vectors):
            assert_close(of_vector.double(), vector, f"PowerSGD, rank {rank}, vector {number}")


def all_reduced(compressed: torch.Tensor, bucket: dist.GradBucket, result: torch.Tensor | None = None) -> Future:
    work = dist.all_reduce(compressed, async_op=True)
    assert work is not None
    future: Future = work.get_future().then(
        lambda done: bucket.buffer().copy_(done.value()[0] if result is None else result)
    )
    return future


@pytest.mark.ranks(2)
def test_what_makes_no_sense_is_refused(ranks: Ranks) -> None:
    drawn = [[torch.ones(3, dtype=torch.float64)]] * 2
    with pytest.raises(ValueError, match=r"the scales are made for float32 gradients, got torch\.float64"):
        ranks.run(once, programs.average_quantized, gradients=given_to(drawn), quantizer=quantized.INT8)
    with pytest.raises(ValueError, match="a block must have 1 element or more, got 0"):
        quantized.Quantized(quantized.INT8, block=0)
