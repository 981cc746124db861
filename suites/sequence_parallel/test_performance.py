"""What sequence parallelism costs in time, and what it saves of the activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Ranks
from suites.sequence_parallel.programs import racing
from suites.sequence_parallel.reference import one_device
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors

# 26 TFLOP, which take one H100 37 ms. Each of 4 blocks moves 67 MB four times over the links of two ranks, by
# all_reduces or by as much of all-gathers and reduce-scatters.
LARGE = racing.Sizes(layers=4, width=4096, hidden=16384, sequences=2, length=4096, norm="layer", dtype=torch.bfloat16)
SMOKE = dataclasses.replace(LARGE, layers=2, width=16, hidden=32, length=16)
SEED = 1
RTOL = 2.0**-7  # two roundings of bfloat16
# In units of the usual size. Each of 4 blocks rounds sums over the ranks, of R summands in an order of its own, once
# forward and once backward: 64 roundings of at most 2**-9 with 8 ranks. As random errors they add up to sqrt(64)
# 2**-9; four times that.
ATOL = 2.0**-4


def trained_as_one_device(sizes: racing.Sizes) -> Callable[[Context, Tensors, int], None]:
    """Whether output and gradients are those that this rank's device computes alone with all tokens."""

    def verify(ctx: Context, output: Tensors, steps: int) -> None:
        expected = one_device(ctx, sizes, SEED)
        for name, tensor in output.items():
            assert_close(tensor, expected[name], f"rank {ctx.rank}, {name}", rtol=RTOL, atol=ATOL)

    return verify


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_with_and_without(perf: Perf, ranks: Ranks) -> None:
    """Tokens per second and memory of both; beside them what autograd keeps, measured and by the formula."""
    sizes = SMOKE if perf.smoke else LARGE
    found = perf.configured(rtol=RTOL, atol=ATOL).search(
        racing.forward_backward,
        configurations={f"{plan} parallel": {"plan": plan} for plan in racing.PLANS},
        tokens=sizes.tokens,
        flop=sizes.flop,
        dtype=sizes.dtype,
        verify=trained_as_one_device(sizes),
        sizes=sizes,
        seed=SEED,
    )
    perf.check(**found.figures)
    for plan in racing.PLANS:
        measured = max(ranks.run(racing.kept_for_backward, plan=plan, sizes=sizes, seed=SEED))
        formula = sizes.kept(plan, perf.world_size)
        perf.show(**{f"kept_{plan}": in_bytes(measured), f"kept_{plan}_formula": in_bytes(formula)})
    perf.show(kept_least=in_bytes(sizes.least_kept(perf.world_size)))


def in_bytes(amount: int) -> Metric:
    """A figure of memory."""
    return Metric(amount, "B", "lower")
