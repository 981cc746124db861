"""Which exchange of tokens is the fastest, for balanced and for skewed routing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf
from suites.expert_parallel.programs import racing
from suites.expert_parallel.reference import one_device
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors

# 8 experts of which a token goes to 2, as in Mixtral (arXiv 2401.04088). 3.3 TFLOP a rank: a step takes one H100 alone
# 12 ms. 268 MB travel four times, of which half stays on the rank if there are two: 1.4 ms at 380 GB/s.
LARGE = racing.Sizes(tokens=16384, width=4096, hidden=2048, experts=8, k=2, headroom=1.25, dtype=torch.bfloat16)
SMOKE = dataclasses.replace(LARGE, tokens=32, width=16, hidden=8)
SEED = 1
EXCHANGES = 4  # there and back, and their gradients
RTOL = 2.0**-7  # two roundings of bfloat16
# In units of the usual size. A gradient of the input passes two products and the sums of k = 2 choices, each of which
# is rounded by at most 2**-9: some 16 roundings on each side. As random errors they add up to sqrt(32) 2**-9; five
# times that.
ATOL = 2.0**-4

CONFIGURATIONS = {
    f"{splits}{', 2 chunks' if chunks == 2 else ''}": {"padded": splits == "padded", "chunks": chunks}
    for splits in ("exact", "padded")
    for chunks in (1, 2)
}


def trained_as_one_device(sizes: racing.Sizes, routing: racing.Routing) -> Callable[[Context, Tensors, int], None]:
    """Whether output and gradients are those of all experts on this rank's device."""

    def verify(ctx: Context, output: Tensors, steps: int) -> None:
        expected = one_device(ctx, sizes, routing, SEED, steps)
        for name, tensor in output.items():
            assert_close(tensor, expected[name], f"rank {ctx.rank}, {name}", rtol=RTOL, atol=ATOL)

    return verify


def race(perf: Perf, routing: racing.Routing, configurations: Mapping[str, Mapping[str, Any]]) -> None:
    """Tokens per second of each exchange; beside them its bytes at line rate, and the share of assignments kept."""
    sizes = SMOKE if perf.smoke else LARGE
    ranks = perf.world_size
    rows = racing.rows_between(sizes, routing, ranks)
    found = perf.configured(rtol=RTOL, atol=ATOL).search(
        racing.train,
        configurations=configurations,
        name=routing,
        tokens=ranks * sizes.tokens,
        flop=sizes.flop(int(rows.sum())),
        dtype=sizes.dtype,
        verify=trained_as_one_device(sizes, routing),
        sizes=sizes,
        routing=routing,
        seed=SEED,
    )
    perf.check(**found.figures)
    perf.show(kept=Metric(float(rows.sum()) / (ranks * sizes.tokens * sizes.k), "fraction", "higher"))
    # Of the rank that the most rows leave, or come to; what a rank has for itself takes no link.
    apart = rows.clone().fill_diagonal_(0)
    exact = int(torch.maximum(apart.sum(0), apart.sum(1)).max())
    padded = sizes.experts * sizes.capacity * (ranks - 1) // ranks
    if (rate := perf.link.line_rate) is not None:
        perf.show(
            **{
                f"{name}_at_line_rate": Metric(EXCHANGES * count * sizes.row / rate, "s", "lower")
                for name, count in {"exact": exact, "padded": padded}.items()
            }
        )
    # The experts of the rank that has most to do.
    if (peak := perf.peak(sizes.dtype)) is not None:
        perf.show(products_at_peak=Metric(sizes.flop(int(rows.sum(0).max())) / peak, "s", "lower"))


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_balanced(perf: Perf) -> None:
    race(perf, "balanced", CONFIGURATIONS)


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_skewed(perf: Perf) -> None:
    # In one piece: what skewed routing changes are the rows, and each configuration takes a second or two.
    race(perf, "skewed", {name: one for name, one in CONFIGURATIONS.items() if one["chunks"] == 1})
