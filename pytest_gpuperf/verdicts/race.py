"""Sequential evidence: whether launches show a slowdown that is to be found, or none.

The evidence is the likelihood ratio of "slower by the minimum slowdown" to "the same" over all launches so far. Wald,
Sequential Analysis (1947), chapter 3: a test that accuses at a ratio of 1 / alpha is wrong with a chance of at most
alpha, no matter after how many launches one looks.

Metrics are natural logarithms, oriented so that larger is worse.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations_with_replacement

from pytest_gpuperf.verdicts.history import compute_spread, refuse_without_logarithms

MOST_BLOCKS = 7
"""Most ABBA blocks of a race."""

CLEARED_AT = 0.05
"""The evidence that clears: "the same" is 20 times as likely as "slower by the minimum slowdown"."""

FEWEST_TO_ACCUSE = 3
"""Fewest launches of an arm that accuse. Each has its own parent process, so no single one's addresses decide."""

# The largest factor, and its inverse the smallest, by which one launch or one pair changes the evidence. One bad launch
# must not decide.
CLIP = 10.0

# Degrees of freedom that the record's spread is worth in a race beside the race's own. A machine may be noisier today
# than it was when recorded, so they are few.
RECORD_DOF = 4.0


class Decision(Enum):
    """What launches have shown so far."""

    OPEN = "open"
    """Neither; more launches may decide."""
    CLEARED = "cleared"
    ACCUSED = "accused"


@dataclass(frozen=True, slots=True)
class Sequential:
    """What launches came to so far. Losses are differences of logarithms; above 0 is worse."""

    decision: Decision
    evidence: float
    """Likelihood ratio of "slower by the minimum slowdown" to "the same"."""
    loss: float
    lower: float
    upper: float
    """Bounds of the loss, an interval of 95 % for a number of launches that is fixed beforehand."""


def compute_pair_losses(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the losses of B against A of the pairs of a race.

    The blocks are (a1 b1 b2 a2), (a3 b3 b4 a4) and so on. The pairs (a1, b1) and (b2, a2) of a block are neighbours,
    and a steady drift of the machine cancels in their sum.

    Args:
        a: Logarithms of arm A's launches, in order of measurement.
        b: Logarithms of arm B's launches, in order of measurement.

    Raises:
        ValueError: These are no whole blocks, too many of them, or a logarithm is not finite.
    """
    cure = "race whole blocks (a1 b1 b2 a2)"
    refuse_without_logarithms("a", a, 2, cure)
    refuse_without_logarithms("b", b, 2, cure)
    if len(a) != len(b) or len(a) % 2:
        raise ValueError(f"a and b hold {len(a)} and {len(b)} launches, expected the same even number: {cure}")
    if len(a) > 2 * MOST_BLOCKS:
        raise ValueError(f"a and b hold {len(a)} launches each, expected at most {2 * MOST_BLOCKS}: end the race")
    return [late - early for early, late in zip(a, b, strict=True)]


def spread_today(a: Sequence[float], b: Sequence[float], record: float, worth: float) -> tuple[float, float]:
    """Return the spread of one launch of a race, and its degrees of freedom.

    s^2 = (d0 s0^2 + d1 s1^2) / (d0 + d1), with the record's spread s0 and the scatter s1 of the race's launches around
    their arm's median: Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and
    Molecular Biology 3 (2004), article 3, section 4.

    Args:
        a: Logarithms of arm A's launches.
        b: Logarithms of arm B's launches.
        record: The record's spread.
        worth: Degrees of freedom d0 that the record's spread is worth.
    """
    own, dof = compute_spread([a, b])
    total = worth + dof
    return math.sqrt((worth * record**2 + dof * own**2) / total), total


def compute_center(losses: Sequence[float]) -> float:
    """Return the loss that launches or pairs agree on: the median of the means of all two of them, and of each alone.

    One bad launch hardly moves it, and its variance is nearly that of the mean: Hodges and Lehmann, Estimates of
    location based on rank tests, Annals of Mathematical Statistics 34 (1963).
    """
    means = [(one + other) / 2 for one, other in combinations_with_replacement(losses, 2)]
    return statistics.median(means)


def compute_center_variance(n: int) -> float:
    """Return the variance of ``compute_center`` of n normal values, in units of that of one; for n > 2 that of many."""
    return (1 if n < 3 else math.pi / 3) / n


def multiply_ratios(terms: Iterable[float]) -> float:
    """Return the product of likelihood ratios, none of which counts for more than CLIP or less than its inverse.

    Args:
        terms: Logarithms of the ratios.
    """
    return math.prod(min(CLIP, max(1 / CLIP, math.exp(min(term, CLIP)))) for term in terms)


def compute_pair_evidence(pairs: Sequence[float], slower: float, spread: float) -> float:
    """Return the evidence of pairs, each of which is normal around the loss with the variance 2 s^2.

    Each pair's logarithm is slower (d - slower / 2) / (2 s^2), clipped.

    Args:
        pairs: Losses of B against A.
        slower: Logarithm of the slowdown that is to be found.
        spread: Standard deviation s of one launch.
    """
    return multiply_ratios(slower * (pair - slower / 2) / (2 * spread**2) for pair in pairs)


def compute_launch_evidence(losses: Sequence[float], slower: float, spread: float, shared: float) -> float:
    """Return the evidence of launches that are held against one centre.

    Each launch's logarithm is slower (y - slower / 2) / (s^2 (1 + k v)), clipped. The centre's own error v s^2 is
    shared by all k launches. It shrinks their sum: k launches tell about the loss what their mean tells, which has the
    variance s^2 (1 / k + v).

    Args:
        losses: The launches' losses against the centre.
        slower: Logarithm of the slowdown that is to be found.
        spread: Standard deviation s of one launch.
        shared: The variance v of the centre, in units of s^2.
    """
    variance = spread**2 * (1 + len(losses) * shared)
    return multiply_ratios(slower * (loss - slower / 2) / variance for loss in losses)
