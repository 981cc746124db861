"""A Llama that reads and writes keys and values in pages: tokens of several sequences in one forward.

N tokens of all sequences lie in one row. B sequences that have Q tokens each in it attend together, to L tokens in P
pages of T tokens. H heads of D features, of which G are heads of keys and values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from suites.serving.programs.pages import PagePool
from suites.shared.llama import Attend, Config, Llama, LlamaLayer, load_initial_weights


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence, one after the other."""

    pages: Sequence[int]
    """All pages of the sequence."""
    start: int
    """The place of the first token in the sequence; the tokens before it are in the pages."""
    tokens: Sequence[int]


def llama(config: Config, *, seed: int, dtype: torch.dtype, device: torch.device) -> Llama:
    """The whole model, alike wherever it is made."""
    model = Llama(config, 0, 1).to(dtype)
    load_initial_weights(model, config, seed)
    return model.to(device).requires_grad_(False)


class PagedLlama:
    """A model with its pool of pages."""

    def __init__(self, model: Llama, pool: PagePool) -> None:
        self.model = model
        self.pool = pool
        self.seen = 0
        """Tokens that went through the model."""

    @torch.no_grad()
    def next_tokens(self, spans: Sequence[Span]) -> list[int]:
        """Writes the keys and values of all spans, and returns the likeliest token after each of them."""
        batch = _Batch(spans, self.pool)
        self.seen += batch.tokens.numel()
        assert self.model.embedding is not None
        assert self.model.norm is not None
        assert self.model.head is not None
        x = self.model.embedding(batch.tokens)
        for index, layer in enumerate(self.model.layers.values()):
            assert isinstance(layer, LlamaLayer)
            layer.attention.sequences = _PagedLayer(batch, self.pool, index)
            x = layer(x)
        logits = self.model.head(self.model.norm(x[0, batch.last]))
        chosen: list[int] = logits.argmax(-1).tolist()
        return chosen


@dataclass(frozen=True, slots=True)
class _Group:
    """Spans of equally many tokens, which attend together."""

    rows: torch.Tensor
    """[B, Q]: where in the row each span's tokens are."""
    tables: torch.Tensor
    """[B, P]: the pages of each span's sequence, so far as one of them needs."""
    mask: torch.Tensor
    """[B, 1, Q, L]: what a token sees."""


class _Batch:
    """The place of each token of the spans: in the row, in its sequence, and in the pool."""

    def __init__(self, spans: Sequence[Span], pool: PagePool) -> None:
        self._page_tokens, self._device = pool.layout.page_tokens, pool.kv.device
        places = [place for span in spans for place in range(span.start, span.start + len(span.tokens))]
        owners = [span for span in spans for _ in span.tokens]
        pages = [span.pages[place // self._page_tokens] for span, place in zip(owners, places, strict=True)]
        firsts = [0, *itertools.accumulate(len(span.tokens) for span in spans)]
        self.tokens = self._there([[token for span in spans for token in span.tokens]])
        self.places = self._there(places)
        self.pages = self._there(pages)
        self.slots = self.places % self._page_tokens
        self.last = self._there(firsts[1:]) - 1
        alike: dict[int, list[tuple[int, Span]]] = {}
        for first, span in zip(firsts, spans, strict=False):
            alike.setdefault(len(span.tokens), []).append((first, span))
        self.groups = [self._group(count, members) for count, members in alike.items()]

    def _group(self, count: int, members: list[tuple[int, Span]]) -> _Group:
        rows = self._there([list(range(first, first + count)) for first, _ in members])
        width = math.ceil(max(span.start + count for _, span in members) / self._page_tokens)
        # A shorter table is filled up with any page: nobody sees what lies behind a sequence's end.
        tables = self._there([(list(span.pages) + [span.pages[0]] * width)[:width] for _, span in members])
        seen = torch.arange(width * self._page_tokens, device=self._device)
        return _Group(rows, tables, (seen <= self.places[rows].unsqueeze(-1)).unsqueeze(1))

    def _there(self, numbers: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


class _PagedLayer:
    """One layer's keys and values of a batch; what ``LlamaAttention.sequences`` asks for."""

    def __init__(self, batch: _Batch, pool: PagePool, layer: int) -> None:
        self._batch = batch
        self._keys, self._values = pool.kv[:, layer, 0], pool.kv[:, layer, 1]  # [pages, T, G, D]

    def places(self, length: int, device: torch.device) -> torch.Tensor:
        """The place of each token of the row in its sequence."""
        return self._batch.places

    def attended(self, attend: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores the row's keys and values, and attends to all that each token's sequence has."""
        batch = self._batch
        self._keys[batch.pages, batch.slots] = key[0].transpose(0, 1)
        self._values[batch.pages, batch.slots] = value[0].transpose(0, 1)
        mixed = torch.empty_like(query)
        for group in batch.groups:
            keys, values = (
                each[group.tables].flatten(1, 2).transpose(1, 2) for each in (self._keys, self._values)
            )  # [B, G, L, D]
            queries = query[0][:, group.rows].transpose(0, 1)  # [B, H, Q, D]
            seen = functional.scaled_dot_product_attention(queries, keys, values, group.mask, enable_gqa=True)
            mixed[0][:, group.rows] = seen.transpose(0, 1)
        return mixed
