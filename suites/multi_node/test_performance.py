"""What the network between nodes costs, and which way to sum and which layout of training spares it."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_gpuperf import Context, Metric, MiB, Perf, Ranks
from suites.multi_node.programs import exchanging, layouts, summing
from suites.multi_node.programs.layouts import Task
from suites.multi_node.reference import output_of
from suites.shared.places import assert_sum

NODES = 2
pytestmark = [pytest.mark.perf, pytest.mark.ranks(nodes=NODES)]

SIZES = tuple(2**power for power in range(10, 27, 2))
LONE = "each node has one rank"


def ways_of(perf: Perf, ranks: Ranks) -> tuple[str, ...]:
    """Which ways there are: rails can only be crossed if each node has several ranks and several adapters."""
    if perf.world_size == NODES:
        return ("between",)
    rails = perf.smoke or min(ranks.run(exchanging.adapters)) > 1
    return ("between", "inside", "crossing") if rails else ("between", "inside")


def test_bandwidth_inside_and_between_nodes(perf: Perf, ranks: Ranks) -> None:
    """Messages of all ranks at once: to the next rank of the node, to its place on the other node, and across rails."""
    sizes = SIZES[:2] if perf.smoke else SIZES
    peaks = {}
    for way in ways_of(perf, ranks):

        def verify(ctx: Context, received: torch.Tensor, steps: int, nbytes: int, way: str = way) -> None:
            exchanging.assert_arrived(ctx, received, nodes=NODES, way=way)

        swept = perf.configured(budget=0.3).sweep(
            exchanging.exchange, sizes=sizes, op="send_recv", verify=verify, nodes=NODES, way=way
        )
        perf.check(**{f"{way}_{name}": metric for name, metric in swept.figures.items()})
        peaks[way] = swept.peak.value
    if "inside" in peaks:
        perf.show(inside_over_between=Metric(peaks["inside"] / peaks["between"], "x", "higher"))
    if "crossing" in peaks:
        perf.show(rails_over_crossing=Metric(peaks["between"] / peaks["crossing"], "x", "higher"))


def test_hierarchical_sum(perf: Perf) -> None:
    """The sum by two levels against the one all-reduce, which NCCL plans by itself."""
    if perf.world_size == NODES:
        pytest.skip(f"{LONE}: a sum by two levels is the flat one")
    dtype = torch.bfloat16
    numel = perf.sized(64 * MiB, smoke=1024) // dtype.itemsize

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        assert_sum(output, ranks=ctx.world_size, steps=steps, where=f"rank {ctx.rank}")

    pair = perf.compare(
        baseline=summing.flat, optimized=summing.hierarchical, verify=verify, nodes=NODES, numel=numel, dtype=dtype
    )
    perf.check(hierarchical=pair.optimized.time, flat=pair.baseline.time)
    perf.show(speedup=pair.speedup)


def test_tensors_inside_nodes_and_data_across(perf: Perf) -> None:
    """Training with tensors split inside nodes and the batch across them, against the reverse; the losses are equal."""
    task = Task(
        blocks=2,
        width=perf.sized(1024, smoke=8),
        hidden=perf.sized(4096, smoke=4 * perf.world_size),
        rows=perf.sized(4096, smoke=2 * perf.world_size) // perf.world_size * perf.world_size,
        dtype=torch.float64 if perf.smoke else torch.bfloat16,
        seed=1,
        rate=2.0**-12,
    )

    def verify(ctx: Context, loss: torch.Tensor, steps: int) -> None:
        weights, (x, target) = ({name: value.to(ctx.device) for name, value in task.weights().items()}, task.batch())
        output = output_of(weights, task.blocks, x.to(ctx.device))
        first = float((output - target.to(ctx.device)).double().square().sum()) / 2
        if steps == 1:
            assert math.isclose(float(loss), first, rel_tol=0.01), f"the loss is {float(loss)}, on one device {first}"
        else:
            assert math.isfinite(loss), f"the loss is {float(loss)} after {steps} steps"
            assert float(loss) != first, f"the loss is {first} still after {steps} steps"

    pair = perf.configured(rtol=0.01, atol=0.0).compare(
        baseline=layouts.tensors_across, optimized=layouts.tensors_inside, verify=verify, task=task, nodes=NODES
    )
    perf.check(tensors_inside=pair.optimized.time, tensors_across=pair.baseline.time)
    perf.show(speedup=pair.speedup)
