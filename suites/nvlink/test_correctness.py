"""Every byte arrives on every GPU, whichever way it goes; and a slow pair of GPUs is called by its name."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.nvlink import programs
from suites.shared.step import Step
from suites.shared.strategies import dtypes, seeds, shapes, worlds

# NVLink joins GPUs: there is nothing to run on CPUs.
on_gpus = pytest.mark.ranks(2, 4, 8, device="cuda")

CHUNK = programs.CHUNK

# Around the edges of the staged copy's chunks: a part of one, exactly some, and some and a part.
byte_counts = st.sampled_from([1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])


@on_gpus
@pytest.mark.parametrize("program", [programs.ring_staged, programs.ring_peer])
@given(data=st.data(), nbytes=byte_counts, seed=seeds)
def test_ring_copy(
    ranks: Ranks, program: Callable[..., Step[torch.Tensor]], data: st.DataObject, nbytes: int, seed: int
) -> None:
    check_ring(data.draw(worlds(ranks)), program, nbytes, seed)


def check_ring(world: Ranks, program: Callable[..., Step[torch.Tensor]], nbytes: int, seed: int) -> None:
    """Each rank's bytes are on the next rank's GPU."""
    arrivals = world.run(programs.arrival, program, shape=(nbytes,), dtype=torch.uint8, seed=seed)
    for rank, (gpu, arrived) in enumerate(arrivals):
        assert torch.equal(arrived, programs.sent_bytes(rank, shape=(nbytes,), dtype=torch.uint8, seed=seed))
        following = (rank + 1) % world.world_size
        assert gpu == following, f"the copy of rank {rank} is on GPU {gpu}, expected it on GPU {following}"


@pytest.mark.deliberate_break
@on_gpus
def test_copy_that_never_leaves_its_gpu_is_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="the copy of rank 0 is on GPU 0, expected it on GPU 1"):
        check_ring(ranks, programs.ring_never_left, CHUNK + 1, seed=1)


@on_gpus
@given(data=st.data(), shape=shapes, dtype=dtypes, seed=seeds)
def test_copies_arrive_on_every_gpu(
    ranks: Ranks, data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    for rank, arrivals in enumerate(world.run(programs.copies_to_all, shape=shape, dtype=dtype, seed=seed)):
        sent = programs.sent_bytes(rank, shape=shape, dtype=dtype, seed=seed)
        assert [gpu for gpu, _ in arrivals] == [gpu for gpu in range(world.world_size) if gpu != rank]
        assert all(torch.equal(copy, sent) for _, copy in arrivals)


@st.composite
def matrices(draw: st.DrawFn) -> list[programs.Row]:
    """Bandwidths of 2 to 8 GPUs, all at 380 to 390 GB/s, 1 to 4 samples each."""
    gpus = draw(st.integers(2, 8))
    # By a seed: to draw up to 224 numbers one by one takes longer than all else that these tests do.
    generator = random.Random(draw(seeds))
    return [
        [
            None if i == j else [generator.uniform(380e9, 390e9) for _ in range(generator.randint(1, 4))]
            for j in range(gpus)
        ]
        for i in range(gpus)
    ]


@given(data=st.data(), matrix=matrices(), slow=st.floats(1e9, 249e9))
def test_slow_hop_is_named(data: st.DataObject, matrix: list[programs.Row], slow: float) -> None:
    sender, receiver = data.draw(st.sampled_from(list(itertools.permutations(range(len(matrix)), 2))))
    matrix[sender][receiver] = [slow]
    assert str(programs.hops(matrix)[0]) == f"GPU {sender} -> GPU {receiver} at {slow / 1e9:.1f} GB/s"
    text = programs.too_slow(matrix, 250e9)
    pairs = len(matrix) * (len(matrix) - 1)
    assert text.startswith(f"slowest hop: GPU {sender} -> GPU {receiver} at ")
    assert f"; 1 of {pairs} pairs are below 250 GB/s: " in text


@given(matrix=matrices())
def test_even_hops_are_not_slow(matrix: list[programs.Row]) -> None:
    assert programs.too_slow(matrix, 250e9) == ""
    assert len(programs.hops(matrix)) == len(matrix) * (len(matrix) - 1)


def test_one_slow_sample_is_not_a_slow_hop() -> None:
    matrix: list[programs.Row] = [[None, [385e9, 20e9, 386e9]], [[384e9], None]]
    assert programs.hops(matrix)[0].receiver == 0
    assert programs.too_slow(matrix, 250e9) == ""


@pytest.mark.parametrize(
    "matrix",
    [[[None, None], [[1e9], None]], [[[1e9], [1e9]], [[1e9], None]], [[None, [1e9]], [[1e9]]]],
    ids=["unmeasured pair", "pair of one", "short row"],
)
def test_matrix_without_every_pair_is_refused(matrix: list[programs.Row]) -> None:
    with pytest.raises(ValueError, match="expected some for each pair of different GPUs, and only these"):
        programs.hops(matrix)
