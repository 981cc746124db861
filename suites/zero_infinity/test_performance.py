"""What it costs to keep parameters and optimizer state off the GPU, and how much of the way to the host is used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf
from suites.shared.comparison import assert_close
from suites.zero_infinity.programs import racing
from suites.zero_infinity.programs.offloading import shard_size
from suites.zero_infinity.programs.racing import GPU, PINNED, PLACES, Work

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

RTOL = 2.0**-7  # of numbers that bfloat16 has rounded


def workload(perf: Perf) -> Work:
    """67 million parameters and 8192 rows a rank: 3.0 TFLOP, 5.0 ms of an H200 at 600 TFLOP/s.

    Of 2 ranks each keeps 134 MB of values and 268 MB of moments. Values take 2.7 ms to the GPU at 50 GB/s, and
    gradients as long from it. AdamW reads and writes 0.94 GB.
    """
    return Work(
        blocks=2,
        width=perf.sized(2048, smoke=4),
        hidden=perf.sized(8192, smoke=8),
        rows=perf.sized(8192, smoke=4),
        compute=torch.float32 if perf.smoke else torch.bfloat16,
        seed=1,
    )


@pytest.mark.depends("host", "to_gpu", "runner_up")
def test_places(perf: Perf, tmp_path: Path) -> None:
    """The race of all places, and the copies of parameters to the GPU by themselves."""
    work, ranks = workload(perf), perf.world_size

    def trained(ctx: Context, output: torch.Tensor, steps: int) -> None:
        loss, norm = output.tolist()
        first = float(racing.whole_loss(work, ranks, ctx.device))
        assert 0 < norm < math.inf, f"the norm of the gradients is {norm}"
        if steps == 1:
            assert math.isclose(loss, first, rel_tol=RTOL), f"the loss is {loss}, not {first}"
        elif steps > 10:
            assert loss < first, f"the loss is {loss} after {steps} steps, and was {first}"

    def fetched(ctx: Context, output: list[torch.Tensor], steps: int) -> None:
        size = shard_size(work.numel, ranks)
        for index, copy in enumerate(output):
            mine = work.block(index, ctx.device)[ctx.rank * size : (ctx.rank + 1) * size]
            assert_close(copy[: len(mine)], mine, f"rank {ctx.rank}, block {index}")

    found = perf.configured(rtol=RTOL, atol=0.0).search(
        racing.train,
        configurations={place: {"place": place} for place in PLACES},
        name="places",
        tokens=ranks * work.rows,
        flop=work.flop(ranks),
        dtype=torch.bfloat16,
        needs=lambda place, work, folder: work.state_bytes(ranks) if place == GPU else 0.0,
        verify=trained,
        work=work,
        folder=tmp_path,
    )
    copies = perf.configured(budget=0.1).measure(racing.fetch, verify=fetched, place=PINNED, work=work, folder=tmp_path)
    crossing = work.crossing_bytes(ranks)
    limit = perf.host_link
    to_gpu = copies.rate(crossing, "B/s", limit=limit.line_rate, limit_name=limit.name, plain=True)
    perf.check(**found.figures, to_gpu=to_gpu)
    state = float(work.state_bytes(ranks))
    perf.show(state_promised=Metric(state, "B", "lower"), pinned_promised=Metric(state + crossing, "B", "lower"))
    if limit.line_rate is not None:
        perf.show(least_over_pcie=Metric(2 * crossing / limit.line_rate, "s", "lower"))
    peaks = {trial.name: trial.peak for trial in found.ran}
    on_gpu, off_gpu = peaks.get(GPU), peaks.get(PINNED)
    if on_gpu is not None and off_gpu is not None and on_gpu > off_gpu:
        perf.show(state_off_gpu=Metric(float(on_gpu - off_gpu), "B", "higher"))
