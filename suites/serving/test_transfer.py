"""Pages arrive in their places and no others, by each way, and may be read when ``receive`` returns."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.serving.programs.pages import PageFormat, PagePool
from suites.serving.programs.transfer import ByMessages, ByPuts, Mailbox, Note, format_note, noted_format, wired
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers

WAYS = ("messages", "puts")
SHAPE = (2, 2, 3, 1, 2)
LAYOUT = PageFormat(SHAPE, torch.float64, "a model")
SLOW = 0.2  # seconds that one rank is late; a rank that should wait for it, and does not, is done long before
LATE = 10.0  # seconds after which a note is lost


def filled(rank: int, pages: int) -> torch.Tensor:
    """A rank's pool before anything is sent."""
    return integers((pages, *SHAPE), LAYOUT.dtype, seed=rank, low=-(2**40), high=2**40)


def sent(ctx: Context, way: str, number: int, moves: list[tuple[int, int, list[int], list[int]]]) -> torch.Tensor:
    """The pool after all moves: from rank, to rank, pages there, pages here."""
    pool, _, transport = wired(ctx, LAYOUT, number, way=way)
    pool.kv.copy_(filled(ctx.rank, number))
    for source, to, pages, there in moves:
        ctx.barrier()  # the other rank is ready to have its pages written
        if ctx.rank == source:
            transport.send(pages, there, to)
        elif ctx.rank == to:
            transport.receive(there, source)
    ctx.barrier()
    return pool.kv.clone()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.examples(0.8)
@given(data=st.data(), number=st.integers(1, 6))
def test_pages_arrive_in_their_places(ranks: Ranks, data: st.DataObject, way: str, number: int) -> None:
    expected = [filled(rank, number) for rank in range(ranks.world_size)]
    moves = []
    for _ in range(data.draw(st.integers(1, 3))):
        source, to = data.draw(st.permutations(range(ranks.world_size)))[:2]
        count = data.draw(st.integers(0, number))
        pages, there = (data.draw(st.permutations(range(number)))[:count] for _ in range(2))
        moves.append((source, to, pages, there))
        expected[to][there] = expected[source][pages]
    for rank, (got, want) in enumerate(zip(ranks.run(sent, way, number, moves), expected, strict=True)):
        assert_close(got, want, f"rank {rank}'s pool")


def read_at_once(ctx: Context, way: str) -> torch.Tensor:
    """Rank 0 is slow to send; rank 1 reads when it may."""
    pool, _, transport = wired(ctx, LAYOUT, 2, way=way)
    pool.kv.copy_(filled(ctx.rank, 2))
    ctx.barrier()
    if ctx.rank == 0:
        time.sleep(SLOW)
        transport.send([0, 1], [1, 0], 1)
        pool.kv.zero_()  # they may be written again
    else:
        transport.receive([1, 0], 0)
    read = pool.kv.clone()
    ctx.barrier()
    return read


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_waits_for_what_it_reads(ranks: Ranks, way: str) -> None:
    _, got = ranks.run(read_at_once, way)
    assert_close(got, filled(0, 2).flip(0), "rank 1's pool")


@pytest.mark.ranks(2)
def test_a_send_that_was_received_is_not_announced_any_more(ranks: Ranks) -> None:
    def announced(ctx: Context) -> list[bool]:
        _, _, transport = wired(ctx, LAYOUT, 2, way="messages")
        assert isinstance(transport, ByMessages)
        if ctx.rank == 0:
            transport.send([0], [1], 1)
            ctx.barrier()
            return []
        transport.receive([1], 0)
        ctx.barrier()  # gloo sends when both ranks have come
        return [transport.ready(0)]

    assert ranks.run(announced) == [[], [False]]


class UntilItIsRead(Mailbox):
    """Goes on when the other rank has read the pages that it was told of."""

    def post(self, to: int, subject: str, note: Note) -> None:
        super().post(to, subject, note)
        self.take(to, "read")


@pytest.mark.ranks(2)
def test_pages_are_there_when_a_rank_is_told(ranks: Ranks) -> None:
    def program(ctx: Context) -> torch.Tensor:
        pool, mailbox, way = wired(ctx, LAYOUT, 2, way="puts")
        assert isinstance(way, ByPuts)
        pool.kv.copy_(filled(ctx.rank, 2))
        ctx.barrier()
        if ctx.rank == 0:
            ByPuts(ctx, pool, way.memory, UntilItIsRead(ctx)).send([0], [1], 1)
        else:
            way.receive([1], 0)
        read = pool.kv.clone()
        if ctx.rank == 1:
            mailbox.post(0, "read", {})
        ctx.barrier()
        return read

    _, got = ranks.run(program)
    assert_close(got[1], filled(0, 2)[0], "rank 1's page 1")


@pytest.mark.ranks(2)
def test_transfers_out_of_order_are_named(ranks: Ranks) -> None:
    with pytest.raises(
        RuntimeError, match=r"rank 0 wrote the pages \[1\], expected \[0\]: take transfers in the order"
    ):
        ranks.run(functools.partial(out_of_order, way="puts"))


def out_of_order(ctx: Context, way: str) -> None:
    """Rank 1 expects another page than rank 0 sends."""
    _, _, transport = wired(ctx, LAYOUT, 2, way=way)
    if ctx.rank == 0:
        transport.send([0], [1], 1)
    else:
        transport.receive([0], 0)


@pytest.mark.ranks(1)
def test_a_way_that_is_none_is_refused(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match="pages go by messages or by puts, got way='mail'"):
        ranks.run(lambda ctx: wired(ctx, LAYOUT, 1, way="mail") and None)


@pytest.mark.ranks(2)
def test_notes_are_read_in_their_order(ranks: Ranks) -> None:
    def program(ctx: Context) -> list[Note]:
        mailbox, other = Mailbox(ctx), 1 - ctx.rank
        assert not mailbox.waiting(other, "late")
        ctx.barrier()
        for number in range(3):
            mailbox.post(other, "news", {"number": number, "of": ctx.rank})
        mailbox.post(other, "late", {})
        read = [mailbox.take(other, "news") for _ in range(3)]
        assert mailbox.take(other, "late") == {}
        assert not mailbox.waiting(other, "news")
        ctx.barrier()
        mailbox.post(other, "news", {"number": 3, "of": ctx.rank})
        until = time.monotonic() + LATE  # set() returns before the store has the note
        while not mailbox.waiting(other, "news"):
            assert time.monotonic() < until, f"rank {ctx.rank}: no note is waiting after {LATE:g} s"
        return [*read, mailbox.take(other, "news")]

    for _ in range(2):  # nothing of the first run is left for the second one
        for rank, notes in enumerate(ranks.run(program)):
            assert notes == [{"number": number, "of": 1 - rank} for number in range(4)]


def test_a_format_goes_by_note() -> None:
    assert noted_format(format_note(LAYOUT)) == LAYOUT


def test_a_pool_takes_storage_of_others() -> None:
    storage = torch.ones(3, *SHAPE, dtype=LAYOUT.dtype)
    pool = PagePool(LAYOUT, 3, torch.device("cpu"), storage)
    assert pool.kv.data_ptr() == storage.data_ptr()
