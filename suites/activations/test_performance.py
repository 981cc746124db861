"""What less memory for activations costs in time: every technique, and those that nothing else beats in both."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf
from suites.activations.programs import racing
from suites.activations.programs.racing import LEND, RACED, Work, crossing_bytes, kept_bytes, trainers

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

RTOL = 2.0**-7  # of numbers that bfloat16 has rounded


def workload(perf: Perf) -> Work:
    """4 blocks and 4096 rows: 3.2 TFLOP of forward and backward, 5.3 ms of an H200 at 600 TFLOP/s.

    They save 0.6 GB. That takes 12 ms over PCIe at 50 GB/s, and 1.6 ms over NVLink at 380 GB/s, there and again back.
    torch's own offload takes 0.23 GB of weights along.
    Weights are 0.27 GB, and so are gradients. Were those larger than what is saved, no technique would lower the peak:
    gradients come while what is saved goes.
    """
    return Work(
        blocks=4,
        width=perf.sized(2048, smoke=4),
        hidden=perf.sized(8192, smoke=8),
        rows=perf.sized(4096, smoke=2),
        dtype=torch.float32 if perf.smoke else torch.bfloat16,
        seed=1,
    )


def test_techniques(perf: Perf) -> None:
    work, ranks = workload(perf), perf.world_size

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        loss, norm = output.tolist()
        expected = float(racing.whole_loss(work, ranks, ctx.device))
        assert math.isclose(loss, expected, rel_tol=RTOL), f"the loss is {loss}, not {expected}"
        assert 0 < norm < math.inf, f"the norm of the gradients is {norm}"

    found = perf.configured(rtol=RTOL, atol=0.0).search(
        racing.train,
        configurations={name: {"technique": name} for name in (*RACED, LEND)},
        name="techniques",
        tokens=trainers(ranks) * work.rows,
        flop=work.flop(trainers(ranks)),
        dtype=torch.bfloat16,
        needs=lambda technique, work: 2 * work.weight_bytes + kept_bytes(technique, work),
        verify=verify,
        work=work,
    )
    perf.check(**found.figures)
    for trial in found.ran:
        label = trial.name.replace(" ", "_")
        perf.show(**{f"kept_{label}_promised": Metric(float(kept_bytes(trial.name, work)), "B", "lower")})
        if trial.peak is not None:
            beyond = trial.peak - 2 * work.weight_bytes
            perf.show(**{f"beyond_weights_{label}": Metric(float(beyond), "B", "lower")})
        if trial.name == "recompute" and trial.peak is not None:
            perf.check(memory_recompute=found.memory(trial))
        if trial.name.startswith("offload") and trial.timing is not None:
            # Everything crosses twice, one way after the other.
            moved = trial.timing.rate(
                2 * crossing_bytes(trial.name, work), "B/s", limit=perf.host_link.line_rate, limit_name="PCIe"
            )
            perf.show(**{f"pcie_{label}": moved})
