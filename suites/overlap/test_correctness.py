"""Both ways to average gradients give the mean of what every rank would have computed alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.overlap import programs
from suites.strategies import seeds, worlds

AVERAGED = (programs.all_reduce_after_backward, programs.all_reduce_during_backward)
STEPS = 3  # DistributedDataParallel arranges its buckets anew after the first; none may add to the one before

Gradients = list[torch.Tensor]


def last_of_several(
    ctx: Context, program: Callable[..., programs.Step], mlp: programs.Mlp, **kwargs: float
) -> tuple[programs.Problem, Gradients]:
    step = program(ctx, mlp=mlp, **kwargs)
    for _ in range(STEPS - 1):
        step()
    return programs.problem(ctx, mlp=mlp), step()


def gradients_on_one_device(problem: programs.Problem) -> Gradients:
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


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("program", AVERAGED)
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
    ranks: Ranks,
    program: Callable[..., programs.Step],
    data: st.DataObject,
    mlp: programs.Mlp,
    bucket_mib: float,
) -> None:
    world = data.draw(worlds(ranks))
    results = world.run(last_of_several, program, mlp, bucket_mib=bucket_mib)
    alone = [gradients_on_one_device(problem) for problem, _ in results]
    means = [torch.stack(layer).mean(dim=0) for layer in zip(*alone, strict=True)]
    for _, gradients in results:
        torch.testing.assert_close(gradients, means, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(2, 4)
def test_ranks_differ(ranks: Ranks) -> None:
    """Were the ranks' own gradients equal, averaging them would change nothing, and nothing could be missed."""
    mlp = programs.Mlp(layers=2, width=4, rows=3, dtype=torch.float64, seed=1)
    (first, own), *others = ranks.run(last_of_several, programs.compute, mlp)
    for problem, gradients in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first[0], problem[0], strict=True))
        assert all(not torch.equal(mine, theirs) for mine, theirs in zip(own, gradients, strict=True))


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), capacity=st.integers(8, 400))
def test_buckets_hold_each_tensor_once(sizes: list[int], capacity: int) -> None:
    tensors = [torch.empty(size, dtype=torch.float64) for size in sizes]
    filled = programs.buckets(tensors, capacity / 2**20)
    assert [id(tensor) for bucket in filled for tensor in bucket] == [id(tensor) for tensor in reversed(tensors)]
    for bucket in filled:
        assert sum(tensor.nbytes for tensor in bucket[:-1]) < capacity
    for bucket in filled[:-1]:
        assert sum(tensor.nbytes for tensor in bucket) >= capacity


@pytest.mark.parametrize(
    ("together", "expected"),
    [(10.0, programs.LEAST_SHARE), (9.9, programs.LEAST_SHARE), (12.0, 0.5), (14.0, 1.0), (15.0, 1.25)],
    ids=["all hidden", "noise", "half hidden", "in turn", "worse than in turn"],
)
def test_exposed_share(together: float, expected: float) -> None:
    assert programs.exposed_share(together=together, compute=10.0, communication=4.0) == expected


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
