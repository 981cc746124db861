"""Every request has the answer that its sequence has by itself, whatever else is served beside it, and in its time."""

from __future__ import annotations

import itertools
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.serving.programs.engine import Emitted, Engine, PagedEngine, Request, Served, Steps, Wall, serve
from suites.serving.programs.model import PagedLlama, llama
from suites.serving.programs.pages import PageFormat, PagePool, PromptTooLong
from suites.serving.reference import (
    CONFIG,
    DTYPE,
    answers_of,
    assert_answered,
    continuous_times,
    most_speedup,
    one_thread,
    static_times,
)
from suites.shared.strategies import seeds

pytestmark = pytest.mark.ranks(1)

Make = Callable[[Context], Engine]


@st.composite
def workloads(draw: st.DrawFn, *, most: int = 7, arrivals: int = 12) -> list[Request]:
    """Requests some of which begin alike."""
    tokens = st.integers(0, CONFIG.vocabulary - 1)
    common = draw(st.lists(tokens, min_size=12, max_size=12))
    requests = []
    for name in range(draw(st.integers(1, most))):
        prompt = common[: draw(st.integers(0, 12))] + draw(st.lists(tokens, min_size=1, max_size=6))
        arrives = draw(st.integers(0, arrivals))
        requests.append(Request(name, tuple(prompt), draw(st.integers(1, 7)), arrives))
    return requests


def paged(ctx: Context, *, seed: int, page_tokens: int, pages: int, **settings: Any) -> PagedEngine:
    """An engine with a pool of its own."""
    model = llama(CONFIG, seed=seed, dtype=DTYPE, device=ctx.device)
    pool = PagePool(PageFormat.of(model, CONFIG, page_tokens), pages, ctx.device)
    return PagedEngine(PagedLlama(model, pool), **settings)


def served_by(ctx: Context, requests: Sequence[Request], make: Make) -> dict[int, Served]:
    """What an engine makes of the requests."""
    with one_thread():
        return serve(make(ctx), requests)


def served_and_left(ctx: Context, requests: Sequence[Request], **settings: Any) -> tuple[dict[int, Served], int, int]:
    """Returns what an engine makes of the requests, how many steps it took and how many pages it reused.

    All pages are available again.
    """
    engine = paged(ctx, **settings)
    with one_thread():
        served = serve(engine, requests)
    assert engine.model.pool.available == engine.model.pool.pages, "pages are held after the last request"
    return served, engine.steps, engine.reused


def enough(requests: Sequence[Request], page_tokens: int) -> int:
    """Pages for all requests at once."""
    return sum(request.pages(page_tokens) for request in requests)


@pytest.mark.examples(0.4)
@given(
    requests=workloads(most=5),
    continuous=st.booleans(),
    slots=st.integers(1, 4),
    page_tokens=st.integers(1, 9),
    chunk=st.sampled_from([2, 5, 100]),
    seed=seeds,
)
def test_answers_and_their_times(
    ranks: Ranks, requests: list[Request], continuous: bool, slots: int, page_tokens: int, chunk: int, seed: int
) -> None:
    pool = {"seed": seed, "page_tokens": page_tokens, "pages": enough(requests, page_tokens)}
    engine = {"slots": slots, "continuous": continuous, "chunk": chunk, "reuse": False}
    ((served, _, _),) = ranks.run(served_and_left, requests, **pool, **engine)
    assert_answered(requests, answers_of(served), seed=seed)
    expected = (continuous_times if continuous else static_times)(requests, slots, chunk)
    assert {name: each.times for name, each in served.items()} == expected


@pytest.mark.examples(0.4)
@given(
    requests=workloads(),
    page_tokens=st.integers(1, 5),
    spare=st.integers(0, 3),
    chunk=st.sampled_from([2, 100]),
    seed=seeds,
)
def test_pages_are_scarce(
    ranks: Ranks, requests: list[Request], page_tokens: int, spare: int, chunk: int, seed: int
) -> None:
    """Requests wait for pages; pages of earlier prompts are given up, and none that somebody reads."""
    pages = max(request.pages(page_tokens) for request in requests) + spare
    settings = {"seed": seed, "page_tokens": page_tokens, "pages": pages, "slots": 4, "chunk": chunk}
    ((served, _, _),) = ranks.run(served_and_left, requests, **settings)
    assert_answered(requests, answers_of(served), seed=seed)


def test_a_request_waits_for_pages_beside_those_that_it_shares(ranks: Ranks) -> None:
    """Its prompt's two pages are kept and one is free, and it takes two more: none of the two that it reads.

    Three of five pages are left while the second request runs, so the third one begins when that has ended.
    """
    base, other = tuple(range(9)), (9, 8, 7, 6, 5)
    requests = [Request(0, base, 2), Request(1, other, 4, arrives=2), Request(2, (*base[:8], 3, 1, 4, 1), 3, arrives=3)]
    settings = {"seed": 1, "page_tokens": 4, "pages": 5, "slots": 2}
    ((served, _, reused),) = ranks.run(served_and_left, requests, **settings)
    assert_answered(requests, answers_of(served), seed=1)
    assert reused == 2
    assert served[2].times[0] == served[1].times[-1] + 1


def test_a_prompt_on_its_way_is_nobodys_prefix_yet(ranks: Ranks) -> None:
    """The model sees two tokens of a prompt in a step; meanwhile others with the same beginning come."""
    base = tuple(range(13))
    requests = [Request(name, (*base, name), 2, arrives=name) for name in range(4)]
    settings = {"seed": 1, "page_tokens": 4, "pages": enough(requests, 4), "slots": 4, "chunk": 2}
    ((served, _, reused),) = ranks.run(served_and_left, requests, **settings)
    assert_answered(requests, answers_of(served), seed=1)
    assert reused == 0


def reused_after_a_change(ctx: Context, requests: Sequence[Request], **settings: Any) -> list[int]:
    """How many pages each request has found, of which the model gets other weights before the second."""
    engine, found = paged(ctx, **settings), [0]
    for number, request in enumerate(requests):
        if number == 1:
            engine.model.pool.change_model("another")
        with one_thread():
            serve(engine, [request])
        found.append(engine.reused)
    return [after - before for before, after in itertools.pairwise(found)]


def test_a_prefix_of_former_weights_is_kept_anew(ranks: Ranks) -> None:
    """The second request can use none of the first one's three pages; the third request finds the second one's."""
    requests = [Request(name, (*range(13), name), 2) for name in range(3)]
    settings = {"seed": 1, "page_tokens": 4, "pages": 20, "slots": 1}
    assert ranks.run(reused_after_a_change, requests, **settings) == [[0, 0, 3]]


@pytest.mark.parametrize(("pages", "reused"), [(20, 6), (7, 6), (5, 5)])
def test_pages_of_a_prompt_are_used_again(ranks: Ranks, pages: int, reused: int) -> None:
    """Three pages, then the same and a token, then two of them, then others, then the first: if it is still there."""
    base, other = tuple(range(13)), tuple(range(15, 2, -1))
    prompts = [base, (*base, 3), base[:9], other, base[:7]]
    requests = [Request(name, prompt, 2, arrives=4 * name) for name, prompt in enumerate(prompts)]
    settings = {"seed": 1, "page_tokens": 4, "slots": 1}
    ((served, _, found),) = ranks.run(served_and_left, requests, pages=pages, **settings)
    assert_answered(requests, answers_of(served), seed=1)
    assert found == reused


def test_pages_in_use_are_not_given_away(ranks: Ranks) -> None:
    """A long answer goes on while other requests come and go, whose pages take the place of one another's."""
    prompts = [tuple(range(9)), *((name, 7, name, 7, name) for name in range(4))]
    requests = [Request(name, prompt, 2 if name else 8, arrives=name) for name, prompt in enumerate(prompts)]
    ((served, _, _),) = ranks.run(served_and_left, requests, seed=1, page_tokens=4, pages=6, slots=2)
    assert_answered(requests, answers_of(served), seed=1)


def test_continuous_batching_comes_near_its_bound(ranks: Ranks) -> None:
    """With a queue that is never empty, and lengths whose longest of 8 is 2.7 times the mean."""
    drawn = random.Random(1)
    lengths = [1 + int(drawn.expovariate(1 / 6)) for _ in range(64)]
    requests = [Request(name, (name % 4,), length) for name, length in enumerate(lengths)]
    steps = {}
    for continuous in (False, True):
        settings = {"seed": 1, "page_tokens": 4, "pages": enough(requests, 4), "slots": 8}
        ((served, steps[continuous], _),) = ranks.run(served_and_left, requests, continuous=continuous, **settings)
        assert_answered(requests, answers_of(served), seed=1)
    bound = most_speedup(lengths, 8)
    assert 0.7 * bound <= steps[False] / steps[True] <= bound


class MyEngine:
    """Somebody's own engine: one request after the other, and no pages at all."""

    def __init__(self, ctx: Context) -> None:
        self._model = llama(CONFIG, seed=1, dtype=DTYPE, device=ctx.device)
        self._device = ctx.device
        self._waiting: deque[tuple[Request, list[int]]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def submit(self, request: Request) -> None:
        self._waiting.append((request, []))

    def step(self) -> list[Emitted]:
        request, answer = self._waiting[0]
        sequence = torch.tensor([[*request.prompt, *answer]], device=self._device)
        answer.append(int(self._model(sequence)[0, -1].argmax()))
        if len(answer) == request.new_tokens:
            self._waiting.popleft()
        return [(request.name, answer[-1])]


@given(requests=workloads(most=4))
@pytest.mark.examples(0.2)
def test_your_own_engine(ranks: Ranks, requests: list[Request]) -> None:
    (served,) = ranks.run(served_by, requests, MyEngine)
    assert_answered(requests, answers_of(served), seed=1)


def test_a_prompt_longer_than_the_pool_is_refused(ranks: Ranks) -> None:
    def program(ctx: Context) -> dict[int, Served]:
        engine = paged(ctx, seed=1, page_tokens=4, pages=3, slots=2)
        with pytest.raises(PromptTooLong, match=message):
            engine.submit(Request(7, tuple([1] * 11), 3))
        return serve(engine, [fits])  # the engine goes on

    message = re.escape(
        "request 7 has 11 tokens and asks for 3: that needs 4 pages of 4 tokens, and the pool has 3; make the pool "
        "larger, or the prompt shorter"
    )
    fits = Request(8, tuple([1] * 10), 3)
    (served,) = ranks.run(program)
    assert_answered([fits], answers_of(served), seed=1)


@pytest.mark.parametrize(("prompt", "new_tokens"), [((), 1), ((1, 2), 0)])
def test_a_request_without_an_answer_is_refused(prompt: tuple[int, ...], new_tokens: int) -> None:
    message = f"request 3 has {len(prompt)} tokens and asks for {new_tokens}, expected 1 or more of both"
    with pytest.raises(ValueError, match=message):
        Request(3, prompt, new_tokens)


def test_clocks() -> None:
    """A clock of steps skips what is idle, and never goes back; the wall's clock waits."""
    steps = Steps()
    steps.stepped()
    steps.wait(5.0)
    steps.wait(2.0)
    assert steps.now() == 5.0
    wall = Wall()
    wall.wait(0.01)
    assert wall.now() >= 0.01
    wall.wait(0.0)


class OneAtATime:
    """An engine that gives each request one token, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def submit(self, request: Request) -> None:
        self._waiting.append(request.name)

    def step(self) -> list[Emitted]:
        return [(self._waiting.popleft(), 1)]


def test_who_arrives_while_a_step_runs_waits_from_then_on() -> None:
    """The second comes in the middle of the first step, the third while nothing is to be done."""
    requests = [Request(name, (1,), 1, arrives=arrives) for name, arrives in enumerate([0.0, 0.5, 4.25])]
    served = serve(OneAtATime(), requests)
    assert [one.times for one in served.values()] == [[1.0], [2.0], [5.25]]
    assert [(one.latency, one.to_first_token) for one in served.values()] == [(1.0, 1.0), (1.5, 1.5), (1.0, 1.0)]


def test_what_is_told_of_a_request() -> None:
    served = Served(2.0, [5, 6, 7], [3.0, 7.0, 8.0])
    assert (served.latency, served.to_first_token, served.between_tokens) == (6.0, 1.0, [4.0, 1.0])
