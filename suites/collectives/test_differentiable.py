"""Differentiable collectives and their gradients, against what one process computes with the inputs of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs.differentiable import ROOT, all_forms, in_pairs, other_operations
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors

DTYPE = torch.float64


@pytest.mark.ranks(3, device="cpu")
def test_results_and_gradients(ranks: Ranks) -> None:
    xs, weights = (rank_inputs(3, shape=(3, 3), dtype=DTYPE, seed=seed) for seed in (1, 2))
    got = ranks.run(all_forms, xs=xs, weights=weights)
    want = [expected(rank, torch.stack(xs), torch.stack(weights)) for rank in range(3)]
    for rank, of_rank in enumerate(zip(got, want, strict=True)):
        for tensors in of_rank if rank != ROOT else ():  # what only the root receives is undefined elsewhere
            del tensors["reduce"], tensors["gather"]
    assert_same(got, want, ordered=False)


@pytest.mark.ranks(3, device="cpu")
@pytest.mark.parametrize(("op", "reduced"), [("MAX", torch.amax), ("MIN", torch.amin), ("PRODUCT", torch.prod)])
def test_results_of_other_operations(ranks: Ranks, op: str, reduced: Callable[..., torch.Tensor]) -> None:
    xs = rank_inputs(3, shape=(3, 3), dtype=DTYPE, seed=1)
    whole = reduced(torch.stack(xs), dim=0)
    assert not any(torch.equal(whole, other) for other in [*xs, torch.stack(xs).sum(0)])
    got = ranks.run(other_operations, op=op, xs=xs)
    want = [
        {"reduce": whole, "all_reduce": whole, "reduce_scatter": row, "input afterwards": x}
        for row, x in zip(whole, xs, strict=True)
    ]
    for rank, of_rank in enumerate(zip(got, want, strict=True)):
        for tensors in of_rank if rank != ROOT else ():  # what only the root receives is undefined elsewhere
            del tensors["reduce"]
    assert_same(got, want)


@pytest.mark.ranks(4, device="cpu")
def test_in_a_part_of_the_world(ranks: Ranks) -> None:
    """One of a pair sends three rows to the other, which sends it one and keeps two."""
    xs = rank_inputs(4, shape=(2, 3), dtype=DTYPE, seed=3)
    weights = rank_inputs(4, shape=(5, 2), dtype=DTYPE, seed=4)
    want: list[Tensors] = []
    for rank in range(4):
        place, pair = rank // 2, [rank % 2, rank % 2 + 2]
        (x, y), (v, w) = [xs[each].t() for each in pair], [weights[each] for each in pair]
        first_rows = torch.stack([v[0], w[0], torch.zeros(2, dtype=DTYPE)])
        want.append(
            {
                "all_reduce": x + y,
                "mean": (x + y) / 2,
                "reduce_scatter": (x + y)[place][None],
                "all_to_all_single": [y[:1], torch.cat([x, y[1:]])][place],
                "gradient of all_reduce": (v + w)[:3].t(),
                "gradient of mean": (v + w)[:3].t() / 2,
                "gradient of reduce_scatter": first_rows.t(),
                "gradient of all_to_all_single": [w[:3], torch.cat([v[:1], w[3:]])][place].t(),
            }
        )
    assert_same(ranks.run(in_pairs, xs=xs, weights=weights), want)


def expected(rank: int, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """By the formulas; tensors of all ranks are R x R x R."""
    root, zero = rank == ROOT, torch.zeros(3, 3, dtype=DTYPE)

    def first_row(row: torch.Tensor) -> torch.Tensor:
        return torch.stack([row, *zero[1:]])

    found = {
        "broadcast": x[ROOT],
        "gradient of broadcast": weight.sum(0) if root else zero,
        "reduce": x.sum(0),
        "gradient of reduce": weight[ROOT],
        "all_reduce": x.sum(0),
        "gradient of all_reduce": weight.sum(0),
        "reduce_scatter": x.sum(0)[rank][None],
        "gradient of reduce_scatter": weight[:, 0],
        "gather": x[:, 0],
        "gradient of gather": first_row(weight[ROOT, rank]),
        "scatter": x[ROOT, rank][None],
        "gradient of scatter": weight[:, 0] if root else zero,
        "all_gather": x[:, 0],
        "gradient of all_gather": first_row(weight[:, rank].sum(0)),
        "all_to_all": x[:, rank],
        "gradient of all_to_all": weight[:, rank],
        "all_to_all_single": x[:, rank],
        "gradient of all_to_all_single": weight[:, rank],
    }
    names = [name for name in found if not name.startswith("gradient")]
    return found | {f"input of {name} afterwards": x[rank] for name in names}
