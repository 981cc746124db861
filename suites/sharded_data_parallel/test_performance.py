"""What sharding gains and costs: tokens per second, memory and bytes of each way, beside ZeRO's formulas."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Ranks
from suites.sharded_data_parallel.programs import racing
from suites.sharded_data_parallel.programs.racing import WAYS, Sharding
from suites.sharded_data_parallel.reference import bytes_sent, state_bytes
from suites.shared.llama import Config
from suites.shared.llm import Workload

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

# Sizes of Llama 3.2 3B, with fewer layers and words: 0.5 billion parameters. 2048 tokens a rank are 5 TFLOP of forward
# and backward, 9 ms of an H200 at 600 TFLOP/s; FSDP2 sends 1.5 GB beside it, in 4 ms.
LARGE = Config(layers=3, heads=24, kv_heads=8, head_dim=128, hidden=8192, vocabulary=32000)
SMOKE = Config(layers=1, heads=8, kv_heads=2, head_dim=2, hidden=16, vocabulary=16)
OF_SMOKE = ("ZeRO-1", "FSDP2 prefetch 2")
RTOL = 2.0**-7  # two roundings of bfloat16: gradients that ranks add up are rounded where one rank's are not
GUESS = 1.5  # times the loss of a guess: weights that are drawn are no worse than that


def workload(perf: Perf) -> Workload:
    return Workload(
        config=SMOKE if perf.smoke else LARGE,
        sequences=1,
        length=perf.sized(2048, smoke=8),
        seed=1,
        compute=torch.float32 if perf.smoke else torch.bfloat16,
        parameters=torch.float32,
    )


def test_ways(perf: Perf, ranks: Ranks) -> None:
    """The race of all ways; and of each, what a rank holds between steps and sends in one."""
    work = workload(perf)
    guess = math.log(work.config.vocabulary)

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        loss, norm = output.tolist()
        assert 0 < norm < math.inf, f"the norm of the gradients is {norm}"
        assert loss < (guess if steps > 10 else GUESS * guess), f"the loss is {loss} after {steps} steps"

    def needs(way: Sharding, work: Workload) -> float:
        return state_bytes(way, work, perf.world_size)

    found = perf.configured(rtol=RTOL, atol=0.0).search(
        racing.train,
        configurations={name: {"way": WAYS[name]} for name in (OF_SMOKE if perf.smoke else WAYS)},
        name="ways",
        tokens=work.tokens(perf.world_size),
        flop=work.flop(perf.world_size),
        dtype=torch.bfloat16,
        needs=needs,
        verify=verify,
        work=work,
    )
    perf.check(**found.figures)
    memory, traffic, gathered = 0.0, 0.0, 0
    replicated = bytes_sent(WAYS["DDP"], work, perf.world_size)
    ran = {trial.name: WAYS[trial.name] for trial in found.trials if trial.timing is not None}
    by_rank = ranks.run(racing.costs, ways=ran, work=work)
    for name, way in ran.items():
        costs = [of_rank[name] for of_rank in by_rank]
        # Of tensors on CPUs, where nothing counts allocations.
        state = max(float(cost.held if cost.allocated is None else cost.allocated) for cost in costs)
        sent = max(cost.sent(perf.world_size) for cost in costs)
        state_promised, sent_promised = needs(way, work), bytes_sent(way, work, perf.world_size)
        memory, traffic = max(memory, state / state_promised), max(traffic, sent / sent_promised)
        gathered = max(gathered, *(cost.gathered for cost in costs))
        label = name.replace(" ", "_")
        perf.show(
            **{
                f"state_{label}": Metric(state, "B", "lower"),
                f"state_{label}_promised": Metric(state_promised, "B", "lower"),
                f"sent_{label}": Metric(sent / replicated, "x", "lower"),
                f"sent_{label}_promised": Metric(sent_promised / replicated, "x", "lower"),
            }
        )
    # Of all ways the one that is the farthest from its formula; counted, so that nothing scatters.
    perf.check(
        state_over_formula=Metric(memory, "x", "lower", limit=1.0, limit_name="ZeRO"),
        sent_over_formula=Metric(traffic, "x", "lower", limit=1.0, limit_name="ZeRO"),
        gathered_at_a_time=Metric(float(gathered), "units", "higher"),
    )
