"""However a schedule is called, gradients, losses and outputs are those of the whole model, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.calls import POWER, train_both
from suites.pipeline_parallel.programs.carrying import needs_no_gradient
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, SPLITTING, evaluates, placed
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of

MICROBATCHES, ROWS = 4, 2


def whole(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return integers(shape, torch.float64, seed=seed, low=-3, high=4)


@pytest.mark.ranks(2)
@pytest.mark.skipif(not needs_no_gradient(), reason="this torch wants a gradient of all that a stage hands on")
@pytest.mark.parametrize("schedule", RUNNERS)
def test_ways_to_call_a_schedule(ranks: Ranks, schedule: str) -> None:
    """An evaluation comes first; a step returns nothing; one list has all losses; a stage does not train."""
    count = ranks.world_size * (1 if schedule in SINGLE else 2)
    weights = [whole((3, 3), seed) for seed in range(count)]
    batch = MICROBATCHES * ROWS
    given = {"x": whole((batch, 3), 40), "rows": whole((batch, 1), 41), "shift": whole((batch, 3), 42)}
    target = whole((batch, 3), 43)
    got = ranks.run(train_both, schedule=schedule, weights=weights, target=target, microbatches=MICROBATCHES, **given)
    expected = whole_model(weights, target, evaluates(schedule), **given)
    for way, results in enumerate(zip(*got, strict=True)):
        without = ("stage 0", "batch 1", "batch 2") if way else ()
        of_ranks: list[Tensors] = []
        for rank in range(ranks.world_size):
            own = placed(schedule, rank, ranks.world_size, count)
            names = {f"stage {index}" for index in own} | ({"batch 1", "batch 2"} if 0 in own else set())
            if count - 1 in own:
                names |= {name for name in expected if name.startswith(("losses", "output", "sum"))}
            of_rank = {name: expected[name] for name in names - set(without)}
            if schedule not in SPLITTING:
                of_rank["rows"] = torch.stack([expected[f"rows {index}"] for index in own]).sum(0)
            of_ranks.append(of_rank)
        assert_same(results, of_ranks, ordered=False)


def whole_model(
    weights: list[torch.Tensor],
    target: torch.Tensor,
    evaluated: bool,
    *,
    x: torch.Tensor,
    rows: torch.Tensor,
    shift: torch.Tensor,
) -> Tensors:
    """All stages one after the other, of the batch multiplied by each number; only 1 and 2 train."""
    leaves = [weight.clone().requires_grad_() for weight in weights]
    gates = [rows.clone().requires_grad_() for _ in weights]
    results: Tensors = {}
    for times in (1, 2, *((3, 4) if evaluated else ())):
        hidden = batch = (times * x).requires_grad_()
        before = torch.zeros_like(x)
        for leaf, gate in zip(leaves, gates, strict=True):
            output = (hidden @ leaf).abs() * gate + POWER * shift + 1 - before
            hidden, before = output, hidden * gate
        weighed = (hidden * times * target + 2 * hidden).split(ROWS)
        losses = torch.stack([part.sum() for part in weighed])
        results[f"losses {times}"] = losses.detach()
        if times > 1:
            results |= {f"output {times}": hidden.detach(), f"sum {times}": hidden.detach().sum()}
        if times <= 2:
            losses.sum().backward()
            results[f"batch {times}"] = gradient_of(batch)
    if evaluated:
        results |= {f"{name} 5": results[f"{name} 4"] for name in ("output", "sum")}
    results |= {f"rows {index}": gradient_of(gate) for index, gate in enumerate(gates)}
    return results | {f"stage {index}": gradient_of(leaf) for index, leaf in enumerate(leaves)}
