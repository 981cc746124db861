"""Sharded ranks train as one device with the whole batch does, exactly; each holds and sends what formulas say.

Everything is a whole number: see suites/shared/problems.py, and suites/shared/references.py for the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pytest_gpuperf import Context, Ranks
from suites.sharded_data_parallel.programs import stages as programs
from suites.sharded_data_parallel.programs.mixed_precision import (
    FULL,
    MIXED,
    MIXED_FEATURES,
    MIXED_ROWS,
    Precision,
    fractions,
    plus,
)
from suites.sharded_data_parallel.reference import assert_fully_sharded, elements, expected_shards
from suites.shared import problems
from suites.shared.comparison import Results
from suites.shared.problems import Network, Problem
from suites.shared.references import assert_trained, mean_atol, whole_batch
from suites.shared.step import Step, Tensors
from suites.shared.strategies import seeds


@st.composite
def drawn_problems(draw: st.DrawFn, /, world_size: int, precision: Precision) -> Problem:
    mixed = precision.compute is not None
    features = st.integers(1, MIXED_FEATURES if mixed else problems.MAX_FEATURES)
    # Mixed precision holds what a second step or microbatch computes only if there are no hidden layers.
    flat = mixed and draw(st.booleans())
    steps = 2 if flat else min(2, problems.MAX_STEPS_IN[precision.dtype])
    return Problem(
        world_size=world_size,
        seed=draw(seeds),
        inputs=draw(features),
        hidden=0 if flat else draw(features),
        outputs=draw(features),
        rows=draw(st.integers(1, min(problems.MAX_ROWS, MIXED_ROWS // world_size) if mixed else problems.MAX_ROWS)),
        # Two of each: a second one finds what the first one has left behind, a third one finds nothing new.
        microbatches=1 if mixed and not flat else draw(st.integers(1, 2)),
        steps=draw(st.integers(1, steps)),
        dtype=precision.dtype,
        wide=not mixed,
    )


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
    accounts, added = fully_sharded(ranks, problem, precision, reshard, offload=offload, count=count)
    assert_fully_sharded(accounts, problem, precision=precision, added=added, reshard=reshard, offload=offload)


@pytest.mark.ranks(3)  # which no power of two divides: shards are uneven
@pytest.mark.examples(0.2)
@given(data=st.data(), precision=st.sampled_from(FULL), reshard=st.booleans())
def test_fully_shard_over_three(ranks: Ranks, data: st.DataObject, precision: Precision, reshard: bool) -> None:
    problem, mean = data.draw(drawn_problems(ranks.world_size, precision)), 0.0
    if (
        ranks.backend == "nccl"
    ):  # which divides before it adds, and thirds are rounded; later steps would go on from that
        problem = replace(problem, steps=1)
        mean = mean_atol(problem)
    accounts, _ = fully_sharded(ranks, problem, precision, reshard, count=True)
    assert_fully_sharded(accounts, problem, precision=precision, reshard=reshard, mean=mean)


def fully_sharded(
    ranks: Ranks, problem: Problem, precision: Precision, reshard: bool, **options: Any
) -> tuple[list[programs.Account], Tensors | None]:
    """The ranks' accounts, and the fractions that were added to the parameters for computation to round off."""
    added = None if precision.compute is None else fractions(problem, whole_batch(problem))
    accounts = ranks.run(
        programs.account,
        programs.fully_sharded,
        problem=problem,
        parameters=None if added is None else plus(problem.parameters(), added),
        precision=precision.policy,
        reshard_after_forward=reshard,
        **options,
    )
    return accounts, added


@pytest.mark.ranks(4)
@pytest.mark.examples(0.1)  # each needs 4 ranks and two process groups: many times the cost of others
@given(data=st.data(), replicas=st.sampled_from([1, 2]), reshard=st.booleans(), precision=st.sampled_from(FULL + MIXED))
def test_hybrid_sharding(ranks: Ranks, data: st.DataObject, replicas: int, reshard: bool, precision: Precision) -> None:
    problem = data.draw(drawn_problems(ranks.world_size, precision))
    # One replica: a mesh of one dimension, the default, of shards over all ranks.
    accounts, added = fully_sharded(ranks, problem, precision, reshard, replicas=replicas if replicas > 1 else None)
    assert_fully_sharded(accounts, problem, replicas=replicas, precision=precision, added=added, reshard=reshard)


@pytest.mark.ranks(4)
def test_hybrid_sharding_in_every_precision(ranks: Ranks) -> None:
    """Which factor divides before the sum over the ranks, and which after it, torch decides by the dtype."""
    for precision in FULL + MIXED:
        mixed = precision.compute is not None
        problem = Problem(
            world_size=ranks.world_size, seed=1, inputs=3, hidden=3, outputs=3, rows=1, steps=1, dtype=precision.dtype
        )
        accounts, added = fully_sharded(ranks, problem, precision, True, replicas=2)
        assert_fully_sharded(accounts, problem, replicas=2, precision=precision, added=added, reshard=True)
        assert mixed == (added is not None)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("accumulation", "replicas"),
    [("averaged", 1), ("averaged", 2), ("sharded", 2), ("whole", 2)],
    ids=["each mean", "each mean of replicas", "shards of each replica", "all of each rank"],
)
def test_gradients_of_microbatches_add_up(ranks: Ranks, accumulation: programs.Accumulation, replicas: int) -> None:
    """Wherever they wait for the last microbatch; three of them, so that one is neither the first nor the last."""
    problem = Problem(world_size=ranks.world_size, seed=1, microbatches=3, wide=True)
    # On 2 ranks each replica is one rank, which gathers and scatters nothing: there are no bytes to compare.
    accounts, _ = fully_sharded(
        ranks,
        problem,
        FULL[0],
        True,
        replicas=replicas if replicas > 1 else None,
        accumulation=accumulation,
        count=ranks.world_size > replicas,
    )
    assert_fully_sharded(accounts, problem, replicas=replicas, reshard=True, accumulation=accumulation)


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
        steps = data.draw(st.integers(1, problems.MAX_STEPS))
        hidden = problem.hidden if steps == 1 else 0  # of more steps its gradients would not be exact
        problem = replace(problem, optimizer="adam", hidden=hidden, steps=steps, dtype=torch.float64)
    accounts = ranks.run(
        programs.account,
        programs.zero_redundancy_optimizer,
        problem=problem,
        parameters_as_bucket_view=parameters_as_bucket_view,
        count=count,
    )
    assert_trained(problem, [account.results for account in accounts], whole_batch(problem))
    whole = elements(problem) * problem.dtype.itemsize
    state = [account.memory["optimizer"].nbytes / (2 if adam else 1) for account in accounts]
    assert sum(state) == whole
    # Whole parameters are dealt out, the largest first, each to the rank with least (Graham, Bounds on multiprocessing
    # timing anomalies, 1969).
    dealt = [0] * ranks.world_size
    for nbytes in sorted((value.nbytes for value in problem.parameters().values()), reverse=True):
        dealt[dealt.index(min(dealt))] += nbytes
    assert sorted(state) == sorted(dealt)
    # A rank that is dealt no parameter, of the one that there is without hidden layers, has a bucket of one float32.
    idle = ranks.world_size - min(ranks.world_size, len(problem.parameters()))
    dummies = idle * torch.float32.itemsize if parameters_as_bucket_view else 0
    for account in accounts:
        assert not count or account.traffic == {"all_reduce": whole, "broadcast": whole + dummies}


class Stage(NamedTuple):
    """What a rank holds and sends, in units of the model's bytes; N ranks. ZeRO, arXiv:1910.02054, section 5 and 7."""

    program: Callable[..., Step[Tensors]]
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


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("stage", ["replicated", "ZeRO-3", "ZeRO-3, gathered once"])
def test_adam_of_three_steps(ranks: Ranks, stage: str) -> None:
    assert_three_steps_of_adam(ranks, STAGES[stage])


@pytest.mark.ranks(2)
def test_adam_of_three_steps_in_the_first_stage(ranks: Ranks) -> None:
    assert_three_steps_of_adam(ranks, STAGES["ZeRO-1"])


def assert_three_steps_of_adam(ranks: Ranks, stage: Stage) -> None:
    """What a step leaves in the state, the next one needs; 3 rows, which R does not divide."""
    problem = adam_of_three_steps(ranks.world_size)
    accounts = ranks.run(programs.account, stage.program, problem=problem, **stage.arguments)
    if stage.program is programs.fully_sharded:
        assert_fully_sharded(accounts, problem, reshard=stage.arguments["reshard_after_forward"])
    else:
        assert_trained(problem, [account.results for account in accounts], whole_batch(problem))


def adam_of_three_steps(world_size: int) -> Problem:
    return Problem(world_size=world_size, seed=1, inputs=4, hidden=0, outputs=3, steps=3, optimizer="adam")


def assert_stage(ranks: Ranks, stage: Stage) -> None:
    """Adam, whose state is twice the parameters; R divides every parameter's rows and what ZeRO-1 deals out."""
    n = ranks.world_size
    problem = Problem(world_size=n, seed=1, inputs=4, hidden=4, outputs=4, steps=1, optimizer="adam", multiple=n)
    accounts = ranks.run(programs.account, stage.program, problem=problem, **stage.arguments)
    expected: Results = whole_batch(problem)
    if stage.program is programs.fully_sharded:
        expected = expected_shards(problem, expected, n)
    assert_trained(problem, [account.results for account in accounts], expected)

    whole = elements(problem) * problem.dtype.itemsize
    for account in accounts:
        assert account.traffic is not None
        assert account.memory["parameters"].nbytes == whole * stage.parameters(n)
        assert account.memory["gradients"].nbytes == whole * stage.gradients(n)
        assert sum(TIMES_SENT[op] * nbytes for op, nbytes in account.traffic.items()) == whole * stage.sent
    state = [account.memory["optimizer"].nbytes for account in accounts]
    assert sum(state) == whole * stage.optimizer(n) * n
    if stage.program is not programs.zero_redundancy_optimizer:
        assert state == [whole * stage.optimizer(n)] * n


TIMES_SENT = {"all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "all_reduce": 2}


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


# What fully_shard calls: newer versions of torch first.
NAMES = {
    "all_gather": ["all_gather_single", "all_gather_into_tensor"],
    "reduce_scatter": ["reduce_scatter_single", "reduce_scatter_tensor"],
    "all_reduce": ["all_reduce"],
}


def groups_of(ctx: Context, *, problem: Problem, replicas: int) -> tuple[programs.Account, dict[str, list[list[int]]]]:
    """What a step came to, and for each kind of its collectives the ranks of the groups that called it."""
    called: dict[str, list[list[int]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for kind, names in NAMES.items():
            name = next(name for name in names if hasattr(dist, name))
            patch.setattr(dist, name, noting_group(getattr(dist, name), called.setdefault(kind, [])))
        account = programs.account(ctx, programs.fully_sharded, problem=problem, replicas=replicas, count=False)
    return account, called


def noting_group(collective: Callable[..., Any], groups: list[list[int]]) -> Callable[..., Any]:
    def note(*args: Any, **kwargs: Any) -> Any:
        ranks = dist.get_process_group_ranks(kwargs["group"])
        if ranks not in groups:
            groups.append(ranks)
        return collective(*args, **kwargs)

    return note


@pytest.mark.ranks(4)
def test_who_shards_and_who_replicates(ranks: Ranks) -> None:
    """Shards on 2 x 2 ranks have the same shapes over either axis: the groups of the collectives tell."""
    problem = Problem(world_size=ranks.world_size, seed=1, steps=1)
    accounts, calls = zip(*ranks.run(groups_of, problem=problem, replicas=2), strict=True)
    assert_fully_sharded(accounts, problem, replicas=2, reshard=True)
    for rank, called in enumerate(calls):
        shards = [[rank // 2 * 2, rank // 2 * 2 + 1]]
        replicas = [[rank % 2, rank % 2 + 2]]
        expected = {"all_gather": shards, "reduce_scatter": shards, "all_reduce": replicas}
        assert called == expected, f"rank {rank}"
