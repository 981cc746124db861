"""Answers are those of one device, though prompts are computed on one rank and decoded on another."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.serving.programs.disaggregated import Part, Setting, decode, places, serve_apart, tokens_of
from suites.serving.programs.engine import PagedEngine, Request, Served, Wall
from suites.serving.programs.model import PagedLlama, llama
from suites.serving.programs.pages import ForeignPages, PageFormat, PagePool, PromptTooLong
from suites.serving.programs.transfer import Mailbox, Note, format_note
from suites.serving.reference import CONFIG, DTYPE, assert_answered
from suites.serving.test_correctness import workloads
from suites.serving.test_transfer import WAYS
from suites.shared.strategies import seeds

SETTING = Setting(CONFIG, seed=1, page_tokens=4, pages=8)


class Offers(Mailbox):
    """Every rank has offered all that it has, and each transfer is seen late; notes what the decoder does."""

    def __init__(self, offers: dict[int, list[Note]]) -> None:
        self.offers, self.done, self.asked = offers, list[str](), Counter[int]()

    def waiting(self, source: int, subject: str) -> bool:
        return bool(self.offers[source])

    def take(self, source: int, subject: str) -> Note:
        return self.offers[source].pop(0)

    def post(self, to: int, subject: str, note: Note) -> None:
        self.done.append(f"{subject} to {to}")

    def send(self, pages: Sequence[int], there: Sequence[int], to: int) -> None:
        raise AssertionError("who decodes sends nothing")

    def ready(self, source: int) -> bool:
        self.asked[source] += 1
        return not self.asked[source] % 3

    def receive(self, pages: Sequence[int], source: int) -> None:
        self.done.append(f"{len(pages)} pages of {source}")


def decoded(sources: list[int], *, slots: int) -> list[str]:
    """What is done of prompts of these sources, which are all on offer from the start."""
    model = llama(CONFIG, seed=1, dtype=DTYPE, device=torch.device("cpu"))
    pool = PagePool(PageFormat.of(model, CONFIG, 4), 8, torch.device("cpu"))
    engine = PagedEngine(PagedLlama(model, pool), slots=slots)
    requests = {name: Request(name, (1, 2, 3 + name), 3) for name in range(len(sources))}
    offers: dict[int, list[Note]] = {source: [] for source in sources}
    for name, source in enumerate(sources):
        note = {"end": False, "name": name, "format": format_note(pool.layout), "first": 1, "pages": 1}
        offers[source].append(note)
    for offered in offers.values():
        offered.append({"end": True})
    mailbox = Offers(offers)
    ctx = Context(rank=2, world_size=3, backend="gloo", device=torch.device("cpu"), seed=1)
    part = Part(ctx, engine, mailbox, mailbox, {name: Served(0.0) for name in requests})
    decode(part, requests, set(sources))
    assert [len(served.answer) for served in part.served.values()] == [2, 2]
    return mailbox.done


def test_a_rank_that_computes_prompts_has_one_on_its_way() -> None:
    """Its next one waits until the pages of the first one are there, though there is room for both."""
    assert decoded([0, 0], slots=2) == ["reply to 0", "1 pages of 0", "reply to 0", "1 pages of 0"]


def test_a_prompt_on_its_way_has_a_slot() -> None:
    """A second rank's prompt waits for it, from the offer on."""
    assert decoded([0, 1], slots=1) == ["reply to 0", "1 pages of 0", "reply to 1", "1 pages of 1"]
    assert decoded([0, 1], slots=2) == ["reply to 0", "reply to 1", "1 pages of 0", "1 pages of 1"]


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.examples(0.8)
@given(
    data=st.data(),
    requests=workloads(most=6, arrivals=0),
    page_tokens=st.integers(1, 6),
    spare=st.integers(0, 8),
    slots=st.integers(1, 3),
    seed=seeds,
)
def test_answers(
    ranks: Ranks,
    data: st.DataObject,
    way: str,
    requests: list[Request],
    page_tokens: int,
    spare: int,
    slots: int,
    seed: int,
) -> None:
    """Pools may be so small that prompts wait for pages of the rank that decodes."""
    prefills = data.draw(st.integers(1, ranks.world_size - 1))
    pages = max(request.pages(page_tokens) for request in requests) + spare
    setting = Setting(CONFIG, seed, page_tokens, pages, slots=slots, way=way)
    parts = ranks.run(serve_apart, requests=requests, prefills=prefills, setting=setting)
    assert_answered(requests, tokens_of(parts), seed=seed)
    for number, request in enumerate(requests):
        first, rest = places(number, ranks.world_size, prefills)
        got = {rank: len(part[request.name].answer) for rank, part in enumerate(parts) if request.name in part}
        assert got == {first: 1, rest: request.new_tokens - 1}, f"request {request.name}: tokens by rank {got}"


@pytest.mark.ranks(2)
def test_arrivals(ranks: Ranks) -> None:
    """No token comes before its request, and tokens come one after the other."""
    requests = [Request(name, (1, 2, 3 + name), 4, arrives=0.02 * name) for name in range(3)]
    computing, decoding = ranks.run(serve_apart, requests=requests, prefills=1, setting=SETTING)
    assert_answered(requests, tokens_of([computing, decoding]), seed=1)
    for request in requests:
        times = computing[request.name].times + decoding[request.name].times
        assert request.arrives <= times[0]
        assert times[1:] == sorted(times[1:])


SLOW = 0.05
"""Seconds, so that a clock that does not wait for the slow rank is sure to start before it is ready."""


def started_when_ready(ctx: Context, *, requests: list[Request], slow: int) -> bool:
    """Return whether all ranks had built their models when the rank's last clock started."""
    build, start, found = PagedEngine.__init__, Wall.__init__, list[bool]()
    keys = [f"{slow} is slow, rank {rank} is ready" for rank in range(ctx.world_size)]

    def slowly(*args: Any, **kwargs: Any) -> None:
        if ctx.rank == slow:
            time.sleep(SLOW)
        build(*args, **kwargs)
        ctx.store.set(keys[ctx.rank], "yes")

    def starts(wall: Wall) -> None:
        found.append(ctx.store.check(keys))
        start(wall)

    with mock.patch.object(PagedEngine, "__init__", slowly), mock.patch.object(Wall, "__init__", starts):
        served = serve_apart(ctx, requests=requests, prefills=1, setting=SETTING)
    assert all(answer.times[0] > 0 for answer in served.values()), f"rank {ctx.rank}"
    return found[-1]


@pytest.mark.ranks(2)
def test_no_time_passes_while_ranks_build_their_models(ranks: Ranks) -> None:
    """Whichever is slow to start, requests arrive when all are ready: no answer is late by it on any rank."""
    requests = [Request(name, (1, 2, 3 + name), 3) for name in range(2)]
    for slow in range(ranks.world_size):
        found = ranks.run(started_when_ready, requests=requests, slow=slow)
        assert found == [True] * ranks.world_size, f"rank {slow} is slow"


def fingerprint_of(seed: int) -> str:
    return PageFormat.of(llama(CONFIG, seed=seed, dtype=DTYPE, device=torch.device("cpu")), CONFIG, 4).model


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 2}, f"another model were offered: got {fingerprint_of(1)}, expected {fingerprint_of(2)};"),
        ({"dtype": torch.float32}, "another dtype were offered: got torch.float64, expected torch.float32;"),
        ({"page_tokens": 3}, "another shape were offered: got (2, 2, 4, 2, 4), expected (2, 2, 3, 2, 4);"),
    ],
    ids=["model", "dtype", "shape"],
)
def test_pages_of_another_model_are_refused(ranks: Ranks, other: dict[str, object], message: str) -> None:
    decoding = dataclasses.replace(SETTING, **other)  # type: ignore[arg-type]
    with pytest.raises(ForeignPages, match=re.escape(f"request 5 of rank 0: pages of {message}")):
        ranks.run(serve_apart, requests=[Request(5, (1, 2), 3)], prefills=1, setting=SETTING, decoding=decoding)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("computing", "decoding", "message"),
    [
        (2, 8, "request 5 has 9 tokens and asks for 1: that needs 3 pages of 4 tokens, and the pool has 2"),
        (8, 3, "request 5 has 9 tokens and asks for 5: that needs 4 pages of 4 tokens, and the pool has 3"),
    ],
    ids=["computing", "decoding"],
)
def test_a_pool_with_too_few_pages(ranks: Ranks, computing: int, decoding: int, message: str) -> None:
    setting, other = (dataclasses.replace(SETTING, pages=pages) for pages in (computing, decoding))
    requests = [Request(5, tuple([1] * 9), 5)]
    with pytest.raises(PromptTooLong, match=message):
        ranks.run(serve_apart, requests=requests, prefills=1, setting=setting, decoding=other)


@pytest.mark.parametrize("prefills", [0, 3])
def test_each_part_needs_a_rank(prefills: int) -> None:
    with pytest.raises(ValueError, match=f"{prefills} of 3 ranks compute prompts, expected 1 to 2"):
        places(0, 3, prefills)
