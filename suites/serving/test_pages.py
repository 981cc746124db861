"""No page is given to two sequences, the page that was used the longest ago goes first, and formats are compared."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suites.serving.programs.engine import found_pages
from suites.serving.programs.model import llama
from suites.serving.programs.pages import (
    ForeignPages,
    Found,
    PageFormat,
    PagePool,
    PoolExhausted,
    fingerprint,
    prefix_keys,
)
from suites.shared.llama import Config, Llama

LAYOUT = PageFormat((1, 2, 4, 1, 2), torch.float32, "a model")
CPU = torch.device("cpu")


def pool_of(pages: int) -> PagePool:
    return PagePool(LAYOUT, pages, CPU)


def tiny(seed: int = 1, **sizes: int) -> Llama:
    return llama(Config(**sizes), seed=seed, dtype=torch.float32, device=CPU)


@given(
    pages=st.integers(1, 6),
    operations=st.lists(
        st.tuples(st.sampled_from(["take", "release", "keep", "share"]), st.integers(0, 5)), max_size=30
    ),
)
def test_a_page_has_one_owner(pages: int, operations: list[tuple[str, int]]) -> None:
    """Holders, keys and the order of use, written down anew beside the pool."""
    pool = pool_of(pages)
    held: Counter[int] = Counter()
    kept: list[tuple[str, int]] = []  # the least recently used first
    for number, (what, index) in enumerate(operations):
        holding = sorted(held.elements())
        unused = pages - len(set(held) | {page for _, page in kept})
        evictable = [(key, page) for key, page in kept if page not in held]
        assert pool.available == unused + len(evictable)
        if what == "take" and index + 1 > pool.available:
            with pytest.raises(PoolExhausted):
                pool.take(index + 1)
        elif what == "take":
            taken = pool.take(index + 1)
            given_up = evictable[: max(0, index + 1 - unused)]
            for key, page in given_up:
                assert pool.find(key) == (Found.EVICTED, -1, "")
                kept.remove((key, page))
            assert len(set(taken)) == index + 1, f"a page was given twice: {taken}"
            assert not set(taken) & set(held), "a page that is held was given"
            assert not set(taken) & {page for _, page in kept}, "a page that is kept was given"
            held.update(taken)
        elif what == "release" and holding:
            page = holding[index % len(holding)]
            pool.release([page])
            held[page] -= 1
            held += Counter()
        elif what == "keep" and holding:
            page = holding[index % len(holding)]
            if page not in [each for _, each in kept]:
                pool.keep(str(number), page)
                kept.append((str(number), page))
        elif what == "share" and kept:
            key, page = kept.pop(index % len(kept))
            assert pool.find(key) == (Found.HIT, page, "a model")
            pool.hold([page])
            held[page] += 1
            kept.append((key, page))


def test_the_page_that_was_not_used_the_longest_goes_first() -> None:
    pool = pool_of(5)
    pages = pool.take(4)
    for key, page in zip("abcd", pages, strict=True):
        pool.keep(key, page)
    pool.release(pages[1:])  # the first one is still in use
    pool.find("b")
    assert sorted(pool.take(3)) == sorted([4, pages[2], pages[3]])
    assert [pool.find(key)[0] for key in "abcd"] == [Found.HIT, Found.HIT, Found.EVICTED, Found.EVICTED]
    assert pool.available == 1


def test_a_prefix_ends_before_its_first_page_that_is_gone() -> None:
    """A later page that is there still would stand in the place of the one that is gone."""
    pool = pool_of(3)
    pages = dict(zip("abc", pool.take(3), strict=True))
    for key in "ac":
        pool.keep(key, pages[key])
    assert found_pages(pool, ["a", "b", "c"]) == [pages["a"]]


def test_nothing_is_found_behind_a_page_of_former_weights() -> None:
    pool = pool_of(4)
    pages = dict(zip("acdb", pool.take(4), strict=True))
    for key in "acd":
        pool.keep(key, pages[key])
    pool.change_model("another")
    pool.keep("b", pages["b"])
    assert found_pages(pool, ["a", "b", "c", "missing", "d"]) == []
    assert [pool.find(key)[0] for key in "abcd"] == [Found.MISS, Found.HIT, Found.MISS, Found.MISS]


def test_the_first_page_under_a_key_stays() -> None:
    pool = pool_of(2)
    first, second = pool.take(2)
    pool.keep("key", first)
    pool.keep("key", second)
    pool.release([first, second])
    assert pool.find("key")[1] == first
    assert pool.available == 2


def test_pages_of_former_weights_are_stale() -> None:
    pool = pool_of(2)
    (page,) = pool.take(1)
    pool.keep("key", page)
    pool.change_model("another")
    assert pool.find("key") == (Found.STALE, page, "a model")
    pool.drop("key")
    assert pool.find("key") == (Found.MISS, -1, "")
    assert pool.available == 1  # it is still held
    pool.release([page])
    assert pool.available == 2


def test_a_pool_with_too_few_pages() -> None:
    pool = pool_of(3)
    pool.take(2)
    message = "2 pages are asked for and 1 of 3 are available: finish a sequence first, or make the pool larger"
    with pytest.raises(PoolExhausted, match=message):
        pool.take(2)
    assert len(pool.take(1)) == 1


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool has 0 pages, expected 1 or more"):
        pool_of(0)


def test_a_page_that_nobody_holds_is_not_released() -> None:
    pool = pool_of(1)
    (page,) = pool.take(1)
    pool.release([page])
    with pytest.raises(ValueError, match="page 0 is released and nobody holds it"):
        pool.release([page])


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        (
            PageFormat((1, 2, 8, 1, 2), torch.float32, "a model"),
            "here: pages of another shape were offered: got (1, 2, 8, 1, 2), expected (1, 2, 4, 1, 2); give both sides "
            "the same page size",
        ),
        (
            PageFormat((1, 2, 4, 1, 2), torch.bfloat16, "a model"),
            "here: pages of another dtype were offered: got torch.bfloat16, expected torch.float32; give both sides "
            "the same dtype",
        ),
        (
            PageFormat((1, 2, 4, 1, 2), torch.float32, "another"),
            "here: pages of another model were offered: got another, expected a model; give both sides the same "
            "weights",
        ),
    ],
)
def test_pages_of_another_format_are_refused(offered: PageFormat, message: str) -> None:
    LAYOUT.require(LAYOUT, "here")
    with pytest.raises(ForeignPages, match=re.escape(message)):
        LAYOUT.require(offered, "here")


def test_a_fingerprint_is_of_all_weights() -> None:
    model = tiny()
    same = fingerprint(model)
    assert fingerprint(tiny()) == same
    assert fingerprint(tiny(seed=2)) != same
    for weight in model.parameters():
        value = weight.view(-1)[-1].item()
        weight.view(-1)[-1] += 1
        assert fingerprint(model) != same
        weight.view(-1)[-1] = value
    assert fingerprint(model) == same


def test_a_format_has_the_sizes_of_a_page() -> None:
    layout = PageFormat.of(tiny(layers=3, kv_heads=1, head_dim=2), Config(3, 4, 1, 2), 5)
    assert (layout.shape, layout.page_tokens, layout.dtype) == ((3, 2, 5, 1, 2), 5, torch.float32)


def test_keys_are_of_full_pages_and_all_that_comes_before() -> None:
    assert [len(prefix_keys(range(length), 4)) for length in (1, 4, 5, 8, 9, 12, 13)] == [0, 0, 1, 1, 2, 2, 3]
    one, other = prefix_keys([1, 2, 3, 4, 5], 2), prefix_keys([9, 2, 3, 4, 5], 2)
    assert not set(one) & set(other)
    assert prefix_keys([1, 2, 3, 4, 7, 8], 2)[:2] == one
    assert len(set(prefix_keys([1] * 9, 2))) == 4
    assert prefix_keys([1, 11, 0], 2) != prefix_keys([11, 1, 0], 2)
