"""Ranks with a part of the batch each train as one device with the whole batch does, exactly.

Everything is a whole number: see suites/shared/problems.py, and suites/shared/references.py for the reference.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, MiB, Ranks
from suites.data_parallel.programs import replicas as programs
from suites.shared import problems
from suites.shared.comparison import assert_close, assert_unlike
from suites.shared.problems import Problem
from suites.shared.references import assert_trained, whole_batch
from suites.shared.strategies import dtypes, seeds, worlds
from suites.shared.training import trajectory

pytestmark = pytest.mark.ranks(2, 4)

DEFAULT_CAP = 25.0  # MiB: the whole network in a bucket
TINY_CAPS = (2**-20, 2**-14)  # MiB, a byte and 64: each parameter a bucket of its own, and some together

ALL_REDUCES: dict[str, programs.AllReduce | None] = {
    "torch's": None,
    "in a hook": lambda ctx, tensor: dist.all_reduce(tensor),
    "ring": programs.ring_all_reduce,
}


@st.composite
def drawn_problems(draw: st.DrawFn, /, world_size: int, **fixed: Any) -> Problem:
    features = st.integers(1, problems.MAX_FEATURES)
    dtype = draw(st.sampled_from(list(problems.MAX_STEPS_IN)))
    drawn = Problem(
        world_size=world_size,
        seed=draw(seeds),
        inputs=draw(features),
        hidden=draw(features),
        outputs=draw(features),
        rows=draw(st.integers(1, problems.MAX_ROWS)),
        microbatches=draw(st.integers(1, problems.MAX_MICROBATCHES)),
        steps=draw(st.integers(1, problems.MAX_STEPS_IN[dtype])),
        dtype=dtype,
        wide=True,
    )
    return replace(drawn, **fixed)


def test_no_two_ranks_or_steps_are_alike() -> None:
    """Were they alike, a rank's own gradients, its own parameters, or the step before would be right."""
    problem = Problem(world_size=3, seed=1, inputs=8, hidden=8, rows=8, microbatches=2, steps=3, wide=True)
    for place, what in enumerate(("inputs", "output gradients")):
        microbatches = {
            f"{what} of rank {rank}, step {step}, microbatch {number}": part
            for rank in range(problem.world_size)
            for step, batch in enumerate(problem.batches(rank))
            for number, part in enumerate(batch[place])
        }
        assert_unlike(microbatches)
    for name in problem.parameters():
        assert_unlike({f"{name} of rank {rank}": problem.parameters(rank)[name] for rank in range(3)})
    assert all(problem.rate(step) != problem.rate(step + 1) for step in range(problem.steps - 1))


def gradient_bytes(problem: Problem) -> int:
    return sum(value.nbytes for value in problem.parameters().values())


@dataclass(frozen=True)
class Options:
    """The options of DistributedDataParallel and of how it is used."""

    all_reduce: str
    no_sync: bool
    bucket_cap_mb: float
    static_graph: bool
    gradient_as_bucket_view: bool


drawn_options = st.builds(
    Options,
    all_reduce=st.sampled_from(sorted(ALL_REDUCES)),
    no_sync=st.booleans(),
    bucket_cap_mb=st.sampled_from([DEFAULT_CAP, *TINY_CAPS]),
    static_graph=st.booleans(),
    gradient_as_bucket_view=st.booleans(),
)


@pytest.mark.ranks(2)
@given(data=st.data(), options=drawn_options)
def test_distributed_data_parallel(ranks: Ranks, data: st.DataObject, options: Options) -> None:
    assert_distributed_data_parallel(ranks, data, options)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.1)  # on 4 ranks one takes several times as long, and the number of ranks matters little
@given(data=st.data(), options=drawn_options)
def test_distributed_data_parallel_of_more_ranks(ranks: Ranks, data: st.DataObject, options: Options) -> None:
    assert_distributed_data_parallel(data.draw(worlds(ranks)), data, options)


def assert_distributed_data_parallel(ranks: Ranks, data: st.DataObject, options: Options) -> None:
    problem = data.draw(drawn_problems(ranks.world_size))
    no_sync, static_graph = options.no_sync, options.static_graph
    if static_graph or not no_sync:
        # The second microbatch's gradients are added to the first one's mean, and the mean of that taken once more.
        microbatches = min(problem.microbatches, 2)
        problem = replace(problem, microbatches=microbatches, multiple=ranks.world_size**microbatches)
    # A static graph is the same on all ranks. A parameter that no rank uses has no gradient: rank 0 uses all.
    others = st.sampled_from(range(1, ranks.world_size))
    skip = frozenset() if static_graph else data.draw(st.frozensets(others))
    all_reduce = ALL_REDUCES[options.all_reduce]
    results = ranks.run(
        programs.trajectory_and_buckets, problem=problem, skip=skip, **asdict(options) | {"all_reduce": all_reduce}
    )
    assert_trained(problem, [result for result, _ in results], whole_batch(problem, skip=skip))
    reductions = problem.steps * (1 if no_sync else problem.microbatches)
    if static_graph and no_sync and problem.microbatches > 1:
        reductions += 1  # the very first microbatch, whose backward records the graph
    if all_reduce is not None:
        assert [sum(buckets) for _, buckets in results] == [reductions * gradient_bytes(problem)] * ranks.world_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_many_elements(ranks: Ranks, dtype: torch.dtype) -> None:
    """70 225 gradients in a bucket; of one step, which no larger number follows."""
    problem = Problem(
        world_size=ranks.world_size, seed=1, inputs=265, hidden=0, outputs=265, steps=1, dtype=dtype, wide=True
    )
    got = ranks.run(trajectory, programs.distributed_data_parallel, problem=problem)
    assert_trained(problem, got, whole_batch(problem))


def all_reduced(ranks: Ranks, problem: Problem, *, no_sync: bool) -> list[dict[str, int]]:
    """What DistributedDataParallel's own reducer gives to collectives in a step."""
    results = ranks.run(
        programs.trajectory_and_traffic, programs.distributed_data_parallel, problem=problem, no_sync=no_sync
    )
    assert_trained(problem, [result for result, _ in results], whole_batch(problem))
    return [traffic for _, traffic in results]


def test_accumulation_reduces_each_gradient_once(ranks: Ranks) -> None:
    problem = Problem(world_size=ranks.world_size, seed=1, microbatches=3, wide=True)
    once = {"all_reduce": gradient_bytes(problem)}
    assert all_reduced(ranks, problem, no_sync=True) == [once] * ranks.world_size


def test_without_no_sync_every_microbatch_is_reduced(ranks: Ranks) -> None:
    problem = Problem(world_size=ranks.world_size, seed=1, microbatches=2, multiple=ranks.world_size**2)
    twice = {"all_reduce": 2 * gradient_bytes(problem)}
    assert all_reduced(ranks, problem, no_sync=False) == [twice] * ranks.world_size


@pytest.mark.ranks(2)
def test_a_static_graph_reduces_every_microbatch_of_its_first_step_alone(ranks: Ranks) -> None:
    # Two microbatches and three steps: the very first backward records the graph, and has to reduce.
    problem = Problem(world_size=ranks.world_size, seed=1, steps=3, microbatches=2, multiple=ranks.world_size**2)
    all_reduce = next(one for one in ALL_REDUCES.values() if one is not None)
    results = ranks.run(
        programs.trajectory_and_buckets, problem=problem, static_graph=True, no_sync=True, all_reduce=all_reduce
    )
    assert_trained(problem, [result for result, _ in results], whole_batch(problem))
    assert [sum(buckets) for _, buckets in results] == [4 * gradient_bytes(problem)] * ranks.world_size


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_cap_mb", [DEFAULT_CAP, *TINY_CAPS])
def test_buckets_hold_each_gradient_once(ranks: Ranks, bucket_cap_mb: float) -> None:
    # The first step only finds out in which order gradients come; its buckets are others than the second one's.
    first, both = (
        ranks.run(
            programs.trajectory_and_buckets,
            problem=Problem(world_size=ranks.world_size, seed=1, steps=steps),
            all_reduce=ALL_REDUCES["in a hook"],
            bucket_cap_mb=bucket_cap_mb,
        )
        for steps in (1, 2)
    )
    problem = Problem(world_size=ranks.world_size, seed=1)
    for (_, of_first), (_, of_both) in zip(first, both, strict=True):
        sizes = of_both[len(of_first) :]
        assert sum(of_first) == sum(sizes) == gradient_bytes(problem)
        # A bucket closes with the tensor that fills it: each holds a full one's bytes, but for the last.
        assert all(size >= bucket_cap_mb * MiB for size in sizes[:-1])
        if bucket_cap_mb != TINY_CAPS[1]:
            assert len(sizes) == (1 if bucket_cap_mb == DEFAULT_CAP else len(problem.parameters()))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("divide_by_initial_world_size", [True, False], ids=["by all", "by those that are left"])
@given(data=st.data())
def test_join_of_uneven_inputs(ranks: Ranks, data: st.DataObject, divide_by_initial_world_size: bool) -> None:
    assert_join_of_uneven_inputs(ranks, data, divide_by_initial_world_size)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.1)  # on 4 ranks one takes several times as long, and the number of ranks matters little
@given(data=st.data(), divide_by_initial_world_size=st.booleans())
def test_join_of_more_uneven_inputs(ranks: Ranks, data: st.DataObject, divide_by_initial_world_size: bool) -> None:
    assert_join_of_uneven_inputs(data.draw(worlds(ranks)), data, divide_by_initial_world_size)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("lengths", "divide_by_initial_world_size"), [([1, 3], True), ([3, 2], False)], ids=["by all", "by those left"]
)
def test_join_of_a_group_that_accumulates(ranks: Ranks, lengths: list[int], divide_by_initial_world_size: bool) -> None:
    """The last two ranks train; whoever has ended waits for the microbatch whose gradients are reduced."""
    problem = Problem(world_size=2, seed=1, steps=3, microbatches=2, multiple=2)
    assert_joined(ranks, problem, lengths, divide_by_initial_world_size, first=1, no_sync=True)


def assert_join_of_uneven_inputs(ranks: Ranks, data: st.DataObject, divide_by_initial_world_size: bool) -> None:
    steps = st.integers(1, problems.MAX_STEPS)
    several = st.lists(steps, min_size=ranks.world_size, max_size=ranks.world_size)
    lengths = data.draw(several.filter(lambda lengths: len({*lengths}) > 1))
    assert_joined(ranks, data.draw(uneven_problems(lengths)), lengths, divide_by_initial_world_size)


def uneven_problems(lengths: list[int]) -> st.SearchStrategy[Problem]:
    # Divisible by however many ranks still have batches.
    multiple = math.lcm(*range(1, len(lengths) + 1))
    return drawn_problems(len(lengths), steps=max(lengths), dtype=torch.float64, microbatches=1, multiple=multiple)


def assert_joined(
    ranks: Ranks, problem: Problem, lengths: list[int], divide: bool, *, first: int = 0, no_sync: bool = False
) -> None:
    options: dict[str, Any] = {"divide_by_initial_world_size": divide, "first": first, "no_sync": no_sync}
    results = ranks.run(programs.joined, problem=problem, lengths=lengths, **options)[first:]
    expected = whole_batch(problem, lengths=lengths, divide_by_initial_world_size=divide)
    longest = expected[lengths.index(problem.steps)]
    for result in expected:
        result |= {f"at last, {name}": longest[f"step {problem.steps}, {name}"] for name in problem.parameters()}
    assert_trained(problem, results, expected)


@pytest.mark.ranks(2, 4, device="cuda")
@pytest.mark.parametrize("microbatches", [1, 2])
def test_data_parallel(ranks: Ranks, microbatches: int) -> None:
    problem = Problem(world_size=ranks.world_size, seed=1, steps=3, microbatches=microbatches)
    got, *others = ranks.run(trajectory, programs.data_parallel, problem=problem)
    assert not any(other.shapes for other in others)
    expected = whole_batch(problem)
    for name in expected[0]:
        # Each microbatch holds the rows of all ranks, one after the other.
        if name.endswith(("output", "input gradient")):
            of_ranks = [result[name].unflatten(0, (microbatches, -1)) for result in expected]
            expected[0][name] = torch.cat(of_ranks, dim=1).flatten(0, 1)
            if name.endswith("input gradient"):
                expected[0][name] = expected[0][name] / ranks.world_size
    assert_trained(problem, [got], expected[:1])


@given(data=st.data(), numel=st.integers(1, 40), dtype=dtypes, seed=seeds)
def test_ring_all_reduce(ranks: Ranks, data: st.DataObject, numel: int, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    assert_ring(world, programs.ring_all_reduce, numel, dtype, seed)


def test_ring_all_reduce_of_many_elements(ranks: Ranks) -> None:
    assert_ring(ranks, programs.ring_all_reduce, 70_001, torch.float32, seed=1)


def assert_ring(ranks: Ranks, all_reduce: programs.AllReduce, numel: int, dtype: torch.dtype, seed: int) -> None:
    degree = ranks.world_size
    results = ranks.run(programs.sums_and_traffic, all_reduce=all_reduce, numel=numel, dtype=dtype, seed=seed)
    for step in (0, 1):
        kwargs: dict[str, Any] = {"world_size": degree, "numel": numel, "dtype": dtype, "seed": seed, "step": step}
        expected = torch.stack([programs.addend(rank, **kwargs) for rank in range(degree)]).sum(0)
        for rank, (sums, _) in enumerate(results):
            assert_close(sums[step], expected.to(dtype), f"rank {rank}, step {step}")
    for rank, (_, traffic) in enumerate(results):
        assert set(traffic) <= {"send"}, f"rank {rank} sends by {sorted(traffic)}, not to the next rank alone"
    sent = [traffic.get("send", 0) for _, traffic in results]
    assert sum(sent) == 2 * (degree - 1) * numel * dtype.itemsize
    if numel % degree == 0:
        assert sent == [2 * (degree - 1) * numel // degree * dtype.itemsize] * degree


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("shape", "strides"), [((4, 2), (2, 1)), ((), ()), ((4,), (2,))], ids=["two dimensions", "none", "every other one"]
)
def test_ring_refuses_what_it_cannot_cut(ranks: Ranks, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    def program(ctx: Context) -> None:
        programs.ring_all_reduce(ctx, torch.zeros(8, device=ctx.device).as_strided(shape, strides))

    told = f"contiguous tensors of one dimension, got shape {shape} with strides {strides}: give it tensor.view(-1)"
    with pytest.raises(ValueError, match=re.escape(told)):
        ranks.run(program)


def test_your_own_all_reduce(ranks: Ranks) -> None:
    """In the place of ours: sums a tensor over the ranks, in place. Here to one rank, and back from there."""

    def your_all_reduce(ctx: Context, tensor: torch.Tensor) -> None:
        dist.reduce(tensor, dst=0)
        dist.broadcast(tensor, src=0)

    problem = Problem(world_size=ranks.world_size, seed=1, steps=3, microbatches=2)
    got = ranks.run(trajectory, programs.distributed_data_parallel, problem=problem, all_reduce=your_all_reduce)
    assert_trained(problem, got, whole_batch(problem))
