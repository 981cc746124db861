"""DistributedDataParallel trains as one device does with each of its arguments, exactly; some ranks end early."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context, Ranks
from suites.data_parallel.programs.replicas import trajectory_and_buckets
from suites.data_parallel.programs.settings import (
    SETTINGS,
    apart_at_first,
    buffers,
    configured,
    converted,
    kept_local,
    of_split_layers,
    stopped,
)
from suites.shared.comparison import assert_same
from suites.shared.problems import Problem
from suites.shared.references import whole_batch
from suites.shared.sharding import shard
from suites.shared.strategies import seeds
from suites.shared.training import trajectory


def summed(ctx: Context, tensor: torch.Tensor) -> None:
    torch.distributed.all_reduce(tensor)


@pytest.mark.ranks(2)
@pytest.mark.examples(0.04)  # numbers have little to do with settings: a few seeds
@pytest.mark.parametrize("setting", SETTINGS)
@given(seed=seeds)
def test_as_one_device(ranks: Ranks, setting: str, seed: int) -> None:
    chosen = SETTINGS[setting]
    if chosen.lacking:
        pytest.skip(f"torch {torch.__version__} has no {chosen.needs} of DistributedDataParallel")
    problem = Problem(world_size=2, seed=seed, outputs=3, microbatches=chosen.microbatches, steps=3)
    got = ranks.run(trajectory, configured, problem=problem, setting=setting)
    skip = (1,) if chosen.skips else ()
    assert_same([packed.unpacked() for packed in got], whole_batch(problem, skip=skip))


@pytest.mark.ranks(2)
def test_capacities_of_each_bucket(ranks: Ranks) -> None:
    """A bucket is closed when it is full: the first one has one parameter, and the last one what the others leave.

    In the first step torch deals out the parameters in their order, and later in that of their gradients.
    """
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        pytest.skip(f"torch {torch.__version__} has no bucket_cap_mb_list of DistributedDataParallel")
    problem = Problem(world_size=2, seed=1, steps=2)
    capacities = [2**-20, 80 * 2**-20, 1.0]  # MiB: a byte, 80, and more than there is
    got = ranks.run(trajectory_and_buckets, problem=problem, all_reduce=summed, bucket_cap_mb_list=capacities)
    assert_same([packed.unpacked() for packed, _ in got], whole_batch(problem))
    for rank, (_, buckets) in enumerate(got):
        expected = [112, 96, 48, 16, 96, 144]
        assert buckets == expected, f"rank {rank}: buckets of {buckets} bytes, expected {expected}"


@pytest.mark.ranks(4)
def test_replicas_of_split_layers(ranks: Ranks) -> None:
    """The hidden layers' rows, and the columns of what follows them, are split over two ranks."""
    problem = Problem(world_size=2, seed=1, outputs=3, microbatches=2, steps=3)
    dims = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
    whole = whole_batch(problem)
    expected = []
    for rank in range(4):
        own = {}
        for name, value in whole[rank // 2].items():
            dim = dims.get(name.partition(", ")[2].removesuffix(" gradient"))
            own[name] = value if dim is None else shard(value, 2, dim)[rank % 2]
        expected.append(own)
    got = ranks.run(trajectory, of_split_layers, problem=problem)
    assert_same([packed.unpacked() for packed in got], expected)


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")
@pytest.mark.parametrize("argument", ["forward_sync_buffers", "broadcast_buffers"])
@pytest.mark.parametrize("sync", [True, False])
def test_buffers(ranks: Ranks, argument: str, sync: bool) -> None:
    """Rank 0's are sent before each forward, or none; at first they are sent unless it is the older argument.

    After a forward without a reduction the parameters are those of before, and torch sends no buffers either. A forward
    may write into its buffer, or make a new one.
    """
    if argument not in inspect.signature(DistributedDataParallel).parameters:
        pytest.skip(f"torch {torch.__version__} has no {argument} of DistributedDataParallel")
    expected = counted(own=not sync and argument == "broadcast_buffers", sync=sync)
    for replaced in (False, True):
        got = ranks.run(buffers, argument=argument, sync=sync, steps=3, replaced=replaced)
        for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
            assert have == want, f"replaced={replaced}, rank {rank}: buffers after each step {have}, expected {want}"


def counted(*, own: bool, sync: bool) -> list[list[int]]:
    """The buffer of each of two ranks after each step, if they begin with their own or with rank 0's."""
    expected: list[list[int]] = []
    for rank in range(2):
        value = 10 * rank if own else 0
        # Before the second step there is a forward more, before which buffers are sent, and they aren't after it.
        sent, more = (0, 1, 3), (1, 2, 1)  # rank 0's buffer when it is sent, and forwards since then
        values = []
        for before, forwards in zip(sent, more, strict=True):
            value = (before if sync else value) + forwards + rank
            values.append(value)
        expected.append(values)
    return expected


@pytest.mark.ranks(3)
@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")
def test_buffers_of_a_group(ranks: Ranks) -> None:
    """The group's first rank sends its own, and it is not the first of all ranks."""
    _, *got = ranks.run(buffers, argument="broadcast_buffers", sync=True, steps=3, replaced=False, first=1)
    expected = counted(own=False, sync=True)
    assert got == expected, f"buffers of the group's ranks after each step: {got}, expected {expected}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("init_sync", [True, False])
def test_what_differs_at_first(ranks: Ranks, init_sync: bool) -> None:
    """Rank 0's parameters and buffers are sent to all, or none; gradients of 2 weight x**2 are averaged either way."""
    weights, calls = ([1, 1], [0, 0]) if init_sync else ([1, 2], [0, 10])
    mean = sum(2 * weight * (1 + rank) ** 2 for rank, weight in enumerate(weights)) / 2
    got = ranks.run(apart_at_first, init_sync=init_sync)
    expected = [[weight, buffer, mean] for weight, buffer in zip(weights, calls, strict=True)]
    assert got == expected, f"parameter, buffer and gradient of each rank: {got}, not {expected}"


@pytest.mark.ranks(2)
def test_gradients_stay_local_until_the_outermost_context_ends(ranks: Ranks) -> None:
    assert ranks.run(kept_local) == [[1.0, 2.0, 4.5], [2.0, 4.0, 4.5]]


@pytest.mark.ranks(4)
def test_batch_norm_of_a_group(ranks: Ranks) -> None:
    """Layers at every depth look at the group's ranks, and keep their settings; a frozen one stays frozen."""
    for rank, layers in enumerate(ranks.run(converted)):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        expected = {"norm": (pair, 0.25, None, True, True), "inner.1": (pair, 1e-5, 0.1, False, False)}
        assert layers == expected, f"rank {rank}: layers {layers}, expected {expected}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", [True, False], ids=["its method", "for several"])
@pytest.mark.parametrize(
    ("lengths", "enable", "throw", "taken"),
    [([3, 1], True, True, [1, 1]), ([2, 2], True, False, [2, 2]), ([2, 2], False, True, [2, 2])],
    ids=["one has fewer", "as many", "as many, and not looked at"],
)
def test_all_stop_with_the_first(
    ranks: Ranks, lengths: list[int], enable: bool, throw: bool, taken: list[int], method: bool
) -> None:
    problem = Problem(world_size=2, seed=1, steps=3)
    got = ranks.run(stopped, problem=problem, lengths=lengths, enable=enable, throw=throw, method=method)
    assert got == taken, f"steps of each rank: {got}, not {taken}"
