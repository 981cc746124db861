"""Quantiles of Student's t, against tables, closed forms and one another."""

import math
from statistics import NormalDist

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.figures.student import EXPANSION_ABOVE, upper_quantile, upper_tail

# As R 4 prints qt(0.975, dof), and as textbooks do.
PUBLISHED = {
    1: 12.706205,
    2: 4.302653,
    3: 3.182446,
    4: 2.776445,
    5: 2.570582,
    7: 2.364624,
    8: 2.306004,
    10: 2.228139,
    20: 2.085963,
    30: 2.042272,
    100: 1.983972,
    120: 1.979930,
    1000: 1.962339,
}

TAILS = (0.25, 0.025, 1e-3, 1e-4, 1e-5, 1e-7)

# From the incomplete beta function of mpmath 1.3 with 40 digits.
REFERENCE = {
    1: (1.0, 12.70620474, 318.308839, 3183.098757, 31830.98861, 3183098.862),
    2.4: (0.7901514888, 3.68350429, 14.94268781, 39.14058802, 102.2158276, 696.4487964),
    5: (0.7266868438, 2.570581836, 5.893429531, 9.677566301, 15.54685453, 39.34181962),
    10: (0.6998120613, 2.228138852, 4.143700494, 5.693820101, 7.526954019, 12.49220969),
    15.4: (0.6907541482, 2.126637766, 3.713316737, 4.842662354, 6.046097341, 8.842177904),
    21.4: (0.6861269838, 2.07724952, 3.518011625, 4.475981382, 5.441190668, 7.505196359),
    30: (0.6827556933, 2.042272456, 3.385184867, 4.233985957, 5.054032421, 6.701399512),
    100: (0.676951043, 1.983971519, 3.173739494, 3.861599791, 4.478426903, 5.586900475),
    1000: (0.6747351646, 1.962339081, 3.098402164, 3.732851605, 4.285437683, 5.235998469),
}

tails = st.floats(-7, math.log10(0.5)).map(lambda exponent: min(0.5, 10**exponent))
dofs = st.floats(0.5, 2000)


@pytest.mark.parametrize(("dof", "quantile"), PUBLISHED.items())
def test_published_tables(dof: float, quantile: float) -> None:
    assert upper_quantile(0.025, dof) == pytest.approx(quantile, abs=6e-7)


@pytest.mark.parametrize("dof", REFERENCE)
def test_far_tails_and_dof_that_are_no_integers(dof: float) -> None:
    assert [upper_quantile(tail, dof) for tail in TAILS] == pytest.approx(REFERENCE[dof], rel=1e-9)


@given(tails)
def test_closed_forms(tail: float) -> None:
    """There are some for 1, 2 and 4 degrees of freedom.

    Shaw, Sampling Student's T distribution, J. Comput. Finance 9 (2006).
    """
    rest = 4 * tail * (1 - tail)
    assert upper_quantile(tail, 1) == pytest.approx(1 / math.tan(math.pi * tail), rel=1e-6, abs=1e-9)
    assert upper_quantile(tail, 2) == pytest.approx((1 - 2 * tail) * math.sqrt(2 / rest), rel=1e-6, abs=1e-9)
    four = math.cos(math.acos(math.sqrt(rest)) / 3) / math.sqrt(rest)
    assert upper_quantile(tail, 4) == pytest.approx(2 * math.sqrt(max(0.0, four - 1)), rel=1e-6, abs=1e-6)


@given(tails, dofs)
def test_the_quantile_is_the_inverse_of_the_tail(tail: float, dof: float) -> None:
    assert upper_tail(upper_quantile(tail, dof), dof) == pytest.approx(tail, rel=1e-9)


@given(tails, dofs, st.floats(1.01, 100))
@example(tail=0.49999999999999994, dof=1001.0, factor=100.0)
def test_more_dof_and_larger_tails_mean_smaller_quantiles(tail: float, dof: float, factor: float) -> None:
    # Two neighbouring tails below 1/2 are 5.6e-17 apart, and their quantiles 1.4e-16: nothing finer can be told.
    assert upper_quantile(tail, dof * factor) <= upper_quantile(tail, dof) + 1.4e-16
    assert upper_quantile(tail / factor, dof) > upper_quantile(tail, dof)


@given(tails)
def test_endless_dof_are_the_normal_distribution(tail: float) -> None:
    assert upper_quantile(tail, math.inf) == pytest.approx(NormalDist().inv_cdf(1 - tail), abs=1e-8)


@given(tails)
def test_the_expansion_for_large_dof_continues_the_rest(tail: float) -> None:
    below, above = upper_quantile(tail, EXPANSION_ABOVE), upper_quantile(tail, EXPANSION_ABOVE + 1)
    assert above == pytest.approx(below, rel=2e-9, abs=1e-9)


def test_half_of_all_is_above_0() -> None:
    assert upper_quantile(0.5, 3.3) == 0


@pytest.mark.parametrize("tail", [0.0, -0.1, 0.51, 1e-60, math.nan])
def test_a_tail_that_is_none_is_refused(tail: float) -> None:
    with pytest.raises(ValueError, match=r"tail is .*, expected 1e-50 to 0\.5: pass the probability of the upper tail"):
        upper_quantile(tail, 10)


@pytest.mark.parametrize("dof", [0.0, -1.0, 0.4, math.nan])
def test_too_few_dof_are_refused(dof: float) -> None:
    with pytest.raises(ValueError, match=r"dof is .*, expected 0\.5 or above: a spread needs 2 metrics at least"):
        upper_quantile(0.1, dof)
