"""Every byte arrives on every GPU, whichever way it goes; and a slow pair of GPUs is called by its name."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, GiB, MiB, Ranks
from suites.nvlink.programs import copies as programs
from suites.nvlink.programs import orders, paths
from suites.shared.bits import bits_of
from suites.shared.comparison import assert_close
from suites.shared.delays import copies_lasting
from suites.shared.step import Step
from suites.shared.strategies import dtypes, seeds, worlds

# NVLink joins GPUs: there is nothing to run on CPUs.
on_gpus = pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")

CHUNK = programs.CHUNK

numels = st.sampled_from([1, 5, 4097, 70_001])
# Around the edges of the staged copy's chunks: a part of one, exactly some, and some and a part.
byte_counts = st.sampled_from([1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])


PROGRAMS = [programs.ring_staged, programs.ring_peer]


@on_gpus
@pytest.mark.parametrize("program", PROGRAMS)
@given(data=st.data(), nbytes=byte_counts, seed=seeds)
def test_ring_copy(
    ranks: Ranks, program: Callable[..., Step[torch.Tensor]], data: st.DataObject, nbytes: int, seed: int
) -> None:
    check_ring(data.draw(worlds(ranks)), program, nbytes, seed)


@on_gpus
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("nbytes", [64 * MiB, GiB + 1], ids=["64MiB", "1GiB and 1"])
def test_large_ring_copy(ranks: Ranks, program: Callable[..., Step[torch.Tensor]], nbytes: int) -> None:
    check_ring(ranks, program, nbytes, seed=3)


def check_ring(world: Ranks, program: Callable[..., Step[torch.Tensor]], nbytes: int, seed: int) -> None:
    """Each rank's bytes are on the next rank's GPU."""
    told = world.run(programs.arrivals, program, numel=nbytes, dtype=torch.uint8, seed=seed)
    assert not any(told), "; ".join(filter(None, told))


@on_gpus
@given(data=st.data(), numel=numels, dtype=dtypes, seed=seeds)
def test_copies_arrive_on_every_gpu(
    ranks: Ranks, data: st.DataObject, numel: int, dtype: torch.dtype, seed: int
) -> None:
    told = data.draw(worlds(ranks)).run(programs.copies_to_all, numel=numel, dtype=dtype, seed=seed)
    assert not any(told), "; ".join(text for of_rank in told for text in of_rank)


@pytest.mark.ranks(2, 3, nodes=1)
def test_what_is_copied_and_how_it_is_checked(ranks: Ranks) -> None:
    # On CPUs the copies stay in a process: what is sent, and who has to look for what, is the same.
    check_ring(ranks, programs.ring_peer, 70_001, seed=1)
    assert not any(ranks.run(programs.copies_to_all, numel=70_001, dtype=torch.bfloat16, seed=1))


@pytest.mark.ranks(2, 4, nodes=1)
@pytest.mark.parametrize("access", ["write", "read"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "together"])
def test_ways_over_the_link(ranks: Ranks, access: paths.Access, alone: bool) -> None:
    told = ranks.run(paths.rates, engine="copy_engine", access=access, alone=alone, nbytes=70_016, samples=2, copies=2)
    acting = {rank: of_rank for rank, of_rank in enumerate(told) if of_rank is not None}
    expected = [0] if alone else list(range(ranks.world_size))
    assert list(acting) == expected, f"ranks {list(acting)} have bandwidths, expected ranks {expected}"
    for rank, samples in acting.items():
        assert len(samples) == 2, f"rank {rank}: {len(samples)} samples, expected 2: {samples}"
        assert min(samples) > 0, f"rank {rank}: bandwidths {samples} in B/s, expected more than 0"


def told_rates(ctx: Context, copies: int, alone: bool) -> list[float] | None:
    """The bandwidths of copies of 64 bytes, which take 1 s each in one sample and 2 s in the next."""
    # What fills the source and those before the samples take longer, and count in none.
    with copies_lasting(itertools.chain([1000.0] * (1 + copies), itertools.cycle([1.0] * copies + [2.0] * copies))):
        return paths.rates(ctx, engine="copy_engine", access="write", alone=alone, nbytes=64, samples=4, copies=copies)


@pytest.mark.ranks(2, device="cpu")  # a GPU's copies take its own time, not the moved clock's
@pytest.mark.parametrize("copies", [1, 3])
def test_a_rate_is_that_of_one_copy(ranks: Ranks, copies: int) -> None:
    rates = [64.0, 32.0, 64.0, 32.0]
    for alone, expected in ((True, [rates, None]), (False, [rates, rates])):  # of one direction each
        for rank, (got, want) in enumerate(zip(ranks.run(told_rates, copies, alone=alone), expected, strict=True)):
            assert got == want, f"rank {rank}, alone={alone}: bandwidths {got} in B/s, expected {want}"


def rates_of_a_copy_that_stops(ctx: Context, after: int) -> None:
    """Copies of which only so many move anything, besides what fills the source."""
    copies, copy = itertools.count(), torch.Tensor.copy_

    def some(destination: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return copy(destination, source) if next(copies) <= after else destination

    with mock.patch.object(torch.Tensor, "copy_", some):
        paths.rates(ctx, engine="copy_engine", access="write", alone=False, nbytes=64, samples=2, copies=3)


@pytest.mark.ranks(2, device="cpu")
def test_what_is_timed_must_arrive(ranks: Ranks) -> None:
    ranks.run(rates_of_a_copy_that_stops, 4)
    with pytest.raises(AssertionError, match=r"64 of 64 elements of the copy of rank \d are wrong"):
        ranks.run(rates_of_a_copy_that_stops, 3)  # those that warm up


def once_alone(ctx: Context, **given: Any) -> Step[torch.Tensor]:
    """A ring copy whose second step does nothing."""
    step, steps = programs.ring_peer(ctx, **given), itertools.count()
    output = step()
    return lambda: step() if next(steps) == 0 else output


@pytest.mark.ranks(2, device="cpu")
def test_a_ring_that_copies_only_once_is_told(ranks: Ranks) -> None:
    told = ranks.run(programs.arrivals, once_alone, numel=70_001, dtype=torch.uint8, seed=1)
    for rank, wrong in enumerate(told):
        assert "elements of the copy of rank" in wrong, f"rank {rank}: no complaint of a stale copy, but {wrong!r}"


@pytest.mark.ranks(2, 4, nodes=1)
def test_partners_are_in_the_other_half(ranks: Ranks) -> None:
    half = ranks.world_size // 2
    assert ranks.run(paths.partner) == [*range(half, 2 * half), *range(half)]


@on_gpus
@pytest.mark.parametrize("engine", ["copy_engine", "kernel"])
@pytest.mark.parametrize("access", ["write", "read"])
@pytest.mark.parametrize("nbytes", [16, 70_016, 64 * MiB], ids=["16B", "68KiB", "64MiB"])
def test_each_engine_moves_every_byte(ranks: Ranks, engine: paths.Engine, access: paths.Access, nbytes: int) -> None:
    ranks.run(paths.rates, engine=engine, access=access, alone=False, nbytes=nbytes, samples=2, copies=2)


@pytest.mark.ranks(2, 3, 4, nodes=1)
@given(data=st.data(), seed=seeds)
def test_a_ring_in_any_order(ranks: Ranks, data: st.DataObject, seed: int) -> None:
    order = data.draw(st.permutations(range(ranks.world_size)))
    ranks.run(in_order, list(order), seed)


def in_order(ctx: Context, order: list[int], seed: int) -> None:
    """Two steps of the ring, compared on the ranks; what no step has written anew is refused."""
    step = orders.ring_of(ctx, order=order, nbytes=70_001, seed=seed)
    for _ in range(2):
        output = step()
        orders.arrived(ctx, output, order, seed)
    with pytest.raises(AssertionError, match="elements of the copy of rank"):
        orders.arrived(ctx, output, order, seed)


@pytest.mark.examples(0.2)  # each fills up to 70,001 elements several times
@given(dtype=dtypes, data=st.data(), numel=numels, seed=seeds)
def test_a_wrong_element_is_found(dtype: torch.dtype, data: st.DataObject, numel: int, seed: int) -> None:
    sent = torch.empty(numel, dtype=dtype)
    programs.fill_sent(sent, rank=1, seed=seed)
    assert programs.complaint(sent, rank=1, seed=seed) == ""
    for rank, of in ((2, seed), (1, seed + 1)):
        assert "elements of the copy of rank" in programs.complaint(sent, rank=rank, seed=of)
    bits_of(sent)[data.draw(st.integers(0, numel - 1))] += 1
    assert programs.complaint(sent, rank=1, seed=seed) == f"1 of {numel} elements of the copy of rank 1 are wrong"


@given(numel=st.integers(1, 200), nbytes=st.integers(8, 400), dtype=dtypes)
def test_chunks_cover_every_element_once(numel: int, nbytes: int, dtype: torch.dtype) -> None:
    here, there = torch.arange(numel).to(dtype), torch.zeros(numel, dtype=dtype)
    chunks = programs.chunked(here, there, nbytes=nbytes)
    for source, destination in chunks:
        assert 0 < source.nbytes <= nbytes, f"a chunk has {source.nbytes} bytes, expected 1 to {nbytes}"
        destination += source + 1
    assert_close(there, here + 1, "elements of all chunks, plus 1")


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
    found = programs.hops(matrix)
    assert str(found[0]) == f"GPU {sender} -> GPU {receiver} at {slow / 1e9:.1f} GB/s"
    for hop in found:  # each with its own samples, whichever way round
        assert list(hop.samples) == matrix[hop.sender][hop.receiver]
    assert [hop.bandwidth for hop in found] == sorted(statistics.median(hop.samples) for hop in found)
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


def test_slow_hops_are_counted_and_named_slowest_first() -> None:
    matrix: list[programs.Row] = [[None, [250e9], [40e9]], [[385e9], None, [30e9, 31e9]], [[386e9], [249e9], None]]
    assert programs.too_slow(matrix, 250e9) == (
        "slowest hop: GPU 1 -> GPU 2 at 30.5 GB/s; 3 of 6 pairs are below 250 GB/s: GPU 1 -> GPU 2 at 30.5 GB/s, "
        "GPU 0 -> GPU 2 at 40.0 GB/s, GPU 2 -> GPU 1 at 249.0 GB/s"
    )


@pytest.mark.parametrize(
    "matrix",
    [[[None, None], [[1e9], None]], [[[1e9], [1e9]], [[1e9], None]], [[None, [1e9]], [[1e9]]]],
    ids=["unmeasured pair", "pair of one", "short row"],
)
def test_matrix_without_every_pair_is_refused(matrix: list[programs.Row]) -> None:
    with pytest.raises(ValueError, match="expected some for each pair of different GPUs, and only these"):
        programs.hops(matrix)


@given(matrix=matrices())
def test_alike_pairs_have_no_better_order(matrix: list[programs.Row]) -> None:
    assert orders.orders(matrix) is None


@given(data=st.data(), gpus=st.integers(3, 6), seed=seeds)
def test_the_best_order_avoids_slow_hops_and_the_worst_has_one(data: st.DataObject, gpus: int, seed: int) -> None:
    # All hops of one ring are fast and all others slow: the best order is that ring.
    ring = [0, *data.draw(st.permutations(range(1, gpus)))]
    fast = set(itertools.pairwise([*ring, 0]))
    generator = random.Random(seed)
    matrix: list[programs.Row] = [
        [
            None if i == j else [generator.uniform(300e9, 310e9) if (i, j) in fast else generator.uniform(20e9, 30e9)]
            for j in range(gpus)
        ]
        for i in range(gpus)
    ]
    found = orders.orders(matrix)
    assert found is not None
    best, worst = found
    assert best == ring
    slowest = programs.hops(matrix)[0]
    assert orders.after(worst, slowest.sender) == slowest.receiver
