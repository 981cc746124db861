"""What a rank sends: its kept assignments there and back, once in each direction, and the gate's gradient."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.expert_parallel.programs import layer as programs
from suites.expert_parallel.programs.exchange import exchanging_layer
from suites.expert_parallel.reference import WIDTH, Arguments, choices, fixed
from suites.shared.traffic import Messages, messages_of

pytestmark = pytest.mark.ranks(2, 4)

DTYPES = {torch.float64: 8, torch.float32: 4}  # bytes of a number


def expected(given: Arguments, itemsize: int) -> list[Messages]:
    """By the page's formula, from the choices of a loop over tokens: no program's routing."""
    gate: torch.Tensor = given["weights"].gate
    degree, experts = len(given["each"]), len(gate)
    kept = [choices(x @ gate.T, given["k"], given["capacity"])[1] for x, _ in given["each"]]
    # How many rows each rank gives to each: from a row of ranks to a column of them.
    rows = torch.stack([each.sum(0).view(degree, -1).sum(1) for each in kept])
    messages: list[Messages] = []
    for rank in range(degree):
        given_away, taken = (int(rows.sum(dim)[rank]) * WIDTH * itemsize for dim in (1, 0))
        counts = experts * 8  # whole numbers of 64 bits
        there_and_back = [("all_to_all", given_away), ("all_to_all", taken)]
        gradients = [*there_and_back, ("all_reduce", experts * WIDTH * itemsize)]
        messages.append([("all_to_all", counts), *there_and_back, *gradients])
    return messages


EXACT = functools.partial(exchanging_layer, padded=False, chunks=1)


@pytest.mark.parametrize(
    ("dtype", "layer"),
    [(torch.float64, programs.expert_parallel), (torch.float32, programs.expert_parallel), (torch.float64, EXACT)],
    ids=["float64", "float32", "exact splits"],
)
def test_each_assignment_travels_once_each_way(ranks: Ranks, dtype: torch.dtype, layer: programs.Layer) -> None:
    given = fixed(ranks, dtype=dtype)
    assert ranks.run(messages_of, programs.train, **given, layer=layer) == expected(given, DTYPES[dtype])


def test_chunks_send_no_more_rows_than_one_exchange(ranks: Ranks) -> None:
    given, chunks = fixed(ranks, capacity=3), 2
    layer = functools.partial(exchanging_layer, padded=False, chunks=chunks)
    results = ranks.run(messages_of, programs.train, **given, layer=layer)
    for rank, (messages, whole) in enumerate(zip(results, expected(given, 8), strict=True)):
        counts, *rows = [nbytes for kind, nbytes in messages if kind == "all_to_all"]
        of_one, *rows_of_one = [nbytes for kind, nbytes in whole if kind == "all_to_all"]
        assert counts == chunks * of_one, f"rank {rank} sent {counts} bytes of counts"
        assert sum(rows) == sum(rows_of_one), f"rank {rank} sent {sum(rows)} bytes of rows, not {sum(rows_of_one)}"
