"""Quantiles of Student's t distribution for any real number of degrees of freedom.

The standard library has the normal distribution only, and scipy would be a dependency for one function.
References: NIST Digital Library of Mathematical Functions (DLMF), 8.17, and Abramowitz and Stegun, Handbook of
Mathematical Functions (A&S), chapter 26.
"""

import math
from functools import lru_cache
from statistics import NormalDist

# Above it the expansion of A&S 26.7.5 is exact to more digits than differences of lgamma are.
EXPANSION_ABOVE = 1e5

# Within them every t and its square are finite numbers.
SMALLEST_TAIL = 1e-50
SMALLEST_DOF = 0.5

CONVERGED = 1e-15  # relative change of the continued fraction by one more term
TERMS = 10_000  # of the continued fraction; O(sqrt(dof)) are needed, which is below 1000 for dof <= EXPANSION_ABOVE
TINY = 1e-300  # stands for 0 in a denominator, as Lentz's method asks

STEPS = 200  # of the root search; halving alone needs about 60


@lru_cache(maxsize=1024)
def upper_quantile(tail: float, dof: float) -> float:
    """The t that a Student variable exceeds with the probability tail.

    Args:
        tail: Probability, 1e-50 to 0.5.
        dof: Degrees of freedom, any number from 0.5 on; infinity is the normal distribution.

    Raises:
        ValueError: For another tail or dof.
    """
    if not SMALLEST_TAIL <= tail <= 0.5:
        raise ValueError(f"tail is {tail!r}, expected {SMALLEST_TAIL} to 0.5: pass the probability of the upper tail")
    if not dof >= SMALLEST_DOF:
        raise ValueError(f"dof is {dof!r}, expected {SMALLEST_DOF} or above: a spread needs 2 metrics at least")
    if tail == 0.5:
        return 0.0
    normal = -NormalDist().inv_cdf(tail)
    return _compute_expansion(normal, dof) if dof > EXPANSION_ABOVE else _find_root(tail, dof, normal)


def upper_tail(t: float, dof: float) -> float:
    """The probability that a Student variable exceeds t; t is 0 or above.

    I_x(dof/2, 1/2) / 2 with x = dof / (dof + t^2): A&S 26.7.1 and 26.5.27.
    """
    square = t * t
    if square == 0:  # or too small for a float
        return 0.5
    return _incomplete_beta(dof / (dof + square), square / (dof + square), dof / 2, 0.5) / 2


def _compute_expansion(normal: float, dof: float) -> float:
    """A&S 26.7.5, the first two terms; the next is below 1e-12 for dof above 1e5 and tails above 1e-12."""
    z = normal
    return z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof * dof)


def _find_root(tail: float, dof: float, normal: float) -> float:
    """Newton's method on ln(tail), kept between bounds.

    The normal quantile is a lower bound, as a Student variable has the heavier tails.
    """
    low, high = normal, math.inf
    t = normal
    for _ in range(STEPS):
        got = upper_tail(t, dof)
        low, high = (t, high) if got > tail else (low, t)
        # d ln(tail) / dt = -density / tail
        step = got * math.log(got / tail) / _density(t, dof)
        if abs(step) <= 1e-13 * t:
            return t + step
        t += step
        if not low < t < high:
            t = 2 * low if math.isinf(high) else (low + high) / 2
        if high - low <= 1e-15 * t:
            return t
    raise AssertionError(f"no quantile of Student's t for tail {tail!r}, dof {dof!r}")


def _density(t: float, dof: float) -> float:
    """A&S 26.7.1, differentiated."""
    scale = math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - math.log(dof * math.pi) / 2
    return math.exp(scale - (dof + 1) / 2 * math.log1p(t * t / dof))


def _incomplete_beta(x: float, y: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for y = 1 - x, which the caller knows exactly.

    The continued fraction DLMF 8.17.22 where it converges fast, I_x(a, b) = 1 - I_y(b, a) (DLMF 8.17.4) elsewhere.
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(y, x, b, a)
    # x^a y^b / (a B(a, b)); the logarithm of y is taken through x where that is the small one.
    log_y = math.log1p(-x) if x < 0.5 else math.log(y)
    log_x = math.log1p(-y) if y < 0.5 else math.log(x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * log_x + b * log_y - log_beta) / a / _compute_fraction(x, a, b)


def _compute_fraction(x: float, a: float, b: float) -> float:
    """The denominator 1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22, by the modified Lentz method (DLMF 3.10(iii))."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, TERMS):
        m = n // 2
        if n % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + coefficient * d) or TINY)
        c = (1 + coefficient / c) or TINY
        value *= c * d
        if abs(c * d - 1) < CONVERGED:
            return value
    raise AssertionError(f"the continued fraction of I_x(a, b) did not converge for x={x!r}, a={a!r}, b={b!r}")
