"""What speed is measured by: arrivals, percentiles, and the pages that are moved."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.serving.programs import speed
from suites.serving.programs.engine import Request
from suites.serving.reference import RUNS, assert_goes_on, most_speedup
from suites.serving.test_remote import SETTING
from suites.shared.step import Step


def test_lengths_are_spread_exponentially() -> None:
    requests = speed.drawn_requests(400, prompt=5, mean=20.0, vocabulary=9, seed=1)
    lengths = [request.new_tokens for request in requests]
    assert statistics.fmean(lengths) == pytest.approx(20, rel=0.02)
    # Of 8 exponential lengths the longest is 1 + 1/2 + ... + 1/8 times the mean.
    assert most_speedup(lengths, 8) == pytest.approx(sum(1 / number for number in range(1, 9)), rel=0.1)
    assert {len(request.prompt) for request in requests} == {5}
    assert requests == speed.drawn_requests(400, prompt=5, mean=20.0, vocabulary=9, seed=1)


def test_arrivals_are_of_a_rate() -> None:
    requests = speed.poisson([Request(name, (1,), 1) for name in range(2000)], rate=50.0, seed=1)
    gaps = [after.arrives - before.arrives for before, after in itertools.pairwise(requests)]
    assert min(gaps) > 0
    # Mean and deviation of an exponential distribution are alike.
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.1)


def test_percentiles() -> None:
    values = list(range(1, 101))[::-1]
    assert [speed.percentile(values, percent) for percent in (50, 99, 100)] == [50, 99, 100]
    assert [speed.percentile(values[:10], percent) for percent in (50, 75, 99)] == [95, 98, 100]
    assert speed.percentile([3.0], 99) == 3.0
    with pytest.raises(ValueError, match="there is no 99th percentile of nothing"):
        speed.percentile([], 99)


def runs_of(*loaded: list[float]) -> Callable[[], tuple[list[float], list[float]]]:
    """Later runs, in quiet of a step each second; one more than these is a StopIteration."""
    coming = iter(loaded)
    return lambda: ([1.0] * 100, next(coming))


def test_one_hiccup_is_no_cost_of_long_prompts() -> None:
    even, hiccup = [1.0] * 100, [1.0] * 98 + [9.0] * 2
    assert_goes_on(1.5, even, even, runs_of())  # no other run is needed
    assert_goes_on(1.5, even, hiccup, runs_of(even, even))


def test_what_long_prompts_cost_in_most_runs_is_found() -> None:
    """One run that is fast does not end the search: the median of all three decides."""
    even, slow, slower = [1.0] * 100, [1.0] * 98 + [1.6] * 2, [1.0] * 98 + [2.0] * 2
    later = runs_of(even, slow)
    with pytest.raises(AssertionError, match=rf"is 1\.60 times .* the median of {RUNS} runs, expected 1\.5 at most"):
        assert_goes_on(1.5, even, slower, later)
    with pytest.raises(StopIteration):
        later()


def test_each_run_is_held_against_its_own_quiet() -> None:
    """A hiccup in the quiet of one run hides no cost of the others."""
    hiccup, slow = [1.0] * 98 + [9.0] * 2, [1.6] * 100
    quiets = iter((hiccup, [1.0] * 100))
    with pytest.raises(AssertionError, match=r"is 1\.60 times"):
        assert_goes_on(1.5, [1.0] * 100, slow, lambda: (next(quiets), slow))


@pytest.mark.parametrize("pages", [1, 2, 3, 32, 33, 256])
@pytest.mark.parametrize("multiple", [1, 2])
def test_all_pages_go_in_another_order(pages: int, multiple: int) -> None:
    order = speed.order_of(pages, multiple)
    assert sorted(order) == list(range(pages))
    assert pages < 32 or all(after != before + 1 for before, after in itertools.pairwise(order))


@pytest.mark.ranks(1)
def test_an_engine_that_is_none_is_refused(ranks: Ranks) -> None:
    program = functools.partial(speed.arrivals, kind="mine", setting=SETTING, requests=[], load=1.0, seed=1)
    with pytest.raises(ValueError, match="there are the engines paged and transformers, got kind='mine'"):
        ranks.run(program)


def move(ctx: Context, way: str, pages: int, page_bytes: int) -> None:
    """Two steps, compared on the ranks; what no step has brought anew is refused by who receives."""
    step = getattr(speed, way)(ctx, pages=pages, page_bytes=page_bytes)
    for steps in (1, 2):
        output = step()
        speed.verify_pages(ctx, output, steps, page_bytes=page_bytes)
    pair = speed.partner(ctx)
    if pair is None or ctx.rank != pair[1]:
        return
    others_gone_on = mock.patch.object(Context, "barrier")
    with others_gone_on, pytest.raises(AssertionError, match=f"{pages} of {pages} pages are wrong"):
        speed.verify_pages(ctx, output, 3, page_bytes=page_bytes)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("way", ["plain_copy", "pages_by_puts", "pages_by_messages"])
def test_pages_that_are_timed_arrive(ranks: Ranks, way: str) -> None:
    ranks.run(move, way, 9, 64)


@pytest.mark.ranks(2)
def test_each_step_computes_or_fetches_the_whole_prefix(ranks: Ranks) -> None:
    """What a step leaves is no part of the next one's time."""
    request = Request(1, tuple(range(9)), 1)

    def twice(ctx: Context, program: Callable[..., Step[torch.Tensor]]) -> None:
        step = program(ctx, setting=SETTING, request=request)
        for _ in range(2):
            step()
        ctx.barrier()  # a rank that has ended may still be read from

    ranks.run(twice, speed.prefix_computed)
    ranks.run(twice, speed.prefix_fetched)
