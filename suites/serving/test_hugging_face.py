"""Continuous batching of ``transformers`` gives the tokens of its ``generate``, and of the suites' own model."""

from __future__ import annotations

import importlib.metadata
import random
import re

import pytest

from pytest_gpuperf import Context, Ranks
from suites.serving.programs import hugging_face
from suites.serving.programs.engine import Request, Served, serve
from suites.serving.programs.hugging_face import ContinuousTransformers, EngineStopped, StaticTransformers
from suites.serving.reference import CONFIG, DTYPE, answers_of, assert_answered, one_thread

LACKING = hugging_face.lacking()
pytestmark = [pytest.mark.ranks(1), pytest.mark.skipif(LACKING is not None, reason=LACKING or "")]


def drawn(seed: int, number: int) -> list[Request]:
    """Fixed seeds: transformers' norms are of float32, so that two tokens may be as good in one draw of a million."""
    generator = random.Random(seed)
    prompts = [tuple(generator.choices(range(CONFIG.vocabulary), k=generator.randint(1, 14))) for _ in range(number)]
    return [
        Request(name, prompt, generator.randint(1, 8), generator.randint(0, 9)) for name, prompt in enumerate(prompts)
    ]


def both(ctx: Context, requests: list[Request], page_tokens: int, pages: int) -> tuple[dict[int, Served], ...]:
    """What continuous batching makes of the requests, and static batching by ``generate``."""
    model = hugging_face.transformers_llama(CONFIG, seed=1, dtype=DTYPE, device=ctx.device)
    with hugging_face.continuous(model, page_tokens=page_tokens, pages=pages, batch_tokens=16, slots=3) as engine:
        continuous = serve(engine, requests)
        assert not engine.busy
    with one_thread():
        return continuous, serve(StaticTransformers(model, slots=3), requests)


@pytest.mark.parametrize(("seed", "page_tokens", "pages"), [(1, 4, 40), (2, 4, 6), (3, 16, 3)])
def test_tokens(ranks: Ranks, seed: int, page_tokens: int, pages: int) -> None:
    """With pages for all at once, and with so few that requests wait."""
    requests = drawn(seed, 6)
    ((continuous, static),) = ranks.run(both, requests, page_tokens, pages)
    assert answers_of(continuous) == answers_of(static)
    assert_answered(requests, answers_of(continuous), seed=1)


def test_a_prompt_longer_than_the_pool_is_an_error(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        model = hugging_face.transformers_llama(CONFIG, seed=1, dtype=DTYPE, device=ctx.device)
        with hugging_face.continuous(model, page_tokens=4, pages=3, batch_tokens=16, slots=3) as engine:
            serve(engine, [Request(5, tuple([1] * 30), 4)])

    with pytest.raises(EngineStopped, match=r"transformers failed at request 5: .+"):
        ranks.run(program)


class Silent:
    """A manager whose thread has ended, or which takes no more requests."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes

    def add_request(self, tokens: list[int], *, request_id: str, **kwargs: object) -> str | None:
        return request_id if self._takes else None

    def get_result(self, timeout: float) -> None:
        return None

    def is_running(self) -> bool:
        return False


def test_an_engine_that_takes_no_requests_is_named() -> None:
    with pytest.raises(EngineStopped, match="transformers refuses request 4: its thread is stopping"):
        ContinuousTransformers(Silent(takes=False)).submit(Request(4, (1,), 1))


def test_an_engine_that_gives_no_tokens_is_named() -> None:
    engine = ContinuousTransformers(Silent(takes=True))
    engine.submit(Request(4, (1,), 1))
    with pytest.raises(EngineStopped, match=r"transformers gave no token for \['4'\]: its thread has ended"):
        engine.step()


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (None, r"transformers is not installed: pip install 'pytest-gpuperf\[serving\]'"),
        (
            "5.17.0",
            r"transformers 5\.17\.0 is installed, and its continuous batching is used from 5\.23 on: pip install .+",
        ),
        ("5.23.0", None),
        ("6.0.0.dev0", None),
    ],
)
def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch, version: str | None, told: str | None) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    found = hugging_face.lacking()
    assert found is None if told is None else re.fullmatch(told, found or "")
