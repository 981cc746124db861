"""What hypothesis draws for distributed programs."""

from unittest.mock import Mock

import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks, strategies


@given(tensor=strategies.tensors(addends=8), seed=strategies.seeds())
def test_sums_of_drawn_tensors_are_exact_in_their_dtype(tensor: torch.Tensor, seed: int) -> None:
    others = [
        strategies.whole_numbers(
            tensor.shape, tensor.dtype, seed=seed + n, low=-strategies.exact(tensor.dtype, 8), high=0
        )
        for n in range(7)
    ]
    got = torch.stack([tensor, *others]).cumsum(0, dtype=tensor.dtype)[-1]
    wanted = torch.stack([tensor, *others]).double().sum(0)
    assert torch.equal(got.double(), wanted)


@given(tensor=strategies.tensors(shape=st.just((2, 3)), dtype=st.just(torch.int32)))
def test_tensors_have_the_shape_and_the_dtype_that_are_asked_for(tensor: torch.Tensor) -> None:
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), torch.int32)


def test_a_dtype_that_does_not_count_so_far_is_refused() -> None:
    assert strategies.exact(torch.bfloat16, 256) == 1
    with pytest.raises(
        ValueError, match=r"^257 addends cannot be added exactly in torch.bfloat16, which counts to 256$"
    ):
        strategies.exact(torch.bfloat16, 257)


def test_the_same_seed_draws_the_same_numbers_and_another_others() -> None:
    first, again, other = (strategies.whole_numbers((40,), torch.float32, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_large_tensors_repeat_a_block() -> None:
    tensor = strategies.whole_numbers((3, 1 << 16), torch.int64, seed=1)
    assert torch.equal(tensor[0], tensor[2])
    assert tensor.abs().max() == 15


@given(data=st.data(), parts=st.integers(1, 6), least=st.integers(0, 2), more=st.integers(0, 20))
def test_a_split_has_all_parts_and_loses_nothing(data: st.DataObject, parts: int, least: int, more: int) -> None:
    total = parts * least + more
    split = data.draw(strategies.splits(total, parts, least=least))
    assert (len(split), sum(split)) == (parts, total)
    assert min(split) >= least


def test_a_split_shrinks_to_an_even_one_and_can_be_uneven() -> None:
    assert find(strategies.splits(7, 3), lambda split: True) == (3, 2, 2)
    assert find(strategies.splits(7, 3), lambda split: split[0] == 7) == (7, 0, 0)


@pytest.mark.parametrize(("total", "parts", "least"), [(3, 2, 2), (1, 0, 0), (4, 2, -1)])
def test_a_split_that_cannot_be_is_refused(total: int, parts: int, least: int) -> None:
    with pytest.raises(ValueError, match=rf"^{total} cannot be split into {parts} parts of {least} or more$"):
        strategies.splits(total, parts, least=least)


@given(dtype=strategies.dtypes(floating=True), other=strategies.dtypes(floating=False))
def test_dtypes_are_of_the_kind_that_was_asked_for(dtype: torch.dtype, other: torch.dtype) -> None:
    assert dtype.is_floating_point
    assert not other.is_floating_point


@given(operation=strategies.reduce_ops(product=True))
def test_reductions_are_torchs(operation: str) -> None:
    assert hasattr(torch.distributed.ReduceOp, operation)


@given(shape=strategies.shapes(min_dims=2, max_dims=2, max_size=4))
def test_shapes_keep_their_bounds(shape: tuple[int, ...]) -> None:
    assert len(shape) == 2
    assert all(1 <= size <= 4 for size in shape)


def test_worlds_are_more_than_half_of_the_ranks() -> None:
    ranks = Ranks(Mock(), 8)
    assert find(strategies.worlds(ranks), lambda world: True).world_size == 5
    assert find(strategies.worlds(ranks), lambda world: world.world_size > 7).world_size == 8
    assert find(strategies.worlds(Ranks(Mock(), 1)), lambda world: True).world_size == 1
