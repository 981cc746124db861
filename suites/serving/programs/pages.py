"""A pool of pages of keys and values: who holds which page, and which pages a later prompt may use again.

A page has T tokens of all layers (PagedAttention, Kwon et al., 2023, section 4), so that one copy moves it. A page that
nobody holds any more stays readable under its key until the pool needs the page for something else.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from enum import IntEnum

import torch

from suites.shared.llama import Config, Llama


class ForeignPages(ValueError):
    """Pages do not fit the model or the pool that they are offered to."""


class PoolExhausted(MemoryError):
    """Too few pages of a pool are free."""


class PromptTooLong(ValueError):
    """A request needs more pages than its pool has."""


@dataclasses.dataclass(frozen=True, slots=True)
class PageFormat:
    """What a page holds. Only a pool of an equal format can take the page."""

    shape: tuple[int, ...]
    """Layers, 2 (keys, values), tokens, heads of keys and values, features of a head."""
    dtype: torch.dtype
    model: str
    """The fingerprint of the weights that computed it."""

    @classmethod
    def of(cls, model: Llama, config: Config, page_tokens: int) -> PageFormat:
        """The format of pages that a model computes."""
        shape = (config.layers, 2, page_tokens, config.kv_heads, config.head_dim)
        return cls(shape, next(model.parameters()).dtype, fingerprint(model))

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self.shape[2]

    def require(self, offered: PageFormat, where: str) -> None:
        """Refuses pages of another format.

        Raises:
            ForeignPages: names what differs.
        """
        fixes = {"shape": "page size", "dtype": "dtype", "model": "weights"}
        for name, fix in fixes.items():
            got, expected = getattr(offered, name), getattr(self, name)
            if got != expected:
                raise ForeignPages(
                    f"{where}: pages of another {name} were offered: got {got}, expected {expected}; give both sides "
                    f"the same {fix}"
                )


def fingerprint(model: Llama) -> str:
    """Tells models apart by the bytes of their weights."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def prefix_keys(prompt: Sequence[int], page_tokens: int) -> list[str]:
    """A key for each full page of a prompt; it depends on all tokens up to the page's end.

    The last token is never part of a full page: the model must still see it, to say what follows.
    """
    digest, keys = hashlib.sha256(), []
    for start in range(0, len(prompt) - page_tokens, page_tokens):
        digest.update(repr(list(prompt[start : start + page_tokens])).encode())
        keys.append(digest.hexdigest()[:24])
    return keys


class Found(IntEnum):
    """What a pool has under a key. Of several pools' answers the largest one counts."""

    MISS = 0
    """The pool never had it."""
    EVICTED = 1
    """The pool had it, and gave the page away."""
    STALE = 2
    """Other weights computed it."""
    HIT = 3


class PagePool:
    """Pages on one device. A page is free, held by one or more sequences, or kept for a later prompt."""

    def __init__(
        self, layout: PageFormat, pages: int, device: torch.device, storage: torch.Tensor | None = None
    ) -> None:
        """Takes the storage, or allocates it: as many pages of the layout's shape.

        Raises:
            ValueError: there is less than one page.
        """
        if pages < 1:
            raise ValueError(f"a pool has {pages} pages, expected 1 or more: pass a larger number")
        self.layout = layout
        self.pages = pages
        self.kv = torch.zeros(pages, *layout.shape, dtype=layout.dtype, device=device) if storage is None else storage
        self._free = deque(range(pages))
        self._holders: Counter[int] = Counter()
        self._kept: OrderedDict[str, int] = OrderedDict()  # the least recently used one first
        self._key_of: dict[int, str] = {}
        self._model_of: dict[int, str] = {}
        self._evicted: set[str] = set()

    @property
    def available(self) -> int:
        """Pages that ``take`` can give."""
        return len(self._free) + sum(not self._holders[page] for page in self._key_of)

    def take(self, count: int) -> list[int]:
        """Pages for new tokens; all of them, or none. Free pages go first, then those kept the longest unused.

        Raises:
            PoolExhausted: too few are available.
        """
        if count > self.available:
            raise PoolExhausted(
                f"{count} pages are asked for and {self.available} of {self.pages} are available: finish a sequence "
                "first, or make the pool larger"
            )
        while len(self._free) < count:
            victim = next(page for page in self._kept.values() if not self._holders[page])
            self._evicted.add(self._key_of[victim])
            self._forget(victim)
        taken = [self._free.popleft() for _ in range(count)]
        self.hold(taken)
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """One more sequence needs these pages."""
        self._holders.update(pages)

    def release(self, pages: Iterable[int]) -> None:
        """One sequence needs these pages no more.

        Raises:
            ValueError: nobody holds one of them.
        """
        for page in pages:
            if self._holders[page] < 1:
                raise ValueError(f"page {page} is released and nobody holds it: release each page once for each hold")
            self._holders[page] -= 1
            if not self._holders[page] and page not in self._key_of:
                self._free.append(page)

    def keep(self, key: str, page: int) -> None:
        """Later prompts may find this page, which is full. The first page under a key stays."""
        if key not in self._kept:
            self._kept[key] = page
            self._key_of[page] = key
            self._model_of[page] = self.layout.model
            self._evicted.discard(key)

    def find(self, key: str) -> tuple[Found, int, str]:
        """What there is under a key: whether it is of the pool's own model, the page, and whose model it is of."""
        if key not in self._kept:
            return (Found.EVICTED if key in self._evicted else Found.MISS), -1, ""
        page = self._kept[key]
        self._kept.move_to_end(key)
        model = self._model_of[page]
        return (Found.HIT if model == self.layout.model else Found.STALE), page, model

    def drop(self, key: str) -> None:
        """No later prompt finds the page under this key."""
        self._forget(self._kept[key])

    def change_model(self, model: str) -> None:
        """From now on other weights compute the pages; those that are kept are stale."""
        self.layout = dataclasses.replace(self.layout, model=model)

    def _forget(self, page: int) -> None:
        del self._kept[self._key_of.pop(page)]
        del self._model_of[page]
        if not self._holders[page]:
            self._free.append(page)
