"""Which schedule trains the fastest on these ranks, and whether each rank waits no longer than its schedule says."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Ranks
from suites.pipeline_parallel.programs import racing
from suites.pipeline_parallel.programs.racing import Model
from suites.pipeline_parallel.reference.promises import bubbles, peak_bytes, waits

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
OF_SMOKE = ("1F1B", "ZBVZeroBubble")
STEPS = 5  # whose waits are measured; a bound of the median, which is beyond all five in 1 of 32 cases
LONGEST_WAIT = 0.05  # of a step, beyond what the schedule says
RTOL = 2.0**-7  # of numbers that bfloat16 has rounded


def workload(perf: Perf) -> Model:
    """2 blocks a rank, and 8 microbatches or 2 a rank.

    A block's forward is 4 * 512 * 4096 * 32768 = 0.27 TFLOP, 0.46 ms of an H200 at 600 TFLOP/s, so that 2 ranks take
    22 ms and what they wait. A microbatch's 4 MiB pass between them in 20 us.
    """
    ranks = perf.world_size
    return Model(
        blocks=2 * ranks,
        width=perf.sized(4096, smoke=8),
        hidden=perf.sized(32768, smoke=16),
        microbatches=perf.sized(max(8, 2 * ranks), smoke=2 * ranks),
        rows=perf.sized(512, smoke=2),
        dtype=torch.float32 if perf.smoke else torch.bfloat16,
        seed=1,
    )


def test_schedules(perf: Perf, ranks: Ranks) -> None:
    """Tokens per second of each schedule, and the share of a step in which a rank waits beside its formula."""
    model = workload(perf)

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        loss, norm = output.tolist()
        expected = float(racing.whole_loss(model, ctx.device))
        assert math.isclose(loss, expected, rel_tol=RTOL), f"the loss is {loss}, not {expected}"
        assert 0 < norm < math.inf, f"the norm of the gradients is {norm}"

    schedules, steps = (OF_SMOKE, 1) if perf.smoke else (SCHEDULES, STEPS)
    found = perf.configured(rtol=RTOL, atol=0.0).search(
        racing.train,
        configurations={schedule: {"schedule": schedule} for schedule in schedules},
        name="schedules",
        tokens=model.rows * model.microbatches,
        flop=model.flop,
        dtype=torch.bfloat16,
        needs=lambda schedule, model: peak_bytes(schedule, model, perf.world_size),
        verify=verify,
        model=model,
    )
    perf.check(**found.figures)
    longest = [0.0] * steps
    for schedule in (trial.name for trial in found.ran):
        times = ranks.run(racing.rank_times, schedule=schedule, model=model, steps=steps)
        promised = bubbles(schedule, model.microbatches, times)
        measured = [waits(step) for step in zip(*times, strict=True)]
        for number, step in enumerate(measured):
            beyond = max(waited - says for waited, says in zip(step, promised, strict=True))
            longest[number] = max(longest[number], beyond)
        by_rank = [statistics.median(of_rank) for of_rank in zip(*measured, strict=True)]
        perf.show(
            **{
                f"bubble_{schedule}": share(statistics.fmean(by_rank)),
                f"bubble_{schedule}_promised": share(statistics.fmean(promised)),
                f"memory_{schedule}_promised": Metric(
                    float(peak_bytes(schedule, model, perf.world_size)), "B", "lower"
                ),
            }
        )
    # 1 is a rank that waits as long as its schedule says: of all ranks and schedules the one that waits the longest.
    kept = [1 - beyond for beyond in longest]
    perf.check(
        as_promised=Metric(
            statistics.median(kept),
            "x",
            "higher",
            samples=steps,
            limit=1.0,
            limit_name="schedule",
            interval=(min(kept), max(kept)),
            at_least=1 - LONGEST_WAIT,
        )
    )


def share(value: float) -> Metric:
    """Of a step; a wait of nothing is shown as 0.1 %."""
    return Metric(max(value, 0.001), "x", "lower")
