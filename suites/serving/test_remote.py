"""A prefix that another rank has computed gives the same answer, and each page is counted where it was found."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.serving.programs.disaggregated import Setting
from suites.serving.programs.engine import Request
from suites.serving.programs.pages import ForeignPages, PromptTooLong
from suites.serving.programs.remote import Reused, Turn, take_turns
from suites.serving.reference import CONFIG, Caches, assert_answered
from suites.serving.test_transfer import WAYS

PREFIX = (3, 1, 4, 1, 5, 9, 2, 6)
"""Two pages."""
OTHER = (2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5)
"""Three pages."""
SETTING = Setting(CONFIG, seed=1, page_tokens=4, pages=6)


def ask(rank: int, name: int, prompt: tuple[int, ...]) -> Turn:
    """A rank serves a request for two tokens."""
    return Turn(rank, Request(name, prompt, 2))


def check(ranks: Ranks, turns: list[Turn], setting: Setting) -> list[Reused]:
    """All answers are those of one sequence by itself, with the weights that its rank had."""
    parts = ranks.run(take_turns, turns=turns, setting=setting)
    seeds = [setting.seed] * ranks.world_size
    for turn in turns:
        if turn.request is None:
            seeds[turn.rank] = turn.seed
        else:
            answer = {turn.request.name: parts[turn.rank].answers[turn.request.name]}
            assert_answered([turn.request], answer, seed=seeds[turn.rank])
    return parts


def counted(part: Reused) -> dict[str, int]:
    """What was counted at all."""
    return {name: count for name, count in part.counts.items() if count}


FIRST, AGAIN = ask(0, 0, (*PREFIX, 7)), ask(1, 1, (*PREFIX, 5))
OUTCOMES: dict[str, tuple[list[Turn], dict[str, int], int]] = {
    "hit": ([FIRST, AGAIN], {"fetched": 2}, 1),
    "hit in scattered pages": (
        # The last one sees the first page alone: two pages in each other's place look alike to all that see both.
        [ask(0, 2, (9, 9, 9, 9, 9)), ask(0, 3, (8, 8, 8, 8, 8)), FIRST, AGAIN, ask(1, 4, (*PREFIX[:4], 0, 0))],
        {"fetched": 2, "local": 1},
        3,
    ),
    "hit at home": ([FIRST, AGAIN, ask(1, 2, (*PREFIX, 6))], {"fetched": 2, "local": 2}, 2),
    "miss": ([FIRST, ask(1, 1, (9, *PREFIX))], {"miss": 1}, 9),
    "miss behind a hit": ([FIRST, ask(1, 1, (*PREFIX[:4], 0, 0, 0, 0, 7))], {"fetched": 1, "miss": 1}, 5),
    "evicted": ([FIRST, ask(0, 2, (*OTHER, 7)), AGAIN], {"evicted": 1}, 9),
    "stale": ([FIRST, Turn(1, seed=2), AGAIN], {"stale": 1}, 9),
    "computed before the weights changed": ([FIRST, Turn(0, seed=2), AGAIN], {"fetched": 2}, 1),
    "stale at home": ([ask(1, 0, (*PREFIX, 7)), Turn(1, seed=2), AGAIN], {"miss": 1, "stale": 1}, 18),
    "hit of the new weights": (
        [ask(1, 3, (*PREFIX, 7)), Turn(1, seed=2), Turn(0, seed=2), FIRST, AGAIN],
        {"miss": 1, "fetched": 2},
        10,
    ),
}
"""What is done, what rank 1 counts of it, and how many tokens of prompts it computes."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("turns", "counts", "computed"), OUTCOMES.values(), ids=OUTCOMES)
def test_each_outcome(ranks: Ranks, way: str, turns: list[Turn], counts: dict[str, int], computed: int) -> None:
    """What rank 1 finds of a prefix that rank 0 or rank 1 has computed."""
    pages = 5  # two prefixes of two and of three pages do not stay together with the page behind them
    parts = check(ranks, turns, Setting(CONFIG, seed=1, page_tokens=4, pages=pages, way=way))
    assert counted(parts[1]) == counts
    assert parts[1].computed == computed


@st.composite
def games(draw: st.DrawFn, *, ranks: int) -> list[Turn]:
    """Requests that begin alike, and now and then other weights."""
    turns = []
    for name in range(draw(st.integers(1, 8))):
        rank = draw(st.integers(0, ranks - 1))
        if draw(st.integers(0, 5)) == 0:
            turns.append(Turn(rank, seed=draw(st.integers(1, 2))))
            continue
        base = draw(st.sampled_from([PREFIX, OTHER]))
        prompt = (*base[: draw(st.integers(0, len(base)))], draw(st.integers(0, 1)))
        turns.append(Turn(rank, Request(name, prompt, draw(st.integers(1, 3)))))
    return turns


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("way", WAYS)
@given(data=st.data(), page_tokens=st.integers(1, 4), spare=st.integers(0, 5))
def test_games(ranks: Ranks, data: st.DataObject, way: str, page_tokens: int, spare: int) -> None:
    turns = data.draw(games(ranks=ranks.world_size))
    needed = [turn.request.pages(page_tokens) for turn in turns if turn.request is not None]
    pages = max(needed, default=1) + spare
    parts = check(ranks, turns, Setting(CONFIG, seed=1, page_tokens=page_tokens, pages=pages, way=way))
    caches = Caches(ranks.world_size, pages=pages, page_tokens=page_tokens, seed=1)
    for turn in turns:
        if turn.request is None:
            caches.seeds[turn.rank] = turn.seed
        else:
            caches.serve(turn.rank, turn.request)
    for rank, (part, counts) in enumerate(zip(parts, caches.counts, strict=True)):
        assert Counter(counted(part)) == +counts, f"rank {rank}"


@pytest.mark.ranks(2)
def test_pages_of_another_dtype_are_refused(ranks: Ranks) -> None:
    """Other weights are an answer, another format is a mistake."""
    message = "pages of rank 1: pages of another dtype were offered: got torch.float32, expected torch.float64;"
    others = {1: dataclasses.replace(SETTING, dtype=torch.float32)}
    with pytest.raises(ForeignPages, match=message):
        ranks.run(take_turns, turns=[ask(0, 1, (*PREFIX, 5))], setting=SETTING, others=others)


@pytest.mark.ranks(1)
def test_a_prompt_longer_than_the_pool_is_refused(ranks: Ranks) -> None:
    turns = [Turn(0, Request(9, tuple([1] * 30), 1))]
    with pytest.raises(PromptTooLong, match="request 9 has 30 tokens and asks for 1: that needs 8 pages"):
        ranks.run(take_turns, turns=turns, setting=SETTING)
