"""Nodes are where ranks say they are, and sums, messages and training of two levels give what one device gives.

What needs no network is tried on one machine too, with ranks that are only thought of as on several nodes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.multi_node.programs import exchanging, layouts, summing
from suites.multi_node.programs.layouts import Task
from suites.multi_node.programs.levels import Levels, Whereabouts, whereabouts
from suites.multi_node.reference import on_one_device, share_of
from suites.shared.comparison import assert_each, assert_same, assert_unlike
from suites.shared.places import addends
from suites.shared.step import once, second
from suites.shared.strategies import float_dtypes, seeds
from suites.shared.traffic import messages_of

ON_NODES = pytest.mark.ranks(2, 4, nodes=2)
AS_IF = pytest.mark.ranks(2, 4)
"""On one machine, or packed on as few nodes as hold them."""
WAYS = ("inside", "between", "crossing")
message_sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=4, unique=True).map(sorted)


def node_counts(world_size: int) -> st.SearchStrategy[int]:
    """On how many nodes so many ranks may be, as many on each."""
    return st.sampled_from([count for count in range(1, world_size + 1) if world_size % count == 0])


def expected_groups(rank: int, nodes: int, world_size: int) -> tuple[list[int], list[int]]:
    each = world_size // nodes
    node, place = divmod(rank, each)
    return list(range(node * each, (node + 1) * each)), list(range(place, world_size, each))


@ON_NODES
def test_ranks_are_where_they_say(ranks: Ranks) -> None:
    found = ranks.run(whereabouts)
    each = ranks.world_size // 2
    for rank, told in enumerate(found):
        node, place = divmod(rank, each)
        groups = expected_groups(rank, 2, ranks.world_size)
        assert told == Whereabouts(node, found[rank].node_name, place, 2, *groups), f"rank {rank}"
    names = [told.node_name for told in found]
    assert names == [names[0]] * each + [names[-1]] * each
    assert names[0] != names[-1], f"both nodes are called {names[0]}"


@AS_IF
@given(data=st.data())
def test_groups_of_two_levels(ranks: Ranks, data: st.DataObject) -> None:
    nodes = data.draw(node_counts(ranks.world_size))
    for rank, told in enumerate(ranks.run(whereabouts, nodes=nodes)):
        assert (told.inside, told.across) == expected_groups(rank, nodes, ranks.world_size), f"rank {rank}"


@pytest.mark.ranks(3)
def test_ranks_that_nodes_cannot_have_evenly(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match=r"^3 ranks cannot be dealt evenly to 2 nodes\n"):
        ranks.run(whereabouts, nodes=2)


def assert_summed(ranks: Ranks, nodes: int, numel: int, dtype: torch.dtype) -> None:
    """Both ways, once and twice: the sum of what each rank adds, exactly."""
    world_size = ranks.world_size
    total = torch.stack([addends(numel, dtype=dtype, rank=rank, ranks=world_size) for rank in range(world_size)]).sum(0)
    for program in (summing.flat, summing.hierarchical):
        arguments = {"nodes": nodes, "numel": numel, "dtype": dtype}
        name = program.__name__
        assert_each(ranks.run(once, program, **arguments), [total] * world_size, name)
        assert_each(ranks.run(second, program, **arguments), [total * world_size] * world_size, f"{name}, second step")


@ON_NODES
@given(numel=st.integers(1, 3000), dtype=float_dtypes)
def test_hierarchical_sum(ranks: Ranks, numel: int, dtype: torch.dtype) -> None:
    assert_summed(ranks, 2, numel, dtype)


@AS_IF
@given(data=st.data(), numel=st.integers(1, 3000), dtype=float_dtypes)
def test_hierarchical_sum_as_if_on_nodes(ranks: Ranks, data: st.DataObject, numel: int, dtype: torch.dtype) -> None:
    assert_summed(ranks, data.draw(node_counts(ranks.world_size)), numel, dtype)


@pytest.mark.ranks(8)
def test_a_sum_of_two_levels_sends_only_a_share_between_nodes(ranks: Ranks) -> None:
    """The ranks sum 25 elements, which are padded to 28: a rank's quarter of them goes over the network.

    With as many nodes as ranks of a node, a sum that goes across first and then inside would send the same.
    """
    arguments = {"nodes": 2, "numel": 25, "dtype": torch.float32}
    sent = [ranks.run(messages_of, program, **arguments) for program in (summing.flat, summing.hierarchical)]
    by_levels = [("reduce_scatter", 4 * 28), ("all_reduce", 4 * 7), ("all_gather", 4 * 7)]
    assert sent == [[[("all_reduce", 4 * 25)]] * 8, [by_levels] * 8]


def exchanged(ctx: Context, nodes: int, way: str, sizes: list[int]) -> None:
    """Two steps of each size, compared where they arrive."""
    step_of = exchanging.exchange(ctx, sizes=sizes, nodes=nodes, way=way)
    for nbytes in sizes:
        step = step_of(nbytes)
        for _ in range(2):
            received = step()
            assert received.numel() == nbytes
            exchanging.assert_arrived(ctx, received, nodes=nodes, way=way)
            assert not received.any(), "the next step need not write what is there still"


@ON_NODES
@given(way=st.sampled_from(WAYS), sizes=message_sizes)
def test_messages(ranks: Ranks, way: str, sizes: list[int]) -> None:
    if ranks.world_size == 2:
        way = "between"  # each is alone on its node
    ranks.run(exchanged, 2, way, sizes)


@pytest.mark.ranks(4)
@given(way=st.sampled_from(WAYS), sizes=message_sizes)
def test_messages_as_if_on_nodes(ranks: Ranks, way: str, sizes: list[int]) -> None:
    ranks.run(exchanged, 2, way, sizes)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("inside", [(1, 2), (2, 0), (0, 1), (4, 5), (5, 3), (3, 4)]),
        ("between", [(3, 3), (4, 4), (5, 5), (0, 0), (1, 1), (2, 2)]),
        ("crossing", [(4, 5), (5, 3), (3, 4), (1, 2), (2, 0), (0, 1)]),
    ],
)
def test_who_sends_to_whom(way: str, expected: list[tuple[int, int]]) -> None:
    places = [Levels(None, 2, 3, *divmod(rank, 3)) for rank in range(6)]  # type: ignore[arg-type]
    assert [exchanging.ends(place, way) for place in places] == expected


def test_adapters_with_an_active_port_are_counted(tmp_path: Path) -> None:
    ports = {"mlx5_0/1": "4: ACTIVE", "mlx5_1/1": "1: DOWN", "mlx5_2/1": "4: ACTIVE", "mlx5_2/2": "4: ACTIVE"}
    for name, state in ports.items():
        device, port = name.split("/")
        folder = tmp_path / device / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    here: Context = None  # type: ignore[assignment]
    assert exchanging.adapters(here, devices=tmp_path) == 2
    assert exchanging.adapters(here, devices=tmp_path / "no RDMA") == 0


def task(world_size: int, seed: int, blocks: int = 2) -> Task:
    """Whole numbers, which float64 holds: after two steps none is above 2**45."""
    return Task(
        blocks=blocks,
        width=3,
        hidden=2 * world_size,
        rows=2 * world_size,
        dtype=torch.float64,
        seed=seed,
        rate=1.0,
        whole=True,
    )


@pytest.mark.parametrize("whole", [True, False])
def test_no_two_layers_and_no_two_shares_of_the_batch_are_alike(whole: bool) -> None:
    """Were they alike, a layer or a share in the place of another would be right."""
    given = dataclasses.replace(task(4, seed=1), hidden=24, width=24, rows=24, whole=whole)
    assert_unlike(given.weights())
    x, target = given.batch()
    assert_unlike({"x": x, "target": target})
    for whole_batch in (x, target):
        assert_unlike({f"share {number}": part for number, part in enumerate(whole_batch.chunk(4))})


def assert_as_one_device(ranks: Ranks, nodes: int, given: Task) -> None:
    """Both layouts train as one device does: losses, gradients and weights, exactly."""
    each, steps = ranks.world_size // nodes, 2
    expected = on_one_device(given, steps)
    for inside in (True, False):
        got = ranks.run(layouts.train_steps, task=given, nodes=nodes, inside=inside, steps=steps)
        splits = each if inside else nodes
        for step, whole in enumerate(expected):
            numbers = [rank % each if inside else rank // each for rank in range(ranks.world_size)]
            shares = [share_of(whole, splits, number) for number in numbers]
            assert_same([of_rank[step] for of_rank in got], shares)


@ON_NODES
@given(seed=seeds, blocks=st.integers(1, 2))
def test_training_in_both_layouts(ranks: Ranks, seed: int, blocks: int) -> None:
    assert_as_one_device(ranks, 2, task(ranks.world_size, seed, blocks))


@AS_IF
@given(data=st.data(), seed=seeds)
def test_training_in_both_layouts_as_if_on_nodes(ranks: Ranks, data: st.DataObject, seed: int) -> None:
    assert_as_one_device(ranks, data.draw(node_counts(ranks.world_size)), task(ranks.world_size, seed))


@pytest.mark.ranks(2)
def test_each_level_sends_what_it_has_to_and_nothing_if_it_is_of_one_rank(ranks: Ranks) -> None:
    """Tensors that are split: outputs, and gradients of inputs but the first. The batch: all gradients at once; a loss.

    On one node all ranks are inside, and each is alone across.
    """
    given = task(ranks.world_size, seed=1)
    activations = given.rows * given.width * given.dtype.itemsize
    weights = sum(weight.nbytes for weight in given.weights().values())
    for program, expected in (
        (layouts.tensors_inside, [activations] * 3),
        (layouts.tensors_across, [weights, given.dtype.itemsize]),
    ):
        messages = [("all_reduce", nbytes) for nbytes in expected]
        assert ranks.run(messages_of, program, task=given, nodes=1) == [messages] * 2, program.__name__


@AS_IF
@pytest.mark.parametrize("inside", [True, False], ids=["tensors inside", "tensors across"])
def test_the_loss_of_weights_of_16_bits_has_32(ranks: Ranks, inside: bool) -> None:
    """The outputs are whole numbers below 256, which bfloat16 holds. The sum of their squares is larger, and odd."""
    size = ranks.world_size
    given = Task(blocks=1, width=3, hidden=2 * size, rows=8 * size, dtype=torch.bfloat16, seed=5, rate=1.0, whole=True)
    expected = on_one_device(dataclasses.replace(given, dtype=torch.float64), 1)[0]["loss"].float()
    assert expected.bfloat16() != expected, "bfloat16 holds this loss, and would be as good"
    got = ranks.run(layouts.train_steps, task=given, nodes=1, inside=inside, steps=1)
    assert_each([steps[0]["loss"] for steps in got], [expected] * size, "loss")
