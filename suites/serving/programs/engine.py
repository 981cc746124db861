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
    shared: int = 0
    """How many of the pages, the first ones, were found full: nobody writes to them."""
    answer: list[int] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether the answer is whole."""
        return len(self.answer) == self.request.new_tokens

    def next(self) -> Span:
        """The answer's last token, which the model has not seen."""
        return Span(self.pages, len(self.request.prompt) + len(self.answer) - 1, self.answer[-1:])


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
            chunk: how many tokens of a prompt go through the model in one forward.
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
        """One token for each running sequence, and the first one for each that gets a slot."""
        self.steps += 1
        vacant = self.vacant if self._continuous or not self._running else 0
        decoded = self._running
        if decoded:
            tokens = self.model.next_tokens([each.next() for each in decoded])
            for running, token in zip(decoded, tokens, strict=True):
                running.answer.append(token)
        # A page that a sequence leaves in this step is free in the next one.
        begun = []
        while len(begun) < vacant and self._waiting and (running := self.begin(self._waiting[0])) is not None:
            begun.append(running)
            self._waiting.popleft()
        self._running = []
        for running in decoded + begun:
            self.adopt(running)
        return [(running.request.name, running.answer[-1]) for running in decoded + begun]

    def begin(self, request: Request) -> Running | None:
        """Computes a prompt, but for pages that are there, and the answer's first token; None if pages are wanting."""
        pool, prompt = self.model.pool, request.prompt
        page_tokens = pool.layout.page_tokens
        keys = prefix_keys(prompt, page_tokens) if self._reuse else []
        shared = found_pages(pool, keys)
        pool.hold(shared)
        wanted = request.pages(page_tokens) - len(shared)
        if wanted > pool.available:
            pool.release(shared)
            return None
        self.reused += len(shared)
        running = Running(request, shared + pool.take(wanted), len(shared))
        token = -1
        for start in range(len(shared) * page_tokens, len(prompt), self._chunk):
            (token,) = self.model.next_tokens([Span(running.pages, start, prompt[start : start + self._chunk])])
        running.answer.append(token)
        for key, page in zip(keys, running.pages, strict=False):
            pool.keep(key, page)
        return running

    def adopt(self, running: Running) -> None:
        """Goes on with a sequence whose answer has begun, or releases its pages if the answer is whole."""
        if running.finished:
            self.model.pool.release(running.pages)
        else:
            self._running.append(running)


def found_pages(pool: PagePool, keys: Sequence[str]) -> list[int]:
    """The pages of a prompt's beginning that the pool has. A stale page goes: its own model is no more."""
    pages = []
    for key in keys:
        found, page, _ = pool.find(key)
        if found is Found.STALE:
            pool.drop(key)
        if found is not Found.HIT:
            break
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


def unfinished(requests: Sequence[Request], served: dict[int, Served]) -> list[int]:
    """The requests whose answers have another length than was asked for."""
    return [request.name for request in requests if len(served[request.name].answer) != request.new_tokens]
