"""A KV cache in symmetric memory, each rank reading the next one's pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.symmetric_memory.programs.arena import Arena
from suites.symmetric_memory.programs.memory import allocate

Tokens = dict[int, torch.Tensor]
"""By sequence: 2 x tokens x heads x features, keys first, then values."""


class KvCache:
    """A rank's keys and values in pages of symmetric memory, which any rank reads who is told the pages.

    Pages of T tokens, as in PagedAttention (Kwon et al., 2023, section 4): a sequence takes a page when its last one
    is full, so that none holds more than T - 1 tokens' room in vain.
    """

    def __init__(self, ctx: Context, *, pages: int, page_tokens: int, heads: int, features: int) -> None:
        self._rank = ctx.rank
        self._page_tokens = page_tokens
        self._page_shape = (2, page_tokens, heads, features)
        self._page_bytes = 2 * page_tokens * heads * features * torch.float32.itemsize
        self._arena = Arena(pages * self._page_bytes)
        self._memory = allocate(ctx, pages * self._page_bytes)
        self.tables: dict[int, list[int]] = {}
        """The offsets of each sequence's pages, in the order of its tokens."""
        self.lengths: dict[int, int] = {}

    def barrier(self) -> None:
        """What any rank has appended before it, every rank reads after it."""
        self._memory.barrier()

    def append(self, sequence: int, tokens: torch.Tensor) -> None:
        """Tokens at the end of a sequence, which begins with its first ones; all of them, or none.

        Raises:
            Exhausted: too few pages are free.
        """
        table, length = list(self.tables.get(sequence, [])), self.lengths.get(sequence, 0)
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
        self.tables[sequence], self.lengths[sequence] = table, total

    def free(self, sequence: int) -> None:
        """Gives the sequence's pages back."""
        for offset in self.tables.pop(sequence):
            self._arena.free(offset)
        del self.lengths[sequence]

    def read(self, rank: int, table: list[int], length: int) -> torch.Tensor:
        """A sequence of any rank, from its table and length."""
        pages = [self._page(rank, offset) for offset in table]
        return torch.cat(pages, dim=1)[:, :length].clone()

    def _page(self, rank: int, offset: int) -> torch.Tensor:
        return self._memory.buffer(rank, self._page_shape, torch.float32, offset // torch.float32.itemsize)


Operation = tuple[str, int, int]
"""What is done (append or free), to which sequence, and with how many tokens."""


def new_tokens(rank: int, sequence: int, start: int, count: int, *, heads: int, features: int) -> torch.Tensor:
    """Tokens that no other rank, sequence or place has."""
    seed = (rank * 64 + sequence) * 4096 + start
    return integers((2, count, heads, features), torch.float32, seed=seed, low=-1000, high=1000)


def kv_cache(
    ctx: Context,
    *,
    operations: list[list[Operation]],
    pages: int,
    page_tokens: int,
    heads: int,
    features: int,
    own_tables: bool = False,
) -> Callable[[], tuple[Tokens, list[int]]]:
    """Each rank does its operations, then reads all sequences of the rank after it.

    The step returns them, and which of the rank's own operations found the cache exhausted.

    Args:
        ctx: the rank's context.
        operations: of each rank.
        pages: of each rank's cache.
        page_tokens: how many tokens a page holds.
        heads: of each token.
        features: of each head.
        own_tables: wrong on purpose: looks its peer's pages up in its own tables.
    """
    cache = KvCache(ctx, pages=pages, page_tokens=page_tokens, heads=heads, features=features)

    def step() -> tuple[Tokens, list[int]]:
        refused = []
        for index, (what, sequence, count) in enumerate(operations[ctx.rank]):
            if what == "free":
                cache.free(sequence)
                continue
            start = cache.lengths.get(sequence, 0)
            tokens = new_tokens(ctx.rank, sequence, start, count, heads=heads, features=features)
            try:
                cache.append(sequence, tokens.to(ctx.device))
            except MemoryError:
                refused.append(index)
        told: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(told, (cache.tables, cache.lengths))
        peer = (ctx.rank + 1) % ctx.world_size
        tables, lengths = told[peer]
        if own_tables:
            tables = {sequence: cache.tables.get(sequence, table) for sequence, table in tables.items()}
        cache.barrier()
        read = {sequence: cache.read(peer, tables[sequence], lengths[sequence]) for sequence in tables}
        cache.barrier()
        return read, refused

    return step
