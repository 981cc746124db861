"""A search's trials: the fastest, the Pareto set, the figures that are judged, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from pytest_gpuperf import Infeasible, Search, Timing, Trial
from pytest_gpuperf.figures.conditions import Conditions
from pytest_gpuperf.figures.search import PEAK_FLOPS, DoesNotFit
from pytest_gpuperf.figures.timing import Link, RankSamples

CAPPED = Conditions((), power_capped=True)


def ran(name: str, seconds: float, *peaks: int | None) -> Trial:
    samples = RankSamples((seconds,) * 3, "cuda_event", cuda_graph=False, steps_per_sample=1)
    timing = Timing((samples,) * 2, Link(None, "", multicast=False), CAPPED)
    return Trial(name, {"degree": name}, timing, peaks or (None, None))


def search(*trials: Trial, tokens: float | None = None, flop: float | None = None, peak: float | None = None) -> Search:
    return Search("degrees", trials, tokens, flop, peak)


def test_the_fastest_comes_first_and_then_the_runner_up() -> None:
    slow, fast, middle = ran("slow", 3.0), ran("fast", 1.0), ran("middle", 2.0)
    found = search(slow, Trial("none", {}, why_not=Infeasible("no")), fast, middle)
    assert [trial.name for trial in found.ran] == ["fast", "middle", "slow"]
    assert (found.best, found.runner_up) == (fast, middle)
    alone = search(slow)
    assert (alone.best, alone.runner_up, list(alone.figures)) == (slow, None, ["best"])


def test_the_frontier_has_what_nothing_faster_undercuts() -> None:
    trials = [
        ran("a", 1.0, 100, 90),
        ran("b", 2.0, 100, 10),
        ran("c", 3.0, 20, 60),
        ran("d", 4.0, 70),
        ran("e", 5.0, 9),
    ]
    found = search(*reversed(trials))
    assert [trial.name for trial in found.frontier] == ["a", "c", "e"]
    assert found.leanest is trials[-1]
    assert [trial.peak for trial in found.ran] == [100, 100, 60, 70, 9]
    unknown = search(ran("a", 1.0, 100, None), ran("b", 2.0, 10, 10))
    assert ([trial.name for trial in unknown.frontier], unknown.leanest) == (["a"], None)


def test_the_figures_are_times_without_tokens_and_rates_with_them() -> None:
    fast, slow = ran("fast", 0.5, 300, 400), ran("slow", 1.0, 200, 100)
    times = search(fast, slow).figures
    assert {name: (one.value, one.unit, one.better) for name, one in times.items()} == {
        "best": (0.5, "s", "lower"),
        "runner_up": (1.0, "s", "lower"),
        "least_memory": (200.0, "B", "lower"),
    }
    assert all(one.power_capped for one in times.values())
    rates = search(fast, slow, tokens=1000.0, flop=600.0, peak=1000.0)
    best = rates.figures["best"]
    assert (best.value, best.unit, best.limit_name) == (2000.0, "token/s", PEAK_FLOPS)
    # 600 FLOP in 0.5 s on 2 GPUs of 1000 FLOP/s.
    assert best.share_of_limit == rates.mfu(fast) == pytest.approx(0.6)
    assert rates.mfu(Trial("none", {}, why_not=Infeasible("no"))) is None
    unknown = search(fast, slow, tokens=1000.0, flop=600.0)
    assert (unknown.figures["best"].limit, unknown.figures["best"].limit_name, unknown.mfu(fast)) == (None, "", None)


def test_what_did_not_run_has_no_figure() -> None:
    none = Trial("none", {}, why_not=Infeasible("3 heads do not divide over 2 ranks"))
    found = search(ran("a", 1.0), none)
    with pytest.raises(
        ValueError, match=r"^configuration 'none' did not run: 3 heads do not .*; take one of search\.ran"
    ):
        found.speed(none)
    with pytest.raises(
        ValueError, match=r"^the memory of configuration 'a' is unknown, as on CPUs: check its speed only$"
    ):
        found.memory(found.best)
    with pytest.raises(
        Infeasible, match=r"^no configuration of degrees could run: none: 3 heads .*; b: needs 8 B, and 4 B"
    ):
        search(none, Trial("b", {}, why_not=DoesNotFit(8, 4, True)))


def test_what_does_not_fit_travels_between_processes() -> None:
    raised = pickle.loads(pickle.dumps(DoesNotFit(143.5, 100.0, False)))
    assert (raised.needs, raised.there, raised.exact) == (143.5, 100.0, False)
    assert str(raised) == "needs at least 144 B, and 100 B are there"
