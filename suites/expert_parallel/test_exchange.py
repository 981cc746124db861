"""Padded splits and exact ones, whole and in chunks, compute what the dense layer does, and send what they say."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.expert_parallel.programs import layer as programs
from suites.expert_parallel.programs.exchange import exchanging_layer
from suites.expert_parallel.reference import CHOICES, HIDDEN, TOKENS, WIDTH, Arguments, arguments, assert_dense, fixed
from suites.shared.experts import expert_places
from suites.shared.step import each_step, once
from suites.shared.strategies import seeds, worlds
from suites.shared.traffic import messages_of


@pytest.mark.ranks(2, 4)
@pytest.mark.examples(0.4)
@given(
    data=st.data(),
    local=st.integers(1, 2),
    capacity=st.integers(1, TOKENS),
    padded=st.booleans(),
    chunks=st.integers(1, 3),
    kind=st.sampled_from([("scores", torch.float64), ("scores", torch.float32), ("softmax", torch.float64)]),
    seed=seeds,
)
def test_every_exchange_is_the_dense_layer(
    ranks: Ranks,
    data: st.DataObject,
    local: int,
    capacity: int,
    padded: bool,
    chunks: int,
    kind: tuple[str, torch.dtype],
    seed: int,
) -> None:
    """The layer takes two steps with other tokens, whose number may be none; chunks may have no place."""
    world = data.draw(worlds(ranks))
    experts = local * world.world_size
    k = data.draw(st.integers(1, min(CHOICES, experts)))
    tokens = st.lists(st.integers(0, TOKENS), min_size=world.world_size, max_size=world.world_size)
    steps = [
        arguments(
            tokens=data.draw(tokens),
            experts=experts,
            width=WIDTH,
            hidden=HIDDEN,
            k=k,
            capacity=capacity,
            gate=kind[0],
            dtype=kind[1],
            seed=seed + step,
        )
        for step in range(2)
    ]
    later = [(steps[1]["weights"], steps[1]["each"])]
    layer = functools.partial(exchanging_layer, padded=padded, chunks=chunks)
    results = world.run(each_step, programs.train, 2, **steps[0], later=later, layer=layer)
    for number, given_step in enumerate(steps):
        assert_dense([of_rank[number] for of_rank in results], given_step)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "exact"])
def test_every_exchange_in_the_fixed_case(ranks: Ranks, padded: bool, chunks: int) -> None:
    """Every rank has tokens for every other, and drops some; 3 places in chunks of 2 and 1."""
    case = fixed(ranks, capacity=3)
    layer = functools.partial(exchanging_layer, padded=padded, chunks=chunks)
    assert_dense(ranks.run(once, programs.train, **case, layer=layer), case)


def sent(case: Arguments, chunks: int) -> list[tuple[str, int]]:
    """With padded splits: there and back C rows for each expert, and the same of gradients; no counts."""
    experts, width = case["weights"].gate.shape
    itemsize = case["weights"].gate.itemsize
    part = -(-case["capacity"] // chunks)
    places_of_chunks = [min(part, case["capacity"] - chunk * part) for chunk in range(chunks)]
    exchanges = [("all_to_all", experts * places * width * itemsize) for places in places_of_chunks]
    # Backward begins with the last chunk.
    backward = exchanges[::-1] * 2
    return [*exchanges * 2, *backward, ("all_reduce", experts * width * itemsize)]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("chunks", [1, 2])
def test_padded_splits_send_every_place_and_no_counts(ranks: Ranks, chunks: int) -> None:
    case = fixed(ranks, capacity=3)
    layer = functools.partial(exchanging_layer, padded=True, chunks=chunks)
    messages = ranks.run(messages_of, programs.train, **case, layer=layer)
    assert messages == [sent(case, chunks)] * ranks.world_size


def test_places_are_given_by_choice_and_then_by_token() -> None:
    chosen = torch.tensor([[1, 0], [0, 1], [1, 2]])
    place, counts = expert_places(chosen, 4)
    assert place.tolist() == [[0, 1], [0, 2], [1, 0]]
    assert counts.tolist() == [2, 3, 1, 0]
