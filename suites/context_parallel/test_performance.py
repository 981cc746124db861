"""Which way of context parallelism is the fastest, with and without balanced work, by the length of the sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Search
from suites.context_parallel.programs import racing
from suites.context_parallel.reference import one_device
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors

# The heads of Llama 3 8B (arXiv 2407.21783, table 3). 16384 tokens are 6.6 TFLOP, which take one H100 25 ms with the
# flash kernel and 14 ms with cuDNN's.
LARGE = racing.Sizes(heads=32, kv_heads=8, features=128, dtype=torch.bfloat16)
SMOKE = dataclasses.replace(LARGE, heads=8, features=8)
LONG, SHORT = 16384, 4096
SEED = 1
RTOL = 2.0**-7  # two roundings of bfloat16
# In units of the usual size. Kernels round probabilities and their gradients, which are summands up to 27 times as
# large: on an H100 torch's kernels flash and cuDNN differ by 0.07 more than RTOL allows. About twice that.
ATOL = 2.0**-3

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ring": {"way": "ring", "layout": "contiguous"},
    "ring, balanced": {"way": "ring", "layout": "head-tail"},
    "all-gather": {"way": "all-gather", "layout": "contiguous"},
    "all-gather, balanced": {"way": "all-gather", "layout": "head-tail"},
    "Ulysses": {"way": "Ulysses", "layout": "contiguous"},
    # The others need what only some kernels give: normalizers, or a mask that ends at the last key.
    "Ulysses, any kernel": {"way": "Ulysses", "layout": "contiguous", "flash": False},
}
# Its scores are whole matrices in float32, which takes too much memory and time to be raced.
BY_HAND = {"ring by hand": {"way": "ring by hand", "layout": "head-tail"}}


def attended_as_one_device(sizes: racing.Sizes, tokens: int) -> Callable[[Context, Tensors, int], None]:
    """Whether output and gradients are those that this rank's device computes alone."""

    def verify(ctx: Context, output: Tensors, steps: int) -> None:
        expected = one_device(ctx, sizes, tokens, SEED, steps)
        for name, tensor in output.items():
            assert_close(tensor, expected[name], f"rank {ctx.rank}, {name}", rtol=RTOL, atol=ATOL)

    return verify


def race(perf: Perf, sizes: racing.Sizes, tokens: int, configurations: dict[str, dict[str, Any]]) -> Search:
    """Tokens per second of each way at one length."""
    return perf.configured(rtol=RTOL, atol=ATOL).search(
        racing.train,
        configurations=configurations | (BY_HAND if perf.smoke else {}),
        name=f"{tokens} tokens",
        tokens=tokens,
        flop=sizes.flop(tokens),
        dtype=sizes.dtype,
        verify=attended_as_one_device(sizes, tokens),
        sizes=sizes,
        length=tokens,
        seed=SEED,
    )


@pytest.mark.perf
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_ways(perf: Perf) -> None:
    """The long sequence is judged, the short one shown; beside them bytes at line rate, and where they are hidden."""
    sizes, ranks = SMOKE if perf.smoke else LARGE, perf.world_size
    long, short = perf.sized(LONG, smoke=64), perf.sized(SHORT, smoke=32)
    # Each way once: a short sequence takes as long to measure as a long one.
    few = {name: CONFIGURATIONS[name] for name in ("ring, balanced", "all-gather, balanced", "Ulysses, any kernel")}
    of_short, of_long = race(perf, sizes, short, few), race(perf, sizes, long, CONFIGURATIONS)
    perf.check(**of_long.figures)
    perf.show(best_of_short=of_short.speed(of_short.best))
    if (rate := perf.link.line_rate) is not None:
        perf.show(
            all_gather_at_line_rate=Metric(sizes.gathered(long, ranks) / rate, "s", "lower"),
            ulysses_at_line_rate=Metric(sizes.swapped(long, ranks) / rate, "s", "lower"),
        )
        if (peak := perf.peak(sizes.dtype)) is not None:
            perf.show(
                products_at_peak=Metric(sizes.flop(long) / ranks / peak, "s", "lower"),
                hidden_from=Metric(sizes.hidden_from(peak, rate), "token", "lower"),
                tokens_of_a_rank=Metric(long / ranks, "token", "higher"),
            )
