"""A rank that all others reach slowly is named by the pairs of ranks, and what is sent arrives all the same."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pytest_gpuperf import Context, NcclLog, Ranks
from suites.shared.bits import wrong_bits
from suites.shared.delays import DELAYS, Delay, moved_by
from suites.shared.places import assert_sum
from suites.shared.step import seconds_of_steps
from suites.shared.waiting import waited
from suites.shared.ways import connected
from suites.stragglers.programs import slow_link as programs
from suites.stragglers.programs.slow_link import APART, Pair

NBYTES = 280_004
DELAY = 0.5
"""Seconds of a clock that delays move at once."""
STEPS = 2
HERE = """
0: Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0
0: Channel 00/0 : 0[0] -> 2[2] via P2P/CUMEM
1: Channel 00/0 : 1[1] -> 2[2] [send] via NET/Socket/0
2: Channel 00/0 : 1[1] -> 2[2] [receive] via NET/Socket/0
2: Channel 00/0 : 2[2] -> 0[0] via P2P/CUMEM
"""
"""What NCCL's logs say if rank 1 is apart, each line behind its rank."""


def assert_exchanged(ctx: Context, received: torch.Tensor, steps: int, *, pair: Pair, nbytes: int = NBYTES) -> None:
    """The other one's bits; they are wiped, so that a later step must bring them anew."""
    expected = nbytes if ctx.rank in pair else 0
    assert received.numel() == expected, f"rank {ctx.rank}, pair {pair}: {received.numel()} bytes, not {expected}"
    if expected:
        wrong = wrong_bits(received, stream=pair[1 - pair.index(ctx.rank)])
        assert not wrong, f"rank {ctx.rank}, pair {pair}: {wrong} of {nbytes} bytes are wrong"
        received.zero_()


def assert_summed(ctx: Context, total: torch.Tensor, steps: int, *, among: list[int], nbytes: int = NBYTES) -> None:
    """The sum of those that take part; the others have nothing."""
    expected = nbytes if ctx.rank in among else 0
    assert total.nbytes == expected, f"rank {ctx.rank}, among {among}: {total.nbytes} bytes, not {expected}"
    assert_sum(total, ranks=len(among), steps=steps, where=f"rank {ctx.rank}, among {among}")


def two_steps(ctx: Context) -> None:
    """Each pair's messages and both sums, twice, compared on the ranks."""
    for pair in programs.around(ctx.world_size):
        step = programs.exchange(ctx, pair=pair, nbytes=NBYTES)
        for steps in (1, 2):
            assert_exchanged(ctx, step(), steps, pair=pair)
    everybody = list(range(ctx.world_size))
    for among in (everybody, [rank for rank in everybody if rank != APART]):
        step = programs.sum_among(ctx, among=among, nbytes=NBYTES)
        for steps in (1, 2):
            assert_summed(ctx, step(), steps, among=among)


def seconds_of_pairs(ctx: Context, late: int) -> dict[Pair, list[float]]:
    """Return the seconds of two steps of each pair, on a clock that only delays move."""
    found = {}
    for pair in programs.around(ctx.world_size):
        step = programs.exchange(ctx, pair=pair, nbytes=NBYTES, late=late, delay=DELAY)
        with moved_by(DELAYS):
            found[pair] = seconds_of_steps(ctx, step, STEPS)
    return found


def waits_of_pairs(ctx: Context, late: int) -> dict[Pair, list[bool]]:
    """Return for two steps of each pair of the late rank whether this rank waited for it."""
    return {
        pair: waited(
            ctx,
            programs.exchange(ctx, pair=pair, nbytes=NBYTES, late=late, delay=DELAY),
            STEPS,
            holds_up=(Delay, "__call__"),
            note=f"rank {late} is late in {pair}",
        )
        for pair in programs.around(ctx.world_size)
        if late in pair
    }


@pytest.mark.ranks(3, 4)
def test_what_is_sent_arrives(ranks: Ranks) -> None:
    ranks.run(two_steps)


@pytest.mark.ranks(3, 4, 8, device="cuda", largest=True, nccl_log=True, env=programs.ENVIRON)
def test_what_is_sent_arrives_over_sockets(ranks: Ranks) -> None:
    programs.require_one_apart(ranks.run(connected))
    ranks.run(two_steps)


@pytest.mark.ranks(3, 4)
def test_who_is_reached_slowly_is_named(ranks: Ranks) -> None:
    for late in range(ranks.world_size):
        of_ranks = ranks.run(seconds_of_pairs, late)
        for rank, found in enumerate(of_ranks):
            for pair, seconds in found.items():
                assert seconds == [DELAY * (rank == late and late in pair)] * STEPS, f"rank {rank}, {pair}, late {late}"
        slowest = {pair: max(max(found[pair]) for found in of_ranks) for pair in of_ranks[0]}
        assert programs.behind(slowest) == late, f"seconds of each pair: {slowest}"
        waits = ranks.run(waits_of_pairs, late)
        for pair in waits[0]:
            of_ends = [waits[rank][pair] for rank in pair]
            assert of_ends == [[True] * STEPS] * 2, f"{pair} are slow for one end alone: {of_ends}"


@pytest.mark.parametrize("world_size", [3, 4, 8])
def test_one_slow_link_of_a_neighbour_names_nobody_else(world_size: int) -> None:
    for slow in range(world_size):
        seconds = {pair: 9.0 if slow in pair else 1.0 for pair in programs.around(world_size)}
        assert len(seconds) == world_size
        assert programs.behind(seconds) == slow


@pytest.mark.parametrize("world_size", [5, 8])
def test_one_far_worse_link_elsewhere_is_no_slow_rank(world_size: int) -> None:
    """Only a rank both of whose links are slow is behind them, however slow a single link of others is."""
    pairs = programs.around(world_size)
    for slow in range(world_size):
        seconds = {pair: 9.0 if slow in pair else 1.0 for pair in pairs}
        beside = {rank for pair in pairs if slow in pair for rank in pair}
        for bad in pairs:
            if beside.isdisjoint(bad):
                assert programs.behind(seconds | {bad: 100.0}) == slow, f"rank {slow}, link {bad}"


@pytest.mark.parametrize("world_size", [3, 4, 8])
def test_which_of_its_two_slow_links_is_worse_does_not_matter(world_size: int) -> None:
    pairs = programs.around(world_size)
    for slow in range(world_size):
        for worse in (pair for pair in pairs if slow in pair):
            seconds = {pair: 9.0 if slow in pair else 1.0 for pair in pairs} | {worse: 100.0}
            assert programs.behind(seconds) == slow, f"rank {slow}, link {worse}"


def logs(text: str, nodes: int = 2) -> list[NcclLog]:
    """The NCCL logs of three ranks."""
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    seen = f"comm 0x1 rank 0 nRanks 3 nNodes {nodes} localRanks 2 localRank 0 MNNVL 0\n"
    return [NcclLog.of(seen + "\n".join(said for of, _, said in lines if of == str(rank))) for rank in range(3)]


def test_a_gpu_that_nccl_reaches_by_sockets_is_apart() -> None:
    programs.require_one_apart(logs(HERE))


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        (partial(logs, HERE.replace("NET/Socket/0", "P2P/CUMEM")), "has 0 -> 1 P2P/CUMEM, 1 -> 2 P2P/CUMEM"),
        (partial(logs, HERE.replace("P2P/CUMEM", "NET/Socket/0")), "has 0 -> 2 NET/Socket, 2 -> 0 NET/Socket"),
        (partial(logs, ""), "NCCL does not reach rank 1 alone by NET/Socket here: its log has nothing"),
        (partial(logs, HERE, nodes=3), r"NCCL sees \[3\] nodes here, expected 2"),
    ],
    ids=["none apart", "all apart", "no log", "nodes"],
)
def test_what_nccl_does_otherwise_is_told(instead: partial[list[NcclLog]], why: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=why):
        programs.require_one_apart(instead())
