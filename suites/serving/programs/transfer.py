"""How pages go from one rank's pool to another's: who tells whom what, and two ways for the bytes.

Ranks agree on pages through the process group's store; keys and values go page by page, over NCCL or gloo, or by writes
into the other rank's memory.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.serving.programs.pages import PageFormat, PagePool
from suites.shared.peer_memory import Allocate, SymmetricMemory, allocate

Note = dict[str, Any]
"""What JSON carries."""


class Mailbox:
    """Notes between two ranks, each read once, in the order they were sent."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._sent: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def post(self, to: int, subject: str, note: Note) -> None:
        """Sends a note; does not wait until it is read."""
        line = f"serving/{subject}/{self._ctx.rank}>{to}"
        self._ctx.store.set(f"{line}/{self._sent[line]}", json.dumps(note))
        self._sent[line] += 1

    def waiting(self, source: int, subject: str) -> bool:
        """Whether there is a note to take."""
        return bool(self._ctx.store.check([self._next(source, subject)]))

    def take(self, source: int, subject: str) -> Note:
        """Waits for the next note."""
        key = self._next(source, subject)
        note: Note = json.loads(self._ctx.store.get(key))
        self._ctx.store.delete_key(key)
        self._taken[key.rpartition("/")[0]] += 1
        return note

    def _next(self, source: int, subject: str) -> str:
        line = f"serving/{subject}/{source}>{self._ctx.rank}"
        return f"{line}/{self._taken[line]}"


def format_note(layout: PageFormat) -> Note:
    """A format that a note carries."""
    return {"shape": list(layout.shape), "dtype": str(layout.dtype), "model": layout.model}


def noted_format(note: Note) -> PageFormat:
    """The format that a note has carried."""
    return PageFormat(tuple(note["shape"]), getattr(torch, note["dtype"].removeprefix("torch.")), note["model"])


class Transport(Protocol):
    """Moves pages between two ranks' pools; both know which pages go, and in which order."""

    def send(self, pages: Sequence[int], there: Sequence[int], to: int) -> None:
        """Sends pages to those of the other rank; afterwards they may be written again."""
        ...

    def ready(self, source: int) -> bool:
        """Whether the other rank sends: ``receive`` would not have to wait until it does."""
        ...

    def receive(self, pages: Sequence[int], source: int) -> None:
        """Returns when the pages may be read."""
        ...


class ByMessages:
    """A message for each page, by NCCL or gloo."""

    def __init__(self, pool: PagePool, mailbox: Mailbox) -> None:
        self._pool, self._mailbox = pool, mailbox

    def send(self, pages: Sequence[int], there: Sequence[int], to: int) -> None:
        """One group of sends; what the current stream does later comes after them."""
        self._mailbox.post(to, "sending", {})
        self.put(pages, to)

    def ready(self, source: int) -> bool:
        """Whether the other rank has come to its sends."""
        return self._mailbox.waiting(source, "sending")

    def receive(self, pages: Sequence[int], source: int) -> None:
        """One group of receives. NCCL's kernel would keep the stream waiting, so that it begins with the sends."""
        self._mailbox.take(source, "sending")
        self.get(pages, source)

    def put(self, pages: Sequence[int], to: int) -> None:
        """The sends alone."""
        self._exchange([dist.P2POp(dist.isend, self._pool.kv[page], to) for page in pages])

    def get(self, pages: Sequence[int], source: int) -> None:
        """The receives alone."""
        self._exchange([dist.P2POp(dist.irecv, self._pool.kv[page], source) for page in pages])

    @staticmethod
    def _exchange(operations: list[dist.P2POp]) -> None:
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


class ByPuts:
    """Kernels write all pages into the other rank's memory.

    A copy engine takes one page after the other, and pauses between two: with pages of 2 MiB that cost a third of the
    link's bandwidth (measured: 268 GB/s, one copy of all 393 GB/s, on 2 H100).
    """

    def __init__(self, ctx: Context, pool: PagePool, memory: SymmetricMemory, mailbox: Mailbox) -> None:
        self._ctx, self._mailbox = ctx, mailbox
        self.memory = memory  # what is mapped is mapped for as long as its memory is kept
        shape, dtype = tuple(pool.kv.shape), pool.layout.dtype
        self._ours = pool.kv.unbind()
        self._theirs = [memory.buffer(rank, shape, dtype).unbind() for rank in range(ctx.world_size)]

    def copy(self, pages: Sequence[int], there: Sequence[int], to: int) -> None:
        """Writes on the current stream. The other rank must learn by other means that they are done."""
        if pages:
            torch._foreach_copy_([self._theirs[to][page] for page in there], [self._ours[page] for page in pages])

    def send(self, pages: Sequence[int], there: Sequence[int], to: int) -> None:
        """Copies, waits for them, and says so."""
        self.copy(pages, there, to)
        if self._ctx.device.type == "cuda":
            torch.cuda.current_stream(self._ctx.device).synchronize()
        self._mailbox.post(to, "arrived", {"pages": list(there)})

    def ready(self, source: int) -> bool:
        """Whether the pages have been written."""
        return self._mailbox.waiting(source, "arrived")

    def receive(self, pages: Sequence[int], source: int) -> None:
        """Waits for the other rank's word.

        Raises:
            RuntimeError: the other rank has written other pages.
        """
        arrived = self._mailbox.take(source, "arrived")["pages"]
        if arrived != list(pages):
            raise RuntimeError(
                f"rank {source} wrote the pages {arrived}, expected {list(pages)}: take transfers in the order in "
                "which they are sent"
            )


def wired(
    ctx: Context, layout: PageFormat, pages: int, *, way: str, allocate: Allocate = allocate
) -> tuple[PagePool, Mailbox, Transport]:
    """A rank's pool, and the way to the others' pools. By puts, all ranks call it, with the same number of pages.

    Raises:
        ValueError: there is no such way.
    """
    mailbox = Mailbox(ctx)
    if way == "messages":
        pool = PagePool(layout, pages, ctx.device)
        return pool, mailbox, ByMessages(pool, mailbox)
    if way == "puts":
        shape = (pages, *layout.shape)
        memory = allocate(ctx, math.prod(shape) * layout.dtype.itemsize)
        storage = memory.buffer(ctx.rank, shape, layout.dtype).zero_()
        memory.barrier()  # nobody writes before all have wiped
        pool = PagePool(layout, pages, ctx.device, storage)
        return pool, mailbox, ByPuts(ctx, pool, memory, mailbox)
    raise ValueError(f"pages go by messages or by puts, got way={way!r}: pass one of the two")
