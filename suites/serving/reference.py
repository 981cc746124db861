"""What one sequence by itself becomes: the model sees all of it at once, without a cache; and when, and from where."""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import statistics
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from suites.serving.programs.engine import Request, Served
from suites.serving.programs.model import llama
from suites.serving.programs.speed import percentile
from suites.shared.llama import Config, Llama

CONFIG = Config()
"""2 layers of 4 heads, 2 of them of keys and values; 16 tokens in the vocabulary."""
DTYPE, CPU = torch.float64, torch.device("cpu")
# Greedy answers are compared exactly. In float64 the two likeliest tokens are never so close that rounding decides.


RUNS = 3
"""How often chats are served beside long prompts before tokens are found to come too late."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread of this process for torch: two wait for one another ten times longer than a layer this small takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.lru_cache(8)
def _model(config: Config, seed: int, device: torch.device) -> Llama:
    return llama(config, seed=seed, dtype=DTYPE, device=device)


def likeliest(model: Llama, sequence: Sequence[int], device: torch.device = CPU) -> list[int]:
    """The likeliest token after each token of a sequence."""
    with torch.no_grad(), one_thread():
        chosen: list[int] = model(torch.tensor([sequence], device=device))[0].argmax(-1).tolist()
    return chosen


def assert_answered(
    requests: Sequence[Request],
    answers: Mapping[int, Sequence[int]],
    *,
    seed: int,
    config: Config = CONFIG,
    device: torch.device = CPU,
) -> None:
    """Each request has the answer that its sequence has by itself: each token is the likeliest after those before it.

    Raises:
        AssertionError: names the request and the first token that is wrong.
    """
    assert sorted(answers) == sorted(request.name for request in requests), f"answered were {sorted(answers)}"
    model = _model(config, seed, device)
    for request in requests:
        got = list(answers[request.name])
        assert len(got) == request.new_tokens, f"request {request.name}: {len(got)} tokens, not {request.new_tokens}"
        expected = likeliest(model, [*request.prompt, *got[:-1]], device)[len(request.prompt) - 1 :]
        wrong = next(
            (place for place, (one, other) in enumerate(zip(got, expected, strict=True)) if one != other), None
        )
        # What comes behind the first wrong token answers another question.
        assert wrong is None, f"request {request.name}, token {wrong}: {got[wrong]}, not {expected[wrong]}, in {got}"


def answers_of(served: Mapping[int, Served]) -> dict[int, list[int]]:
    """The tokens alone."""
    return {name: each.answer for name, each in served.items()}


def continuous_times(requests: Sequence[Request], slots: int, chunk: int) -> dict[int, list[float]]:
    """When each token comes, in steps, if a slot is filled in the step after it is left, and pages never lack."""
    free, times, begun = [0.0] * slots, {}, 0.0
    for request in sorted(requests, key=lambda request: request.arrives):
        begun = max(request.arrives, heapq.heappop(free), begun)
        times[request.name] = _times(request, begun, chunk)
        heapq.heappush(free, times[request.name][-1])
    return times


def static_times(requests: Sequence[Request], slots: int, chunk: int) -> dict[int, list[float]]:
    """When each token comes, in steps, if slots are filled when all of them are empty."""
    coming, times, now = sorted(requests, key=lambda request: request.arrives), {}, 0.0
    while coming:
        now = max(now, coming[0].arrives)
        batch = [request for request in coming[:slots] if request.arrives <= now]
        coming = coming[len(batch) :]
        for request in batch:
            times[request.name] = _times(request, now, chunk)
        now = max(times[request.name][-1] for request in batch)
    return times


def _times(request: Request, begun: float, chunk: int) -> list[float]:
    """One step for each part of the prompt, the last of which gives the first token."""
    return [begun + math.ceil(len(request.prompt) / chunk) + token for token in range(request.new_tokens)]


def most_speedup(lengths: Sequence[int], slots: int) -> float:
    """How many times fewer steps continuous batching takes at most: E[max of a batch] / E[length].

    A static batch takes as many steps as its longest answer; no batching takes fewer than all tokens over all slots.
    """
    batches = [lengths[start : start + slots] for start in range(0, len(lengths), slots)]
    return sum(max(batch) for batch in batches) / (sum(lengths) / slots)


def assert_goes_on(
    bound: float,
    quiet: Sequence[float],
    loaded: Sequence[float],
    again: Callable[[], tuple[Sequence[float], Sequence[float]]],
) -> None:
    """Check that tokens go on coming while long prompts are computed elsewhere.

    A run has about a hundred steps meanwhile, so its 99th percentile is its longest step or the one before. A single
    hiccup of the host decides it. So a run that is too slow is followed by two more, and the median of the three
    ratios decides: what a technique costs is in most runs.

    Args:
        bound: how many times as long the 99th percentile between two tokens may be as in quiet.
        quiet: seconds between two tokens, of the first run.
        loaded: the same while long prompts are served.
        again: another run's ``quiet`` and ``loaded``.

    Raises:
        AssertionError: the percentile is longer in most runs.
    """
    ratios = [percentile(loaded, 99) / percentile(quiet, 99)]
    if ratios[0] <= bound:
        return
    for _ in range(RUNS - 1):
        calm, busy = again()
        ratios.append(percentile(busy, 99) / percentile(calm, 99))
    longer = statistics.median(ratios)
    if longer <= bound:
        return
    raise AssertionError(
        f"while long prompts are computed elsewhere, the 99th percentile between two tokens is {longer:.2f} times as "
        f"long as before, the median of {RUNS} runs, expected {bound:g} at most"
    )


class Caches:
    """What ranks that reuse one another's prefixes hold, in terms of tokens; who counts otherwise is wrong.

    Each rank keeps full pages, and gives up the one that was used the longest ago when it needs room.
    """

    def __init__(self, ranks: int, *, pages: int, page_tokens: int, seed: int) -> None:
        self.counts: list[Counter[str]] = [Counter() for _ in range(ranks)]
        self.seeds = [seed] * ranks
        self._pages, self._page_tokens = pages, page_tokens
        self._kept: list[OrderedDict[tuple[int, ...], int]] = [OrderedDict() for _ in range(ranks)]
        self._evicted: list[set[tuple[int, ...]]] = [set() for _ in range(ranks)]

    def serve(self, rank: int, request: Request) -> None:
        """A rank serves a request: it counts one full page of the prompt after the other."""
        size = self._page_tokens
        full = (len(request.prompt) - 1) // size
        prefixes = [request.prompt[: (number + 1) * size] for number in range(full)]
        answers = {prefix: self._answers(rank, prefix) for prefix in prefixes}
        local, fetched = [], []
        for prefix in prefixes:
            if answers[prefix][rank] == "hit":
                local.append(prefix)
            elif "hit" in answers[prefix]:
                fetched.append(prefix)
            else:
                reason = next(each for each in ("stale", "evicted", "miss") if each in answers[prefix])
                self.counts[rank][reason] += 1
                break
        self.counts[rank]["local"] += len(local)
        self.counts[rank]["fetched"] += len(fetched)
        self._make_room(rank, len(fetched), local)
        for prefix in fetched:
            self._keep(rank, prefix)
        used = [prefix for prefix in prefixes if prefix in self._kept[rank]]
        used = [prefix for prefix, expected in zip(used, prefixes, strict=False) if prefix == expected]
        for prefix in prefixes[: len(used) + 1]:
            self._touch(rank, prefix)
        self._make_room(rank, request.pages(size) - len(used), used)
        for prefix in prefixes[len(used) :]:
            self._keep(rank, prefix)

    def _answers(self, rank: int, prefix: tuple[int, ...]) -> list[str]:
        """What each rank says of a prefix; those that others need not be asked for are a miss to them."""
        own = self._state(rank, rank, prefix)
        if own == "stale":
            del self._kept[rank][prefix]
        others = range(len(self._kept)) if own != "hit" else ()
        return [
            own if each == rank else self._state(rank, each, prefix) if each in others else "miss"
            for each in range(len(self._kept))
        ]

    def _state(self, asking: int, rank: int, prefix: tuple[int, ...]) -> str:
        if prefix not in self._kept[rank]:
            return "evicted" if prefix in self._evicted[rank] else "miss"
        self._touch(rank, prefix)
        return "hit" if self._kept[rank][prefix] == self.seeds[asking] else "stale"

    def _touch(self, rank: int, prefix: tuple[int, ...]) -> None:
        if prefix in self._kept[rank]:
            self._kept[rank].move_to_end(prefix)

    def _keep(self, rank: int, prefix: tuple[int, ...]) -> None:
        if prefix not in self._kept[rank]:
            self._kept[rank][prefix] = self.seeds[rank]
            self._evicted[rank].discard(prefix)

    def _make_room(self, rank: int, pages: int, held: Sequence[tuple[int, ...]]) -> None:
        while self._pages - len(self._kept[rank]) < pages:
            victim = next(prefix for prefix in self._kept[rank] if prefix not in held)
            del self._kept[rank][victim]
            self._evicted[rank].add(victim)
