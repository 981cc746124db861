"""Engines that serve requests: continuous batching on pages, static batching for comparison, and how both are driven.

Continuous batching (Orca, Yu et al., 2022, section 3): after each step a finished sequence leaves the batch, and a
waiting one takes its place. Static batching waits until all sequences of a batch have finished.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from suites.serving.programs.model import PagedLlama, Span
from suites.serving.programs.pages import Found, PagePool, PromptTooLong, prefix_keys

Emitted = tuple[int, int]
"""A request's name, and the next token of its answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for: the likeliest continuation of a prompt."""

    name: int
    prompt: tuple[int, ...]
    new_tokens: int
    arrives: float = 0.0
    """When, on the clock of ``serve``."""

    def __post_init__(self) -> None:
        """Refuses what cannot be answered.

        Raises:
            ValueError: the prompt is empty, or no token is asked for.
        """
        if not self.prompt or self.new_tokens < 1:
            raise ValueError(
                f"request {self.name} has {len(self.prompt)} tokens and asks for {self.new_tokens}, expected 1 or more "
                "of both: leave the request out"
            )

    def pages(self, page_tokens: int) -> int:
        """How many pages it takes. The last token of the answer is never read, so it needs no room."""
        return -(-(len(self.prompt) + self.new_tokens - 1) // page_tokens)


class Engine(Protocol):
    """What serves requests."""

    @property
    def busy(self) -> bool:
        """Whether a request has no whole answer yet."""
        ...

    def submit(self, request: Request) -> None:
        """Takes a request."""
        ...

    def step(self) -> list[Emitted]:
        """Goes on, and returns the tokens that are new; several of one request in their order."""
        ...


@dataclass(slots=True)
class Running:
    """A request that has pages."""

    request: Request
    pages: list[int]
    seen: int = 0
    """How many tokens, the first ones, have their keys and values in the pages."""
    answer: list[int] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether the answer is whole."""
        return len(self.answer) == self.request.new_tokens

    def next(self, most: int) -> Span:
        """The tokens that the model sees next: a part of the prompt, or the answer's last token."""
        tokens = self.request.prompt + tuple(self.answer)
        return Span(self.pages, self.seen, tokens[self.seen : self.seen + most])


def require_room(request: Request, pool: PagePool) -> None:
    """Refuses a request that the pool can never serve.

    Raises:
        PromptTooLong: it needs more pages than the pool has.
    """
    needed = request.pages(pool.layout.page_tokens)
    if needed > pool.pages:
        raise PromptTooLong(
            f"request {request.name} has {len(request.prompt)} tokens and asks for {request.new_tokens}: that needs "
            f"{needed} pages of {pool.layout.page_tokens} tokens, and the pool has {pool.pages}; make the pool larger, "
            "or the prompt shorter"
        )


class PagedEngine:
    """Serves as many requests at once as there are slots and pages, the first come first."""

    def __init__(
        self, model: PagedLlama, *, slots: int, continuous: bool = True, chunk: int = 1 << 30, reuse: bool = True
    ) -> None:
        """Takes a model with its pool.

        Args:
            model: the model.
            slots: how many sequences are decoded at once.
            continuous: whether a slot is filled again at once; otherwise when all are empty.
            chunk: how many tokens of a prompt the model sees in one step.
            reuse: whether full pages of a prompt serve later prompts that begin alike.
        """
        self.model = model
        self.steps = 0
        """Steps that were taken."""
        self.reused = 0
        """Pages that were found full."""
        self._slots, self._continuous, self._chunk, self._reuse = slots, continuous, chunk, reuse
        self._waiting: deque[Request] = deque()
        self._running: list[Running] = []

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def vacant(self) -> int:
        """Slots without a sequence."""
        return self._slots - len(self._running)

    def submit(self, request: Request) -> None:
        """Takes a request, which waits for a slot and for pages.

        Raises:
            PromptTooLong: it needs more pages than the pool has.
        """
        require_room(request, self.model.pool)
        self._waiting.append(request)

    def step(self) -> list[Emitted]:
        """Fills slots, and lets the model see the next tokens of all running sequences, in one forward."""
        self.steps += 1
        vacant = self.vacant if self._continuous or not self._running else 0
        while vacant and self._waiting and (running := self.start(self._waiting[0])) is not None:
            self._running.append(running)
            self._waiting.popleft()
            vacant -= 1
        emitted = self.advance(self._running)
        for running in self._running:
            if running.finished:
                self.model.pool.release(running.pages)
        self._running = [running for running in self._running if not running.finished]
        return emitted

    def start(self, request: Request) -> Running | None:
        """Gives a request its pages, those of a known prefix among them; None if too few are available."""
        pool, page_tokens = self.model.pool, self.model.pool.layout.page_tokens
        shared = found_pages(pool, prefix_keys(request.prompt, page_tokens)) if self._reuse else []
        pool.hold(shared)
        wanted = request.pages(page_tokens) - len(shared)
        if wanted > pool.available:
            pool.release(shared)
            return None
        self.reused += len(shared)
        return Running(request, shared + pool.take(wanted), len(shared) * page_tokens)

    def advance(self, sequences: Sequence[Running]) -> list[Emitted]:
        """One forward; returns the tokens of those sequences whose prompt was seen to its end."""
        pool, emitted = self.model.pool, []
        spans = [running.next(self._chunk) for running in sequences]
        for running, span, token in zip(sequences, spans, self.model.next_tokens(spans), strict=True):
            running.seen += len(span.tokens)
            prompt = running.request.prompt
            if running.seen < len(prompt):
                continue
            if not running.answer and self._reuse:
                for key, page in zip(prefix_keys(prompt, pool.layout.page_tokens), running.pages, strict=False):
                    pool.keep(key, page)
            running.answer.append(token)
            emitted.append((running.request.name, token))
        return emitted

    def adopt(self, running: Running) -> None:
        """Goes on with a sequence whose prompt is in its pages, and whose answer has begun."""
        if running.finished:
            self.model.pool.release(running.pages)
        else:
            self._running.append(running)


def found_pages(pool: PagePool, keys: Sequence[str]) -> list[int]:
    """The pages of a prompt's beginning that the pool has. All stale ones go: their own model is no more."""
    pages: list[int] = []
    whole = True
    for key in keys:
        found, page, _ = pool.find(key)
        if found is Found.STALE:
            pool.drop(key)  # or the page that is computed now would not be kept in its place
        whole = whole and found is Found.HIT
        if whole:
            pages.append(page)
    return pages


class Clock(Protocol):
    """When requests arrive and tokens come."""

    def now(self) -> float:
        """The time since the clock was made."""
        ...

    def wait(self, until: float) -> None:
        """Lets time pass while nothing is to be done."""
        ...

    def stepped(self) -> None:
        """The engine has taken a step."""
        ...


class Steps:
    """A clock that counts steps."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Steps."""
        return self._now

    def wait(self, until: float) -> None:
        """Skips steps in which nothing would be done."""
        self._now = max(self._now, until)

    def stepped(self) -> None:
        """One more."""
        self._now += 1


class Wall:
    """The clock on the wall, in seconds."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._start

    def wait(self, until: float) -> None:
        """Sleeps."""
        time.sleep(max(0.0, until - self.now()))

    def stepped(self) -> None:
        """Time passes by itself."""


@dataclass
class Served:
    """The answer to a request, and when its tokens came."""

    arrived: float
    answer: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def latency(self) -> float:
        """From arrival to the last token."""
        return self.times[-1] - self.arrived

    @property
    def to_first_token(self) -> float:
        """From arrival to the first token."""
        return self.times[0] - self.arrived

    @property
    def between_tokens(self) -> list[float]:
        """From each token to the next."""
        return [after - before for before, after in itertools.pairwise(self.times)]


def serve(engine: Engine, requests: Sequence[Request], clock: Clock | None = None) -> dict[int, Served]:
    """Hands each request to the engine when it arrives, and collects the answers by name."""
    clock = clock or Steps()
    coming = deque(sorted(requests, key=lambda request: request.arrives))
    served = {request.name: Served(request.arrives) for request in requests}
    while coming or engine.busy:
        if not engine.busy:
            clock.wait(coming[0].arrives)
        while coming and coming[0].arrives <= clock.now():
            engine.submit(coming.popleft())
        emitted = engine.step()
        clock.stepped()
        for name, token in emitted:
            served[name].answer.append(token)
            served[name].times.append(clock.now())
    return served
