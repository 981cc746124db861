"""The evidence of launches and of pairs, as numbers found by hand."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.race import (
    CLIP,
    compute_center,
    compute_center_variance,
    compute_launch_evidence,
    compute_pair_evidence,
    compute_pair_losses,
    multiply_ratios,
    spread_today,
)
from tests.baselines.by_hand import close

SLOWER = math.log(1.05)
losses = st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=14)


def test_pairs_are_neighbours_of_a_block() -> None:
    # In time a1 b1 b2 a2, on a machine that slows down by 1 at each launch: the drift cancels.
    assert compute_pair_losses([0.0, 3.0], [1.0, 2.0]) == [1.0, -1.0]
    assert compute_pair_losses([0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 1.5, 1.5]) == [0.5] * 4


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([0.0], [0.0, 0.0], r"a holds 1 launches, expected at least 2: race whole blocks \(a1 b1 b2 a2\)"),
        ([0.0] * 2, [], r"b holds 0 launches, expected at least 2: race whole blocks \(a1 b1 b2 a2\)"),
        ([0.0] * 3, [0.0] * 3, r"a and b hold 3 and 3 launches, expected the same even number: race whole blocks .*"),
        ([0.0] * 4, [0.0] * 2, r"a and b hold 4 and 2 launches, expected the same even number: race whole blocks .*"),
        ([0.0] * 16, [0.0] * 16, "a and b hold 16 launches each, expected at most 14: end the race"),
        ([0.0, math.nan], [0.0] * 2, "a holds nan, expected finite logarithms: check the measurement"),
        ([0.0] * 2, [math.inf, 0.0], "b holds inf, expected finite logarithms: check the measurement"),
    ],
)
def test_what_is_no_race_is_refused(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        compute_pair_losses(a, b)


def test_the_evidence_of_pairs_by_hand() -> None:
    # Normal around d with the variance 2 * 0.03^2: exp(ln 1.05 (0.04 - ln 1.05 / 2) / 0.0018) = exp(0.422981)
    assert compute_pair_evidence([0.04], SLOWER, 0.03) == close(math.exp(0.422981))
    assert compute_pair_evidence([0.04, SLOWER / 2, 0.04], SLOWER, 0.03) == close(math.exp(2 * 0.422981))
    normal = statistics.NormalDist(0.0, 0.03 * math.sqrt(2))
    assert compute_pair_evidence([0.04], SLOWER, 0.03) == close(normal.pdf(0.04 - SLOWER) / normal.pdf(0.04))


def test_the_evidence_of_launches_that_share_a_centre_by_hand() -> None:
    # Of 3 launches, v = 0.5: ln 1.05 (0.1 - 3 ln 1.05 / 2) / (0.03^2 (1 + 1.5)) = 0.581465
    assert compute_launch_evidence([0.04, 0.05, 0.01], SLOWER, 0.03, 0.5) == close(math.exp(0.581465))
    # That is the likelihood ratio of their mean, which has the variance 0.03^2 (1/3 + 0.5).
    mean = statistics.NormalDist(0.0, 0.03 * math.sqrt(1 / 3 + 0.5))
    by_mean = mean.pdf(0.1 / 3 - SLOWER) / mean.pdf(0.1 / 3)
    assert compute_launch_evidence([0.04, 0.05, 0.01], SLOWER, 0.03, 0.5) == close(by_mean)


@given(losses, st.floats(0.001, 0.1))
def test_one_launch_or_pair_counts_for_no_more_than_the_clip(found: list[float], spread: float) -> None:
    for bad in (-50.0, 50.0):
        pairs = compute_pair_evidence([*found, bad], SLOWER, spread) / compute_pair_evidence(found, SLOWER, spread)
        launches = compute_launch_evidence([*found, bad], SLOWER, spread, 0.0) / compute_launch_evidence(
            found, SLOWER, spread, 0.0
        )
        for factor in (pairs, launches):
            assert 1 / CLIP / 1.0001 <= factor <= CLIP * 1.0001


def test_ratios_are_clipped_both_ways() -> None:
    assert multiply_ratios([1000.0, math.log(2)]) == close(20.0)
    assert multiply_ratios([-1000.0, math.log(2)]) == close(0.2)
    assert multiply_ratios([50.0] * 4) == 10_000.0  # exactly: it is held against N / alpha, 100 / 0.01
    assert multiply_ratios([]) == 1.0


def test_pairs_and_launches_agree_on_the_median_of_their_means() -> None:
    assert compute_center([0.3]) == 0.3
    assert compute_center([0.1, 0.3]) == close(0.2)
    # 0, 0.5, 1, 4.5, 5, 9: of 0, 1 and 9 alone and by two
    assert compute_center([9.0, 0.0, 1.0]) == close((1 + 4.5) / 2)
    assert abs(compute_center([0.0] * 6 + [100.0])) < 1e-9


@pytest.mark.parametrize("n", [1, 2, 4, 8, 14])
def test_the_variance_of_what_they_agree_on(n: int) -> None:
    draws = random.Random(n)
    found = [compute_center([draws.gauss(0, 1) for _ in range(n)]) for _ in range(1500)]
    assert statistics.fmean(one**2 for one in found) == pytest.approx(compute_center_variance(n), rel=0.15)


def test_the_spread_of_a_race_by_hand() -> None:
    a, b = [0.0, 0.02], [0.5, 0.52]
    # All distances are 0.01 sqrt(2), one of four is left out: 0.0002 / 0.368524, worth 0.8 (3 - 2); see test_history.
    spread, dof = spread_today(a, b, 0.005, 4.0)
    assert dof == close(4.8)
    assert spread == pytest.approx(math.sqrt((4 * 0.005**2 + 0.8 * 0.0002 / 0.368524) / 4.8), rel=1e-4)


@given(losses, st.floats(0.003, 0.05), st.floats(0, 0.1))
def test_a_slower_arm_is_no_less_evidence(found: list[float], spread: float, slower: float) -> None:
    more = [loss + slower for loss in found]
    assert compute_pair_evidence(more, SLOWER, spread) >= compute_pair_evidence(found, SLOWER, spread) * (1 - 1e-12)
