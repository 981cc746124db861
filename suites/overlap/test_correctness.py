"""Both ways to average gradients give the mean of what every rank would have computed alone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.overlap.programs import backward as programs
from suites.shared.comparison import assert_within
from suites.shared.step import Step, Tensors
from suites.shared.strategies import seeds, worlds
from suites.shared.traffic import Traffic

Gradients = list[torch.Tensor]
Program = Callable[..., Step[list[torch.Tensor]]]

BETWEEN = "between microbatches"
BUCKETED = {name: program for name, program in programs.WAYS.items() if name != BETWEEN}
STEPS = 3  # DistributedDataParallel arranges its buckets anew after the first; none may add to the one before


def last_of_several(
    ctx: Context, program: Program, mlp: programs.Mlp, **kwargs: float
) -> tuple[programs.MlpProblem, Gradients]:
    """Each step has a batch of its own: what the last one returns is of the last batch alone."""
    step = program(ctx, mlp=mlp, turns=STEPS, **kwargs)
    for _ in range(STEPS - 1):
        step()
    return programs.problem(ctx, mlp=mlp, turn=STEPS - 1), step()


def flat(gradients: Gradients) -> torch.Tensor:
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def averaged(
    ctx: Context, *, using: Mapping[str, Program], mlp: programs.Mlp, **kwargs: float
) -> tuple[programs.MlpProblem, Tensors]:
    """The gradients of each way as one vector, after several steps."""
    results = {name: flat(last_of_several(ctx, program, mlp, **kwargs)[1]) for name, program in using.items()}
    return programs.problem(ctx, mlp=mlp, turn=STEPS - 1), results


def gradients_on_one_device(problem: programs.MlpProblem) -> Gradients:
    """By the chain rule, written out: neither autograd nor the suite's module takes part."""
    weights, x, grad_output = problem
    inputs = [x]
    for weight in weights[:-1]:
        inputs.append((inputs[-1] @ weight.T).clamp(min=0))
    gradients = []
    for weight, layer_input in zip(reversed(weights), reversed(inputs), strict=True):
        gradients.append(grad_output.T @ layer_input)
        grad_output = (grad_output @ weight) * (layer_input > 0)
    return gradients[::-1]


def rounding(problem: programs.MlpProblem, world_size: int) -> torch.Tensor:
    """How far a gradient may be off, u = 2**-53 for each of the roundings that an element goes through.

    A product of matrices A B with k summands is off by at most k u |A| |B| (Higham, section 3.5), and a chain of
    them by the sum of their k times the product of all magnitudes. L layers take W forward and W backward, the
    gradient B and the mean R + 1; twice that, since the test's own chain rounds as well.
    """
    weights, x, grad_output = problem
    magnitudes = gradients_on_one_device(([weight.abs() for weight in weights], x.abs(), grad_output.abs()))
    roundings = 2 * len(weights) * x.shape[1] + x.shape[0] + world_size + 1
    return 2 * roundings * 2.0**-53 * flat(magnitudes)


def assert_mean(results: list[tuple[programs.MlpProblem, Tensors]]) -> None:
    """Every rank holds the mean of what each would have computed alone."""
    mean = torch.stack([flat(gradients_on_one_device(problem)) for problem, _ in results]).mean(dim=0)
    bound = torch.stack([rounding(problem, len(results)) for problem, _ in results]).mean(dim=0)
    for rank, (_, gradients) in enumerate(results):
        for name, got in gradients.items():
            assert_within(got, mean, bound, f"rank {rank}, all_reduce {name}")


@pytest.mark.ranks(2, 4)
@given(
    data=st.data(),
    mlp=st.builds(
        programs.Mlp,
        layers=st.integers(1, 5),
        width=st.integers(1, 9),
        rows=st.integers(1, 4),
        dtype=st.just(torch.float64),
        seed=seeds,
    ),
    bucket_mib=st.sampled_from([programs.BUCKET_MIB, 2**-11, 2**-13]),  # one bucket, some, one a layer
)
def test_gradients_are_the_mean_over_ranks(
    ranks: Ranks, data: st.DataObject, mlp: programs.Mlp, bucket_mib: float
) -> None:
    world = data.draw(worlds(ranks))
    assert_mean(world.run(averaged, using=BUCKETED, mlp=mlp, bucket_mib=bucket_mib))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("microbatches", [2, 3])
def test_microbatches_add_up_to_the_mean_over_ranks(ranks: Ranks, microbatches: int) -> None:
    """The last part of 5 rows is smaller than the others."""
    mlp = programs.Mlp(layers=3, width=7, rows=5, dtype=torch.float64, seed=1)
    assert_mean(ranks.run(averaged, using={BETWEEN: programs.WAYS[BETWEEN]}, mlp=mlp, microbatches=microbatches))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", programs.WAYS)
def test_a_rank_that_comes_late_is_waited_for(ranks: Ranks, way: str) -> None:
    def late(ctx: Context) -> tuple[programs.MlpProblem, Tensors]:
        step = programs.WAYS[way](ctx, mlp=MLP, turns=2)
        step()
        if ctx.rank == 1:
            time.sleep(0.05)
        gradients = step()
        return programs.problem(ctx, mlp=MLP, turn=1), {way: flat(gradients)}

    assert_mean(ranks.run(late))


def test_a_sample_has_elements_of_every_gradient_from_its_first_to_its_last_part() -> None:
    small, large = torch.arange(1000.0), torch.arange(3000.0) + 5000
    taken = programs.sample([small, large])
    assert taken.shape == (2, programs.SAMPLED)
    assert taken[:, 0].tolist() == [0, 5000]
    assert taken[0, -1] > 700
    assert taken[1, -1] > 7500


def sent(ctx: Context, *, program: Callable[..., Step[Any]], bucket_mib: float) -> list[tuple[str, int]]:
    """The collectives of the last step, and their bytes."""
    step = program(ctx, mlp=MLP, bucket_mib=bucket_mib)
    for _ in range(STEPS - 1):
        step()
    with Traffic() as traffic:
        step()
    return [(call.name, call.size) for call in traffic.calls]


SENDING = {name: (program, functools.partial(programs.sampled, way=name)) for name, program in BUCKETED.items()}
"""Programs that send the same: also those of which a sample is returned, and communication without any backward."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", [*SENDING, "alone"])
@pytest.mark.parametrize(("bucket_mib", "layers"), [(programs.BUCKET_MIB, [3]), (2**-12, [2, 1]), (2**-13, [1, 1, 1])])
def test_each_bucket_is_sent_by_itself(ranks: Ranks, name: str, bucket_mib: float, layers: list[int]) -> None:
    """Layers are of 128 bytes, and a bucket closes with the one that fills it: the mean does not tell."""
    expected = [("all_reduce", 128 * count) for count in layers]
    for program in SENDING.get(name, (programs.communication,)):
        assert ranks.run(sent, program=program, bucket_mib=bucket_mib) == [expected] * 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", [programs.all_reduce_after_backward, programs.communication])
def test_a_gradient_with_a_bucket_to_itself_is_summed_where_it_lies(ranks: Ranks, program: Program) -> None:
    """Copies into a flat tensor and back give the same, and take longer."""

    def places(ctx: Context) -> tuple[list[int], list[int]]:
        reduce, summed = dist.all_reduce, list[int]()

        def note(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            summed.append(tensor.data_ptr())
            return reduce(tensor, *args, **kwargs)

        step = program(ctx, mlp=MLP, bucket_mib=2**-13)
        with mock.patch.object(dist, "all_reduce", note):
            return [gradient.data_ptr() for gradient in step()][::-1], summed

    for rank, (of_gradients, summed) in enumerate(ranks.run(places)):
        assert summed == of_gradients, f"rank {rank}"


@pytest.mark.ranks(2)
def test_gradients_of_one_bucket_are_views_of_it(ranks: Ranks) -> None:
    """If they are not, each step copies all of them once more, and no number shows it."""

    def storages(ctx: Context) -> int:
        step = programs.all_reduce_during_backward(ctx, mlp=MLP)
        for _ in range(STEPS - 1):
            step()
        return len({gradient.untyped_storage().data_ptr() for gradient in step()})

    assert ranks.run(storages) == [1, 1]


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A sum on its way, which notes how many had been started when it was waited for."""

    work: dist.Work
    started: list[int]
    waited: list[int]

    def wait(self) -> None:
        self.waited.append(len(self.started))
        self.work.wait()


def started_before(ctx: Context, *, microbatches: int) -> list[int]:
    """How many sums of a step had been started when each was waited for."""
    reduce, started, waited = dist.all_reduce, list[int](), list[int]()

    def note(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Noted:
        started.append(tensor.numel())
        return Noted(reduce(tensor, *args, **kwargs), started, waited)

    with mock.patch.object(dist, "all_reduce", note):
        programs.all_reduce_between_microbatches(ctx, mlp=MLP, microbatches=microbatches)()
    return waited


@pytest.mark.ranks(2)
def test_no_microbatch_waits_for_the_sums_of_the_one_before(ranks: Ranks) -> None:
    """If one does, its backward hides no sum, and no number shows it."""
    assert ranks.run(started_before, microbatches=3) == [[3 * MLP.layers] * (3 * MLP.layers)] * 2


MLP = programs.Mlp(layers=3, width=4, rows=3, dtype=torch.float64, seed=1)


@pytest.mark.ranks(2, 4)
def test_your_own_overlap(ranks: Ranks) -> None:
    """Yours in place of ours: a program that takes an Mlp and returns the step."""

    def one_all_reduce_for_each_gradient(ctx: Context, *, mlp: programs.Mlp, turns: int) -> Step[list[torch.Tensor]]:
        weights, *_ = programs.problem(ctx, mlp=mlp)
        module, coming = programs.network(weights), programs.batches(ctx, mlp=mlp, turns=turns)
        works: list[dist.Work | None] = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda tensor: works.append(dist.all_reduce(tensor.grad, dist.ReduceOp.AVG, async_op=True))
            )

        def step() -> Gradients:
            works.clear()
            gradients = programs.forward_backward(module, *next(coming))
            for work in works:
                assert work is not None
                work.wait()
            return gradients

        return step

    assert_mean(ranks.run(averaged, using={"yours": one_all_reduce_for_each_gradient}, mlp=MLP))


def test_flop_are_those_of_torchs_counter() -> None:
    x, *weights = torch.ones(3, 4), *(torch.ones(4, 4) for _ in range(5))
    with FlopCounterMode(display=False) as counter:
        module = programs.network(weights)
        programs.forward_backward(module, x, torch.ones(3, 4))
    mlp = programs.Mlp(layers=5, width=4, rows=3, dtype=torch.float32, seed=1)
    assert counter.get_total_flops() == mlp.flop


def test_an_mlp_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="layers, width and rows must be 1 or more, got 0, 4 and 3"):
        programs.Mlp(layers=0, width=4, rows=3, dtype=torch.float64, seed=1)


@pytest.mark.ranks(2, 4)
def test_ranks_differ(ranks: Ranks) -> None:
    """Were the ranks' own gradients equal, averaging them would change nothing, and nothing could be missed."""
    mlp = programs.Mlp(layers=2, width=4, rows=3, dtype=torch.float64, seed=1)
    (first, own), *others = ranks.run(last_of_several, programs.compute, mlp)
    for problem, gradients in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first[0], problem[0], strict=True))
        assert all(not torch.equal(mine, theirs) for mine, theirs in zip(own, gradients, strict=True))


@pytest.mark.ranks(2)
def test_turns_differ(ranks: Ranks) -> None:
    """Were two turns' batches equal, a step that returned the gradients of the turn before would go unseen."""
    mlp = programs.Mlp(layers=2, width=4, rows=3, dtype=torch.float64, seed=1)

    def inputs(ctx: Context) -> list[torch.Tensor]:
        coming = programs.batches(ctx, mlp=mlp, turns=STEPS)
        return [tensor for _ in range(STEPS) for tensor in next(coming)]

    for taken in ranks.run(inputs):
        for one, other in itertools.combinations(taken, 2):
            assert not torch.equal(one, other)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), capacity=st.integers(8, 400))
def test_buckets_hold_each_tensor_once(sizes: list[int], capacity: int) -> None:
    tensors = [torch.empty(size, dtype=torch.float64) for size in sizes]
    filled = programs.buckets(tensors, capacity / 2**20)
    assert [id(tensor) for bucket in filled for tensor in bucket] == [id(tensor) for tensor in reversed(tensors)]
    for bucket in filled:
        assert sum(tensor.nbytes for tensor in bucket[:-1]) < capacity
    for bucket in filled[:-1]:
        assert sum(tensor.nbytes for tensor in bucket) >= capacity


@given(data=st.data(), world_size=st.sampled_from([2, 4, 8]), seed=seeds)
def test_reduction_error_bounds_any_order_of_summation(data: st.DataObject, world_size: int, seed: int) -> None:
    dtype = torch.bfloat16
    shares = torch.randn(world_size, 500, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def averaged(order: list[int]) -> torch.Tensor:
        total = torch.zeros(500, dtype=dtype)
        for rank in order:
            total += shares[rank] / world_size
        return total

    orders = st.permutations(range(world_size))
    one, other = averaged(data.draw(orders)), averaged(data.draw(orders))
    bound = programs.reduction_error(world_size, dtype, shares.abs().max().item())
    assert (one.double() - other.double()).abs().max().item() <= bound
    # A rank whose share is missing changes the mean by more.
    assert bound < shares.abs().max().item() / world_size
