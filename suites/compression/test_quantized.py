"""The 8-bit hook: numbers that 8 bits hold come back as they were, and each bucket is fed back its own errors."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.compression.programs import averaging as programs
from suites.compression.programs import quantized
from suites.compression.test_correctness import QUANTIZERS, bounds_with_feedback, given_to
from suites.shared.comparison import assert_close, assert_within
from suites.shared.inputs import integers, rank_inputs
from suites.shared.step import once

LARGEST = {"int8": 127.0, "float8": 448.0}
BLOCK = 8
SCALE = 2049.0
"""A scale of 12 bits: a scale or a mean that goes through 16-bit floats changes."""


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("name", sorted(LARGEST))
def test_numbers_of_eight_bits_are_exact(ranks: Ranks, name: str) -> None:
    """Whole numbers up to 16 stay exact in blocks that have a whole scale and hold the format's largest number.

    Formats of 4 bits and more hold these numbers. A rank's numbers are m + d (2 r - (R - 1)) with whole |m| <= 8 and
    |d| <= 1, all times the scale. Without the scale they are at most 8 + 7 for R <= 8 ranks. Their mean is m times
    the scale. float32 holds the sums, and divides them by the scale and by R, a power of two, exactly. R does not
    divide the 9 blocks.
    """
    degree = ranks.world_size
    means = integers((9, BLOCK), torch.float32, seed=1, low=-8, high=8)
    slopes = integers((9, BLOCK), torch.float32, seed=2, low=-1, high=1)
    means[:, 0] = LARGEST[name]
    means[1::2, 0] *= -1
    slopes[:, 0] = 0
    means *= SCALE
    slopes *= SCALE
    drawn = [[(means + (2 * rank - degree + 1) * slopes).flatten()] for rank in range(degree)]
    results = ranks.run(
        once, programs.average_quantized, gradients=given_to(drawn), quantizer=QUANTIZERS[name], block=BLOCK
    )
    for rank, (result,) in enumerate(results):
        off = (result - means.flatten()).abs().max().item()
        assert off == 0, f"{name}, rank {rank}: a number that 8 bits hold is off by {off:.3g}"


POWERS = (0, -33, 60, -80, 17, -60, 90, -12, 40)
"""The powers of 2 that multiply the blocks: the smallest numbers are near 1e-24, the largest near 1e27."""


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_blocks_keep_their_precision_at_any_magnitude(ranks: Ranks, name: str) -> None:
    """Gradients times a power of two have the same mean times it, to the last bit, whatever other blocks hold.

    Small gradients, of a loss that is nearly 0, are as precise as large ones. Each block has a factor of its own.
    """
    shape = (len(POWERS), BLOCK)
    factors = torch.tensor([2.0**power for power in POWERS]).unsqueeze(1)
    drawn = rank_inputs(ranks.world_size, shape=shape, dtype=torch.float32, seed=3)
    plain, scaled = (
        ranks.run(
            once,
            programs.average_quantized,
            gradients=given_to([[(own * by).flatten()] for own in drawn]),
            quantizer=QUANTIZERS[name],
            block=BLOCK,
        )
        for by in (torch.ones_like(factors), factors)
    )
    for rank, ((got,), (usual,)) in enumerate(zip(scaled, plain, strict=True)):
        for got_block, expected, power in zip(got.view(shape), usual.view(shape) * factors, POWERS, strict=True):
            assert expected.any()
            assert_close(got_block, expected, f"{name}, rank {rank}, a block times 2**{power}")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_blocks_whose_scale_would_be_zero_have_numbers(ranks: Ranks, name: str) -> None:
    """Blocks of zeros, and of zeros and a number whose scale is rounded to zero; what stands beside them stays."""
    tiny = 2.0**-149
    for smallest in (0.0, tiny, -tiny, 40 * tiny):
        mean = torch.zeros(3, BLOCK)
        mean[0, 0], mean[1] = smallest, LARGEST[name]
        for rank, (got,) in enumerate(
            ranks.run(
                once,
                programs.average_quantized,
                gradients=given_to([[mean.flatten()]] * 2),
                quantizer=QUANTIZERS[name],
                block=BLOCK,
            )
        ):
            assert_close(got.view(3, BLOCK), mean, f"{name}, rank {rank}, beside {smallest}", atol=abs(smallest))


# Elements of three parameters, no two alike, but of one size once they are padded to R blocks of 8, R = 2 or 4:
# whoever takes one bucket's errors for another's can, and is wrong.
SIZES = (25, 28, 31)
FED_BACK = 12
"""Steps that are compared with the bound, so many that the errors of each would have grown beyond it."""


def by_bucket(
    ctx: Context, *, drawn: list[list[torch.Tensor]], quantizer: quantized.Quantizer, feedback: bool
) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
    """Which buckets the hook was given in each step, and the means; a second parameter is too much for any bucket."""
    seen: list[int] = []

    def hook(state: quantized.Quantized, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.index())
        return quantized.quantized_hook(state, bucket)

    step = programs.average(
        ctx,
        gradients=given_to(drawn),
        hook=hook,
        state=lambda: quantized.Quantized(quantizer, block=BLOCK, feedback=feedback),
        bucket_cap_mb=2.0**-20,  # one byte
    )
    indices, means = [], []
    for _ in range(2 + FED_BACK):
        seen.clear()
        means.append([gradient.clone() for gradient in step()])
        indices.append(seen.copy())
    return indices, means


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_feedback_of_several_buckets(ranks: Ranks, name: str) -> None:
    """Each bucket is fed back what it has lost itself, from the third step on: no error grows with the steps.

    DistributedDataParallel makes the small buckets after the first step, for which there is one. Two steps are as
    without feedback, and so is the third, which is the first to keep back what it loses; from then on sums are within
    the bound.
    """
    drawn = [
        [
            integers((numel,), torch.float32, seed=8 * index + rank, low=-99, high=99)
            for index, numel in enumerate(SIZES)
        ]
        for rank in range(ranks.world_size)
    ]
    plain, fed_back = (
        ranks.run(by_bucket, drawn=drawn, quantizer=QUANTIZERS[name], feedback=feedback) for feedback in (False, True)
    )
    for rank, ((_, without), (indices, means)) in enumerate(zip(plain, fed_back, strict=True)):
        assert indices[1:] == [[0, 1, 2]] * (1 + FED_BACK), "each parameter should have a bucket"
        for step, (got, wanted) in enumerate(zip(means[:3], without[:3], strict=True)):
            assert all(map(torch.equal, got, wanted)), (
                f"rank {rank}, step {step}: a bucket was fed back what it had not lost"
            )
        for index in range(len(SIZES)):
            total = torch.stack([of_step[index].double() for of_step in means[2:]]).sum(dim=0)
            own = [[of_rank[index]] for of_rank in drawn]
            mean, bound = bounds_with_feedback(own, name, BLOCK, FED_BACK)
            assert_within(total, mean, bound, f"{name}, rank {rank}, parameter {index}")
