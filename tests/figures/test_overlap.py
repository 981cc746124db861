"""Exposed communication: what blocks of three arms come to."""

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pytest_gpuperf import Overlap, Timing
from pytest_gpuperf.figures.comparison import block_ratios
from pytest_gpuperf.figures.conditions import Conditions, Gate, Tripped
from pytest_gpuperf.figures.overlap import LEAST_SHARE
from pytest_gpuperf.figures.timing import Link, RankSamples
from pytest_gpuperf.timing import interleaving


def timing(*seconds: float, tripped: tuple[Tripped, ...] = ()) -> Timing:
    samples = RankSamples(seconds, "cuda_event", cuda_graph=False, steps_per_sample=1)
    return Timing((samples,), Link(None, "", multicast=False), Conditions(tripped, power_capped=False))


def of(together: float, compute: float, communication: float) -> Overlap:
    """Blocks that all say the same, but for a drift within each that weighs on all arms."""
    return Overlap(*(timing(*[0.9 * arm, 1.1 * arm] * 3) for arm in (together, compute, communication)))


@pytest.mark.parametrize(
    ("together", "exposed", "efficiency", "ideal"),
    [(10, LEAST_SHARE, 1.0, 1.0), (12, 0.5, 0.5, 10 / 12), (14, 1.0, LEAST_SHARE, 10 / 14), (16, 1.5, 1e-3, 10 / 16)],
    ids=["all hidden", "half hidden", "in turn", "worse than in turn"],
)
def test_shares(together: float, exposed: float, efficiency: float, ideal: float) -> None:
    found = of(together, 10.0, 4.0)
    assert found.exposed.value == pytest.approx(exposed)
    assert found.efficiency.value == pytest.approx(efficiency)
    assert found.ideal.value == pytest.approx(ideal)
    for metric, better in ((found.exposed, "lower"), (found.efficiency, "higher"), (found.ideal, "higher")):
        assert (metric.unit, metric.better, metric.samples, metric.clock) == ("fraction", better, 3, "cuda_event")


def test_the_median_of_the_blocks_counts_and_their_quartiles_go_with_it() -> None:
    together = timing(12, 12, 13, 13, 20, 20)
    found = Overlap(together, timing(*[10] * 6), timing(*[4] * 6)).exposed
    assert (found.q1, found.value, found.q3) == pytest.approx((0.625, 0.75, 1.625))


def test_both_samples_of_an_arm_in_a_block_count() -> None:
    found = Overlap(timing(11, 13, 13, 11), timing(9, 11, 10, 10), timing(3, 5, 4, 4))
    assert (found.exposed.q1, found.exposed.q3) == pytest.approx((0.5, 0.5))


def test_each_block_has_one_ratio_however_often_the_precision_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaving, "reduce_to_slowest", lambda seconds, device: list(seconds))
    times = (float(number**2) for number in count(1))  # so that no two blocks agree
    plan = SimpleNamespace(samples=24)
    arms = [SimpleNamespace(plan=plan, budget=60.0, sample=lambda: next(times), late=False) for _ in range(2)]
    looked: list[list[float]] = []

    def ratios(of_slowest: Sequence[Sequence[float]]) -> list[float]:
        looked.append(list(of_slowest[0]))
        return block_ratios(*of_slowest)

    first, _ = interleaving.interleave(cast(Any, arms), ratios, 0.0, torch.device("cpu"))
    assert [len(look) for look in looked] == [4, 2, 6, 6, 6]
    assert [value for look in looked for value in look] == first


@pytest.mark.parametrize(("host_seconds", "samples"), [(0.004, 30), (1.0, 4)])
def test_blocks_end_when_the_budget_that_the_arms_share_is_spent_by_the_hosts_clock(
    monkeypatch: pytest.MonkeyPatch, host_seconds: float, samples: int
) -> None:
    """Two arms share 0.2 s; a block has two samples of each."""
    monkeypatch.setattr(interleaving, "reduce_to_slowest", lambda seconds, device: list(seconds))
    times = (float(number**2) for number in count(1))
    taken: list[float] = []
    monkeypatch.setattr("time.perf_counter", lambda: len(taken) * host_seconds)

    def sample() -> float:
        taken.append(next(times))
        return taken[-1]

    plan = SimpleNamespace(samples=200)
    arms = [SimpleNamespace(plan=plan, budget=0.2, sample=sample, late=False) for _ in range(2)]
    first, _ = interleaving.interleave(cast(Any, arms), lambda arms: block_ratios(*arms), 0.0, torch.device("cpu"))
    assert len(first) == samples


def test_what_was_observed_goes_with_the_figures() -> None:
    brake = (Tripped("GPU-0", Gate.POWER_BRAKE),)
    hot = Overlap(timing(12, 12, tripped=brake), timing(10, 10), timing(4, 4))
    assert hot.exposed.invalid == brake


@pytest.mark.parametrize("late", range(4))
def test_shares_say_where_the_time_of_an_arm_is_the_hosts(late: int) -> None:
    samples = [
        RankSamples((1.0, 1.0), "cuda_event", False, 1, host_bound=arm == late, waits=arm == 0) for arm in range(3)
    ]
    found = Overlap(*(Timing((of_arm,), Link(None, "", multicast=False)) for of_arm in samples))
    assert all(share.host_bound is (late < 3) for share in (found.exposed, found.efficiency, found.ideal))
    assert found.exposed.waits is (late == 0)  # the reason of another arm is none
