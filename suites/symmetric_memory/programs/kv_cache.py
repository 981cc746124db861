"""A KV cache in symmetric memory, each rank reading the next one's pages by the tables that it finds there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.symmetric import Allocate, allocate
from suites.symmetric_memory.programs.arena import Arena

Tokens = dict[int, torch.Tensor]
"""By sequence: 2 x tokens x heads x features, keys first, then values."""
DTYPE, INDEX = torch.float32, torch.int64


class KvCache:
    """A rank's keys and values in pages of symmetric memory, beside the tables by which any rank reads them.

    Pages of T tokens, as in PagedAttention (Kwon et al., 2023, section 4): a sequence takes a page when its last one
    is full, so that none holds more than T - 1 tokens' room in vain. A table is a row of whole numbers: how many
    tokens the sequence has, and the offsets of its pages. So ranks tell each other nothing but by this memory.
    """

    def __init__(
        self,
        ctx: Context,
        *,
        sequences: int,
        pages: int,
        page_tokens: int,
        heads: int,
        features: int,
        allocate: Allocate = allocate,
    ) -> None:
        self._rank = ctx.rank
        self._page_tokens = page_tokens
        self._page_shape = (2, page_tokens, heads, features)
        self._page_bytes = 2 * page_tokens * heads * features * DTYPE.itemsize
        self._tables_shape = (sequences, 1 + pages)
        self._arena = Arena(pages * self._page_bytes)
        self._tables_at = pages * self._page_bytes // INDEX.itemsize
        self._memory = allocate(ctx, pages * self._page_bytes + sequences * (1 + pages) * INDEX.itemsize)
        self._tables(ctx.rank).zero_()

    def barrier(self) -> None:
        """What any rank has appended before it, every rank reads after it."""
        self._memory.barrier()

    def length(self, sequence: int) -> int:
        """How many tokens the rank's own sequence has; 0 if there is none."""
        return int(self._tables(self._rank)[sequence, 0])

    def append(self, sequence: int, tokens: torch.Tensor) -> None:
        """Tokens at the end of a sequence, which begins with its first ones; all of them, or none.

        Raises:
            Exhausted: too few pages are free.
        """
        length, table = self._table(self._rank, sequence)
        total = length + tokens.shape[1]
        taken: list[int] = []
        try:
            while (len(table) + len(taken)) * self._page_tokens < total:
                taken.append(self._arena.allocate(self._page_bytes))
        except MemoryError:
            for offset in taken:
                self._arena.free(offset)
            raise
        table += taken
        at = length
        while at < total:
            page, slot = divmod(at, self._page_tokens)
            count = min(self._page_tokens - slot, total - at)
            self._page(self._rank, table[page])[:, slot : slot + count] = tokens[:, at - length : at - length + count]
            at += count
        self._tables(self._rank)[sequence, : 1 + len(table)] = torch.tensor([total, *table], dtype=INDEX)

    def free(self, sequence: int) -> None:
        """Gives the sequence's pages back."""
        _, table = self._table(self._rank, sequence)
        for offset in table:
            self._arena.free(offset)
        self._tables(self._rank)[sequence, 0] = 0

    def read(self, rank: int) -> Tokens:
        """All sequences of any rank."""
        read: Tokens = {}
        for sequence in range(self._tables_shape[0]):
            length, table = self._table(rank, sequence)
            if length:
                pages = [self._page(rank, offset) for offset in table]
                read[sequence] = torch.cat(pages, dim=1)[:, :length].clone()
        return read

    def _table(self, rank: int, sequence: int) -> tuple[int, list[int]]:
        """How many tokens a rank's sequence has, and the offsets of its pages."""
        length, *offsets = self._tables(rank)[sequence].tolist()
        return length, offsets[: -(-length // self._page_tokens)]

    def _tables(self, rank: int) -> torch.Tensor:
        return self._memory.buffer(rank, self._tables_shape, INDEX, self._tables_at)

    def _page(self, rank: int, offset: int) -> torch.Tensor:
        return self._memory.buffer(rank, self._page_shape, DTYPE, offset // DTYPE.itemsize)


Operation = tuple[str, int, int]
"""What is done (append or free), to which sequence, and with how many tokens."""


def new_tokens(rank: int, sequence: int, start: int, count: int, *, heads: int, features: int) -> torch.Tensor:
    """Tokens that no other rank, sequence or place has."""
    seed = (rank * 64 + sequence) * 4096 + start
    return integers((2, count, heads, features), DTYPE, seed=seed, low=-(2**24), high=2**24)


def kv_cache(
    ctx: Context,
    *,
    operations: list[list[list[Operation]]],
    sequences: int,
    pages: int,
    page_tokens: int,
    heads: int,
    features: int,
    allocate: Allocate = allocate,
) -> Callable[[], list[tuple[Tokens, list[int]]]]:
    """In each round each rank does its operations, then reads all sequences of the rank after it.

    The step returns for each round what was read, and which of the rank's own operations found the cache exhausted.

    Args:
        ctx: the rank's context.
        operations: of each round, of each rank.
        sequences: how many a rank may have at once.
        pages: of each rank's cache.
        page_tokens: how many tokens a page holds.
        heads: of each token.
        features: of each head.
        allocate: gives the symmetric memory.
    """
    shape = {"page_tokens": page_tokens, "heads": heads, "features": features}
    cache = KvCache(ctx, sequences=sequences, pages=pages, allocate=allocate, **shape)

    def refusals(of_rank: list[Operation]) -> list[int]:
        refused = []
        for index, (what, sequence, count) in enumerate(of_rank):
            if what == "free":
                cache.free(sequence)
                continue
            tokens = new_tokens(ctx.rank, sequence, cache.length(sequence), count, heads=heads, features=features)
            try:
                cache.append(sequence, tokens.to(ctx.device))
            except MemoryError:
                refused.append(index)
        return refused

    def step() -> list[tuple[Tokens, list[int]]]:
        found = []
        for of_ranks in operations:
            refused = refusals(of_ranks[ctx.rank])
            cache.barrier()
            found.append((cache.read((ctx.rank + 1) % ctx.world_size), refused))
            cache.barrier()  # all have read, before anybody frees or appends again
        return found

    return step
