"""A Llama that reads and writes keys and values in pages: tokens of several sequences in one forward.

N tokens of B sequences lie in one row. Each sequence has at most Q tokens in it, and at most L tokens in its pages.
H heads of D features, of which G are heads of keys and values; T tokens in a page.
"""

from __future__ import annotations

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
    """Where in the sequence the first token is; the tokens before it are in the pages."""
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

    @torch.no_grad()
    def next_tokens(self, spans: Sequence[Span]) -> list[int]:
        """Writes the keys and values of all spans, and returns the likeliest token after each of them."""
        batch = _Batch(spans, self.pool)
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


class _Batch:
    """Where each token of the spans is: in the row, in its sequence, and in the pool."""

    def __init__(self, spans: Sequence[Span], pool: PagePool) -> None:
        page_tokens, device = pool.layout.page_tokens, pool.kv.device
        counts = [len(span.tokens) for span in spans]
        ends = [span.start + count for span, count in zip(spans, counts, strict=True)]
        places = [place for span, end in zip(spans, ends, strict=True) for place in range(span.start, end)]
        owners = [span for span in spans for _ in span.tokens]
        pages = [span.pages[place // page_tokens] for span, place in zip(owners, places, strict=True)]
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        most = max(counts)
        # Padding repeats the sequence's first token; what it gets is dropped.
        row = [
            [first + index if index < count else first for index in range(most)]
            for first, count in zip(firsts, counts, strict=True)
        ]
        real = [[index < count for index in range(most)] for count in counts]
        width = math.ceil(max(ends) / page_tokens)
        tables = [(list(span.pages[:width]) + [span.pages[0]] * width)[:width] for span in spans]

        def there(numbers: object, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=device)

        self.tokens = there([[token for span in spans for token in span.tokens]])
        self.places = there(places)
        self.pages = there(pages)
        self.slots = self.places % page_tokens
        self.last = there([first + count - 1 for first, count in zip(firsts, counts, strict=True)])
        self.row = there(row)
        self.real = there(real, torch.bool)
        self.tables = there(tables)
        # [B, 1, Q, L]: a token sees itself and those before it. What lies behind in a page is another sequence's.
        seen = torch.arange(width * page_tokens, device=device)
        self.mask = (seen <= self.places[self.row].unsqueeze(-1)).unsqueeze(1)


class _PagedLayer:
    """One layer's keys and values of a batch; what ``LlamaAttention.sequences`` asks for."""

    def __init__(self, batch: _Batch, pool: PagePool, layer: int) -> None:
        self._batch = batch
        self._keys, self._values = pool.kv[:, layer, 0], pool.kv[:, layer, 1]  # [pages, T, G, D]

    def places(self, length: int, device: torch.device) -> torch.Tensor:
        """Where in its sequence each token of the row is."""
        return self._batch.places

    def attended(self, attend: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores the row's keys and values, and attends to all that each token's sequence has."""
        batch = self._batch
        self._keys[batch.pages, batch.slots] = key[0].transpose(0, 1)
        self._values[batch.pages, batch.slots] = value[0].transpose(0, 1)
        keys, values = (each[batch.tables].flatten(1, 2).transpose(1, 2) for each in (self._keys, self._values))
        queries = query[0][:, batch.row].transpose(0, 1)  # [B, H, Q, D]
        mixed = functional.scaled_dot_product_attention(queries, keys, values, batch.mask, enable_gqa=True)
        return mixed.transpose(1, 2)[batch.real].transpose(0, 1).unsqueeze(0)
