"""Sharded ranks train as one device with the whole batch does, exactly; each holds and sends what formulas say.

Everything is a whole number: see suites/data_parallel/problem.py, which also holds the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pytest_gpuperf import Context, Ranks
from suites.data_parallel import problem as problems
from suites.data_parallel.problem import Network, Parameters, Problem, Results, assert_same, reference
from suites.data_parallel.programs import Step, trajectory
from suites.sharded_data_parallel import programs
from suites.sharded_data_parallel.programs import Account
from suites.strategies import seeds
from suites.tensor_parallel.sharding import shard


class Precision(NamedTuple):
    """The dtype of the parameters, and those of computation and reduction where they are others."""

    dtype: torch.dtype
    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None

    @property
    def policy(self) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy(param_dtype=self.compute, reduce_dtype=self.reduce)

    @property
    def gathered(self) -> torch.dtype:
        return self.compute or self.dtype

    @property
    def reduced(self) -> torch.dtype:
        return self.reduce or self.gathered


FULL = [Precision(torch.float64), Precision(torch.float32)]
MIXED = [
    Precision(torch.float32, torch.bfloat16, torch.float32),
    Precision(torch.float32, torch.bfloat16),
    Precision(torch.float32, torch.float16, torch.float32),
    Precision(torch.float32, torch.float16),
]

# bfloat16 holds whole numbers up to 256. With 2 ranks (output gradients up to 4), 3 features and 2 rows: hidden
# features are at most 3 * 4 + 2 = 14, outputs 3 * 28 + 2 + 3 * 4 = 98, hidden gradients 3 * 8 = 24, input gradients
# 3 * 48 + 3 * 8 = 168, weight gradients 2 * max(4 * 14, 24 * 2) = 112 and their sum over the ranks 224.
MIXED_FEATURES = 3

# Lower precision rounds it off the weights, 1 and 2 in magnitude, and so computes with whole numbers; float32 keeps it.
# (bfloat16's numbers above 1 are 2**-7 apart, float16's 2**-10; float32 holds 112 + 2**-13.)
FRACTION = 2.0**-13


@st.composite
def drawn_problems(draw: st.DrawFn, /, world_size: int, precision: Precision) -> Problem:
    mixed = precision.compute is not None
    features = st.integers(1, MIXED_FEATURES if mixed else problems.MAX_FEATURES)
    return Problem(
        world_size=world_size,
        seed=draw(seeds),
        inputs=draw(features),
        hidden=draw(features),
        outputs=draw(features),
        rows=draw(st.integers(1, problems.MAX_ROWS)),
        # Two of each: a second one finds what the first one has left behind, a third one finds nothing new.
        microbatches=1 if mixed else draw(st.integers(1, 2)),
        steps=draw(st.integers(1, min(2, problems.MAX_STEPS_IN[precision.dtype]))),
        dtype=precision.dtype,
    )


def with_fraction(parameters: Parameters) -> Parameters:
    """Parameters that computation of lower precision rounds to the given ones; 0 it would not round."""
    return {name: value + value.sign() * FRACTION for name, value in parameters.items()}


def expected_shards(problem: Problem, whole: Results, degree: int, precision: Precision | None = None) -> Results:
    """What each rank holds of these results where parameters are sharded over ``degree`` consecutive ranks."""
    results: Results = []
    for rank, of_rank in enumerate(whole):
        result = {}
        for name, value in of_rank.items():
            if ".weight" in name or ".bias" in name:
                value = shard(value, degree, 0)[rank % degree]
            elif name.endswith("output") and precision is not None:
                value = value.to(precision.gathered)
            result[name] = value
        results.append(result)
    return results


def add_fraction(problem: Problem, results: Results) -> None:
    """To the parameters after the update, which leaves it as it is."""
    initial = problem.parameters()
    for result in results:
        for name in list(result):
            parameter = name.partition(", ")[2]
            if parameter in initial:
                result[name] = result[name] + initial[parameter].sign() * FRACTION


def padded(problem: Problem, degree: int) -> int:
    """Elements of a rank's shards, each as large as the largest: FSDP2 shards by rows and pads to equal ones."""
    return sum(-(-len(value) // degree) * value[0].numel() for value in problem.parameters().values())


def elements(problem: Problem) -> int:
    return sum(value.numel() for value in problem.parameters().values())


def assert_fully_sharded(
    accounts: Sequence[Account],
    problem: Problem,
    *,
    replicas: int = 1,
    precision: Precision | None = None,
    reshard: bool,
    offload: bool = False,
) -> None:
    """Training is exact; each rank has sent and holds what ZeRO-3 says."""
    precision = precision or Precision(problem.dtype)
    degree = problem.world_size // replicas
    expected = reference(problem)
    if precision.compute is not None:
        add_fraction(problem, expected)
    sharded = expected_shards(problem, expected, degree, precision)
    assert_same(problem, [account.results for account in accounts], sharded)

    shard_size = padded(problem, degree)
    gathers = problem.microbatches * (2 if reshard else 1)  # for forward, and anew for backward
    traffic = {
        "all_gather": gathers * degree * shard_size * precision.gathered.itemsize,
        "reduce_scatter": degree * shard_size * precision.reduced.itemsize,
    }
    if replicas > 1:
        traffic["all_reduce"] = shard_size * precision.reduced.itemsize
    between = shard_size * precision.dtype.itemsize
    if not reshard:
        between = degree * shard_size * precision.gathered.itemsize
    for rank, account in enumerate(accounts):
        own = {name.removeprefix("step 1, "): value.nbytes for name, value in sharded[rank].items()}
        exact = sum(own[name] for name in problem.parameters())
        assert account.traffic in (traffic, None)
        assert account.memory["between"] == between
        assert account.memory["parameters"] == shard_size * problem.dtype.itemsize
        # Gradients are views of what reduce-scatter has left, padding included; copies to the CPU need none.
        padded_gradients = shard_size * problem.dtype.itemsize
        assert (exact if offload else padded_gradients) <= account.memory["gradients"] <= padded_gradients
        assert account.memory["optimizer"] == exact


@pytest.mark.ranks(2)
@given(
    data=st.data(),
    precision=st.sampled_from(FULL + MIXED),
    reshard=st.booleans(),
    offload=st.booleans(),
    count=st.booleans(),
)
def test_fully_shard(
    ranks: Ranks, data: st.DataObject, precision: Precision, reshard: bool, offload: bool, count: bool
) -> None:
    problem = data.draw(drawn_problems(ranks.world_size, precision))
    initial = problem.parameters()
    accounts = ranks.run(
        programs.account,
        programs.fully_sharded,
        problem=problem,
        parameters=initial if precision.compute is None else with_fraction(initial),
        precision=precision.policy,
        reshard_after_forward=reshard,
        offload=offload,
        count=count,
    )
    assert_fully_sharded(accounts, problem, precision=precision, reshard=reshard, offload=offload)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.1)  # each needs 4 ranks and two process groups: many times the cost of others
@given(data=st.data(), replicas=st.sampled_from([1, 2]), reshard=st.booleans(), precision=st.sampled_from(FULL))
def test_hybrid_sharding(ranks: Ranks, data: st.DataObject, replicas: int, reshard: bool, precision: Precision) -> None:
    problem = data.draw(drawn_problems(ranks.world_size, precision))
    # One replica: a mesh of one dimension, the default, of shards over all ranks.
    accounts = ranks.run(
        programs.account,
        programs.fully_sharded,
        problem=problem,
        replicas=replicas if replicas > 1 else None,
        reshard_after_forward=reshard,
    )
    assert_fully_sharded(accounts, problem, replicas=replicas, reshard=reshard)


@pytest.mark.ranks(2)
@given(
    data=st.data(),
    precision=st.sampled_from(FULL),
    adam=st.booleans(),
    parameters_as_bucket_view=st.booleans(),
    count=st.booleans(),
)
def test_zero_redundancy_optimizer(
    ranks: Ranks,
    data: st.DataObject,
    precision: Precision,
    adam: bool,
    parameters_as_bucket_view: bool,
    count: bool,
) -> None:
    problem = data.draw(drawn_problems(ranks.world_size, precision))
    if adam:
        problem = replace(problem, optimizer="adam", steps=1, dtype=torch.float64)
    accounts = ranks.run(
        programs.account,
        programs.zero_redundancy_optimizer,
        problem=problem,
        parameters_as_bucket_view=parameters_as_bucket_view,
        count=count,
    )
    assert_same(problem, [account.results for account in accounts], reference(problem))
    whole = elements(problem) * problem.dtype.itemsize
    largest = max(value.nbytes for value in problem.parameters().values())
    state = [account.memory["optimizer"] / (2 if adam else 1) for account in accounts]
    assert sum(state) == whole
    # Whole parameters are dealt out, the largest first, each to the rank with least: no rank has more than the mean
    # and one of them (Graham, Bounds on multiprocessing timing anomalies, 1969).
    assert max(state) <= whole / ranks.world_size + largest
    for account in accounts:
        assert not count or account.traffic == {"all_reduce": whole, "broadcast": whole}


class Stage(NamedTuple):
    """What a rank holds and sends, in units of the model's bytes; N ranks. ZeRO, arXiv:1910.02054, section 5 and 7."""

    program: Callable[..., Step]
    arguments: dict[str, Any]
    parameters: Callable[[int], float]
    gradients: Callable[[int], float]
    optimizer: Callable[[int], float]
    sent: int
    """Per step, times (N - 1) / N. An all-reduce sends twice its bytes, by reduce-scatter and all-gather."""


def all_of_it(n: int) -> float:
    return 1.0


def a_share(n: int) -> float:
    return 1 / n


STAGES = {
    "replicated": Stage(programs.replicated, {}, all_of_it, all_of_it, lambda n: 2, 2),
    # By the paper 2, where each rank reduces only what it updates. DistributedDataParallel gives all of them
    # all gradients, and the broadcasts come on top.
    "ZeRO-1": Stage(programs.zero_redundancy_optimizer, {}, all_of_it, all_of_it, lambda n: 2 / n, 3),
    "ZeRO-3": Stage(programs.fully_sharded, {"reshard_after_forward": True}, a_share, a_share, lambda n: 2 / n, 3),
    "ZeRO-3, gathered once": Stage(
        programs.fully_sharded, {"reshard_after_forward": False}, a_share, a_share, lambda n: 2 / n, 2
    ),
}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("stage", ["replicated", "ZeRO-3", "ZeRO-3, gathered once"])
def test_stages_of_zero(ranks: Ranks, stage: str) -> None:
    assert_stage(ranks, STAGES[stage])


@pytest.mark.ranks(2)  # each rank takes a second to import ZeroRedundancyOptimizer
def test_first_stage_of_zero(ranks: Ranks) -> None:
    assert_stage(ranks, STAGES["ZeRO-1"])


def assert_stage(ranks: Ranks, stage: Stage) -> None:
    """Adam, whose state is twice the parameters; R divides every parameter's rows and what ZeRO-1 deals out."""
    n = ranks.world_size
    problem = Problem(world_size=n, seed=1, inputs=4, hidden=4, outputs=4, steps=1, optimizer="adam", multiple=n)
    accounts = ranks.run(programs.account, stage.program, problem=problem, **stage.arguments)
    expected = reference(problem)
    if stage.program is programs.fully_sharded:
        expected = expected_shards(problem, expected, n)
    assert_same(problem, [account.results for account in accounts], expected)

    whole = elements(problem) * problem.dtype.itemsize
    for account in accounts:
        assert account.traffic is not None
        assert account.memory["parameters"] == whole * stage.parameters(n)
        assert account.memory["gradients"] == whole * stage.gradients(n)
        assert sum(TIMES_SENT[op] * nbytes for op, nbytes in account.traffic.items()) == whole * stage.sent
    state = [account.memory["optimizer"] for account in accounts]
    assert sum(state) == whole * stage.optimizer(n) * n
    if stage.program is not programs.zero_redundancy_optimizer:
        assert state == [whole * stage.optimizer(n)] * n


TIMES_SENT = {"all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "all_reduce": 2}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("broken", "wrong", "sharded"),
    [
        (programs.with_optimizer_of_whole_parameters, r"rank 0, step 1, shortcut\.weight: ", True),
        (programs.with_sum_of_gradients, r"rank 0, step 1, shortcut\.weight gradient: ", True),
        (programs.with_shards_of_other_ranks, r"rank 0, step 1, output: ", True),
        (programs.zero_without_broadcast, r"rank 0, step 1, first\.weight: ", False),
    ],
    ids=["optimizer of whole parameters", "sum of gradients", "shards of other ranks", "no broadcast"],
)
def test_a_broken_sharding_is_found(ranks: Ranks, broken: Callable[..., Step], wrong: str, sharded: bool) -> None:
    degree = ranks.world_size
    problem = Problem(world_size=degree, seed=1, inputs=4, hidden=4, outputs=4)
    got = ranks.run(trajectory, broken, problem=problem)
    expected = reference(problem)
    with pytest.raises(AssertionError, match=f"^{wrong}"):
        assert_same(problem, got, expected_shards(problem, expected, degree) if sharded else expected)


@pytest.mark.ranks(2)
def test_gradients_that_are_never_reduced_are_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"shortcut\.weight has no gradient"):
        ranks.run(trajectory, programs.without_reduction, problem=Problem(world_size=2, seed=1))


@pytest.mark.ranks(4)
def test_replicas_that_are_not_reduced_are_found(ranks: Ranks) -> None:
    problem = Problem(world_size=4, seed=1)
    accounts = ranks.run(programs.account, programs.without_reduction_over_replicas, problem=problem, replicas=2)
    with pytest.raises(AssertionError, match=r"^rank 0, step 1, shortcut\.weight gradient: "):
        assert_fully_sharded(accounts, problem, replicas=2, reshard=True)


@pytest.mark.ranks(2)
def test_parameters_that_are_gathered_too_often_are_found(ranks: Ranks) -> None:
    problem = Problem(world_size=2, seed=1)
    accounts = ranks.run(programs.account, programs.fully_sharded, problem=problem)
    with pytest.raises(AssertionError, match="all_gather"):
        assert_fully_sharded(accounts, problem, reshard=False)


def mesh_of(ctx: Context, shape: tuple[int, ...], reshard_after_forward: bool | int = True) -> None:
    mesh = init_device_mesh(ctx.device.type, shape)
    fully_shard(
        Network(Problem(world_size=ctx.world_size, seed=1).parameters()).to(ctx.device),
        mesh=mesh,
        reshard_after_forward=reshard_after_forward,
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((3,),), RuntimeError, r"Mesh should not be bigger than default world size 2"),
        (((1, 1, 2),), ValueError, r"expects a 1D or 2D DeviceMesh"),
        (((2,), 3), ValueError, r"should be a factor of 2, not 3"),
    ],
    ids=["more ranks than there are", "three dimensions", "no factor"],
)
def test_what_cannot_be_sharded_is_refused(
    ranks: Ranks, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ranks.run(mesh_of, *arguments)


@pytest.mark.ranks(2)
def test_your_own_sharding(ranks: Ranks) -> None:
    """In the place of ours: what you do to a model to shard it. Here every layer by itself."""

    def your_shard_module(module: Network, **options: Any) -> None:
        for layer in module.children():
            fully_shard(layer, **options)
        fully_shard(module, **options)

    problem = Problem(world_size=ranks.world_size, seed=1, steps=3, microbatches=2)
    accounts = ranks.run(programs.account, programs.fully_sharded, problem=problem, shard_module=your_shard_module)
    assert_fully_sharded(accounts, problem, reshard=True)
