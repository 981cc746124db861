"""The rule that tells a slower program from a launch that came out slow: one launch screens, fresh launches decide.

The figures are natural logarithms, oriented so that larger is worse; a difference of two is a loss, and the loss of a
slowdown by 5 % is ln 1.05. The model: a launch's figure is mu + S, where S belongs to the launch (fresh processes and
communicators) and has the standard deviation sigma. Measuring longer within a launch does not change S, so only
launches count.

Notation of the formulas: m launches in the baseline, k to confirm, s the pooled spread, nu its degrees of freedom, a
one check's share of the suite's chance of a false alarm, t(p, nu) and z(p) the upper quantiles of Student's t and of
the normal distribution. docs/judging.md says it in words.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.figures.student import SMALLEST_DOF, upper_quantile
from pytest_gpuperf.verdicts.history import History, refuse_without_logarithms
from pytest_gpuperf.verdicts.prior import prior_dof, prior_spread

# Variance of a large normal sample's median over that of its mean. A small one's is less, 1.35 for 3 launches.
# Kendall and Stuart, The Advanced Theory of Statistics, volume 1, chapter 10.
MEDIAN_VARIANCE = math.pi / 2

# Of the regressions that may be missed, the screen may miss two fifths and the confirmation three fifths: 2 % and 3 %
# where the power is 95 %. The screen's costs launches of suspects only, the confirmation's makes each of them longer.
SCREEN_SHARE = 0.4

GAIN = 0.05
"""The smallest gain that is told, as a ratio minus 1, unless less than that is to be found of a loss."""

# What a program can lose where the control workload did, as a multiple. The control workload is as bound to the power
# limit as a program can be; the half is for those that it slows otherwise.
EXPLAINED = 1.5

FEWEST_TO_CONFIRM = 3  # one bad launch spoils the median of 2, which is their mean

LARGEST_LOSS = 700.0  # its exponential is still a float

LONGEST = 1000  # launches in a baseline; nobody records more

# A loss that most checks of a run share is the machine's, not a program's.
SHIFT = math.log(1.015)

# The median of n checks' losses has the standard error 1.25 sigma sqrt(1 + pi/(2m)) / sqrt(n): 0.43 % for sigma = 1 %,
# m = 10 and n = 10, so that SHIFT is 3.5 standard errors away. With fewer checks chance alone moves the median that
# far, and two or three real regressions are most of the suite.
SHIFT_CHECKS = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """What is to be found, and how often the answer may be wrong.

    Raises:
        ValueError: For a policy that has no meaning, or that could decide nothing.
    """

    min_effect: float = 0.015
    """Slowdowns up to this, as a ratio minus 1, are no regression: drift is not worth a red check."""
    detect: float = 0.05
    """The slowdown, as a ratio minus 1, that is to be found."""
    suite_alpha: float = 0.01
    """Chance of one false alarm or more in a run of the whole suite."""
    power: float = 0.95
    """Chance to find a slowdown of detect."""
    kmin: int = 5
    """Fewest launches that confirm. Where 2 % of launches are bad, 2 of 3 are in 12 of 10 000 confirmations, which with
    a hundred checks takes all of suite_alpha; 3 of 5 are in 1 of 10 000."""
    kmax: int = 25
    """Most launches that confirm."""
    floor: float = 0.003
    """Least spread that is believed, in logarithms: launches of one hour know little about the next week's."""
    prior_dof: float = 10.0
    """Most degrees of freedom that the suite's spread is worth in the estimate of one check's."""

    def __post_init__(self) -> None:
        """Refuses a policy that could not decide with the best of baselines."""
        for name in ("min_effect", "detect", "floor", "prior_dof"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"policy {name} is {figure!r}, expected a finite number above 0")
        if not 0 < self.suite_alpha < 0.5:
            raise ValueError(f"policy suite_alpha is {self.suite_alpha!r}, expected a chance between 0 and 0.5")
        if not 0.5 < self.power < 1:
            raise ValueError(f"policy power is {self.power!r}, expected a chance between 0.5 and 1")
        if type(self.kmin) is not int or self.kmin < FEWEST_TO_CONFIRM:
            raise ValueError(
                f"policy kmin is {self.kmin!r}, expected a whole number of at least {FEWEST_TO_CONFIRM}: "
                f"the median of fewer launches does not outvote a bad one"
            )
        if type(self.kmax) is not int or self.kmax < self.kmin:
            raise ValueError(f"policy kmax is {self.kmax!r}, expected a whole number of at least kmin, {self.kmin}")
        # One check, an endless baseline, no spread but the floor.
        best = self.seen(
            self.floor * math.sqrt(MEDIAN_VARIANCE / self.kmax), upper_quantile(self.suite_alpha, math.inf)
        )
        if best > self.detect:
            raise ValueError(
                f"policy detect is {self.detect!r}, but min_effect {self.min_effect!r}, floor {self.floor!r} and kmax "
                f"{self.kmax!r} let no check see less than {best:.4f}: raise detect, or lower min_effect"
            )

    @property
    def screen_miss(self) -> float:
        """Chance that the screen passes a slowdown of detect."""
        return SCREEN_SHARE * (1 - self.power)

    @property
    def confirm_miss(self) -> float:
        """Chance that the confirmation passes a slowdown of detect."""
        return (1 - SCREEN_SHARE) * (1 - self.power)

    def alarm(self, error: float, quantile: float) -> float:
        """The loss above which a check has regressed: max(ln(1 + min_effect), quantile * error).

        Args:
            error: Standard error of the loss.
            quantile: t(a, nu).
        """
        return max(math.log1p(self.min_effect), quantile * error)

    def seen(self, error: float, quantile: float) -> float:
        """The smallest slowdown that is found with the power, as a ratio minus 1: alarm + z(confirm_miss) * error.

        The sum of the two quantiles is that of every sample size; NIST/SEMATECH e-Handbook, 7.2.2.2.
        """
        loss = self.alarm(error, quantile) + upper_quantile(self.confirm_miss, math.inf) * error
        return math.expm1(loss) if loss < LARGEST_LOSS else math.inf


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What fresh launches came to; losses are differences of logarithms, above 0 is worse."""

    regressed: bool
    loss: float
    lower: float
    upper: float
    """One-sided bounds of the loss, each of which is wrong with the chance of one check's false alarm."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for one suite on one machine.

    Raises:
        ValueError: Without a check, or for a prior that is no spread.
    """

    policy: Policy
    checks: int
    """Checks that share suite_alpha, all that could raise an alarm."""
    prior: float
    """The suite's spread, see prior_spread."""
    prior_total: float = math.inf
    """Degrees of freedom of all histories that the prior was made of, the judged one's included."""
    prior_dof: float = math.inf
    """How alike the checks' spreads are, see prior_dof; the policy's is the most that it is worth."""

    def __post_init__(self) -> None:
        """Refuses what is no suite."""
        if type(self.checks) is not int or self.checks < 1:
            raise ValueError(f"rule checks is {self.checks!r}, expected a whole number of at least 1")
        if not (math.isfinite(self.prior) and self.prior >= 0):
            raise ValueError(f"rule prior is {self.prior!r}, expected a finite spread of at least 0")
        if not self.prior_total >= 0:
            raise ValueError(f"rule prior_total is {self.prior_total!r}, expected degrees of freedom of at least 0")
        if not self.prior_dof >= 0:
            raise ValueError(f"rule prior_dof is {self.prior_dof!r}, expected degrees of freedom of at least 0")

    @classmethod
    def of(cls, policy: Policy, histories: Sequence[History], checks: int | None = None) -> "Rule":
        """The rule for a suite with these histories.

        Args:
            policy: What is to be found.
            histories: One for each check that has a baseline.
            checks: How many share suite_alpha; as many as histories if not given.

        Raises:
            ValueError: If no history has 2 launches.
        """
        return cls(
            policy,
            len(histories) if checks is None else checks,
            prior_spread(histories),
            prior_total=sum(history.dof for history in histories),
            prior_dof=prior_dof(histories, policy.floor),
        )

    @property
    def alpha(self) -> float:
        """One check's chance of a false alarm: Bonferroni's share of the suite's."""
        return self.policy.suite_alpha / self.checks

    def dof(self, history: History) -> float:
        """Degrees of freedom nu of the pooled spread: the prior's and the history's own.

        The prior is worth as much as the checks are alike, at most the policy's prior_dof; and no more than the other
        histories it was made of, so that a suite of one check does not count its own spread twice.
        """
        return self._prior_dof(history) + history.dof

    def spread(self, history: History) -> float:
        """The pooled spread s of one launch, at least the floor.

        s^2 = (d0 prior^2 + d own^2) / (d0 + d): Smyth, Linear models and empirical Bayes methods, Statistical
        Applications in Genetics and Molecular Biology 3 (2004), article 3, section 4. A spread from 5 launches alone
        is useless at 1 in 10 000.
        """
        prior, own = self._prior_dof(history), history.dof
        if prior + own == 0:
            return max(self.policy.floor, self.prior)
        variance = (prior * self.prior**2 + own * history.spread**2) / (prior + own)
        return max(self.policy.floor, math.sqrt(variance))

    def error(self, history: History, k: int) -> float:
        """Standard error of the median of k launches minus the baseline's: s sqrt(pi/2 (1/m + 1/k))."""
        return _error(self.spread(history), history.launches, k)

    def suspects(self, history: History, y: float) -> bool:
        """Whether one launch leaves a slowdown of detect possible.

        y - B > ln(1 + detect) - t(screen_miss, nu) s sqrt(1 + pi/(2m)): a program that is slower by detect gets past
        with the chance screen_miss, at any spread. Of a wide one even a launch that is faster than the baseline's
        centre is suspect: it proves nothing.

        Args:
            history: The baseline.
            y: The launch's logarithm.
        """
        nu = self.dof(history)
        if nu < SMALLEST_DOF:
            return True  # nothing is known about the spread
        error = self.spread(history) * math.sqrt(1 + MEDIAN_VARIANCE / history.launches)
        return y - history.center > math.log1p(self.policy.detect) - upper_quantile(self.policy.screen_miss, nu) * error

    def rounds(self, history: History) -> int:
        """How many fresh launches a suspect gets: as many as it needs; kmax where no number sees detect.

        What kmax launches do not see surely they may see all the same, and a large loss they do: that is an alarm as
        any other, with the same chance of a false one. None, 0, where nothing is known about the spread.
        """
        if self.dof(history) < SMALLEST_DOF:
            return 0
        return self.launches(history) or self.policy.kmax

    def launches(self, history: History) -> int | None:
        """How many fresh launches a suspect needs: the least k that sees detect; None if kmax launches do not."""
        policy, detectable = self.policy, self._detectable(history)
        if detectable(policy.kmax) > policy.detect:
            return None
        more = range(policy.kmin, policy.kmax)
        return policy.kmin + bisect_left(more, True, key=lambda k: detectable(k) <= policy.detect)

    def detectable(self, history: History, k: int) -> float:
        """The smallest slowdown, as a ratio minus 1, that k fresh launches find with the power.

        Infinity where nothing is known about the spread.
        """
        return self._detectable(history)(k)

    def needed(self, history: History) -> int | None:
        """The least number of launches in the baseline with which kmax fresh ones see detect, if the spread stays.

        None if LONGEST launches do not either: then lock clocks, pin processes, or accept a larger detect.
        """
        spread, prior = self.spread(history), self._prior_dof(history)

        def decides(launches: int) -> bool:
            longer = replace(history, spread=spread).longer(launches)
            return Rule(self.policy, self.checks, spread, prior + longer.dof).launches(longer) is not None

        least = bisect_left(range(1, LONGEST + 1), True, key=decides) + 1
        return least if least <= LONGEST else None

    def confirm(self, history: History, ys: Sequence[float]) -> Confirmed:
        """Decides by fresh launches alone; the one that made the check a suspect must not be among them.

        loss = median(ys) - B; regressed if loss > max(ln(1 + min_effect), t(a, nu) SE(k)). As only fresh launches
        decide, the chance of a false alarm is at most that of this comparison: a, where the launches are normal. Bad
        launches raise it, as most of the fresh ones may be bad; there the screen, which sees another launch, helps.

        Args:
            history: The baseline.
            ys: Logarithms of the fresh launches, at least kmin; how many must not depend on how they came out.

        Raises:
            ValueError: For too few launches, or for a logarithm that is not finite.
        """
        refuse_without_logarithms("ys", ys, self.policy.kmin, "run as many launches as Rule.rounds says")
        loss = statistics.median(ys) - history.center
        margin = upper_quantile(self.alpha, self.dof(history)) * self.error(history, len(ys))
        return Confirmed(loss > self.alarm(history, len(ys)), loss, loss - margin, loss + margin)

    def alarm(self, history: History, k: int) -> float:
        """The loss above which k fresh launches call a check regressed: max(ln(1 + min_effect), t(a, nu) SE(k))."""
        return self.policy.alarm(self.error(history, k), upper_quantile(self.alpha, self.dof(history)))

    def explains(self, slower: float, loss: float, history: History, k: int) -> bool:
        """Whether a check's loss may be the machine's: loss - EXPLAINED slower is no alarm.

        Args:
            slower: The control workload's loss.
            loss: The check's, of k fresh launches, against the same launches as the control workload's.
            history: The baseline.
            k: How many fresh launches.
        """
        return slower > 0 and loss - EXPLAINED * slower <= self.alarm(history, k)

    def improved(self, history: History, y: float) -> bool:
        """Whether one launch is better than chance explains: B - y > max(ln(1 + min(detect, GAIN)), t(a, nu) SE(1)).

        One launch is enough, as nothing fails by it. No smaller gain is told: the launches of a recording agree better
        with one another than with those of the next run, by which no screen and no confirmation is misled.
        """
        nu = self.dof(history)
        if nu < SMALLEST_DOF:
            return False
        margin = upper_quantile(self.alpha, nu) * self.error(history, 1)
        return history.center - y > max(math.log1p(min(self.policy.detect, GAIN)), margin)

    def moved(self, history: History, ys: Sequence[float]) -> bool:
        """Whether launches are off, either way, by more than chance explains.

        |median(ys) - B| > max(ln(1 + min_effect), t(a, nu) SE(k)). Of the control workload, which is nobody's program:
        what moved it was not a change to the programs. A spread that is not known yet explains everything.
        """
        nu = self.dof(history)
        if nu < SMALLEST_DOF:
            return False
        bound = self.policy.alarm(self.error(history, len(ys)), upper_quantile(self.alpha, nu))
        return abs(statistics.median(ys) - history.center) > bound

    def _detectable(self, history: History) -> Callable[[int], float]:
        """The function of k, with what does not depend on k computed once."""
        nu, spread = self.dof(history), self.spread(history)
        if nu < SMALLEST_DOF:
            return lambda k: math.inf
        quantile = upper_quantile(self.alpha, nu)
        return lambda k: self.policy.seen(_error(spread, history.launches, k), quantile)

    def _prior_dof(self, history: History) -> float:
        return min(self.policy.prior_dof, self.prior_dof, max(0.0, self.prior_total - history.dof))


def shifted(losses: Sequence[float]) -> float | None:
    """The median loss of a run, None unless more than half of the checks lost (or gained) more than SHIFT.

    None too with fewer than SHIFT_CHECKS checks, which do not tell chance or a few regressions from the machine.
    Checks are independent of each other in this rule; a throttled or differently cabled machine makes all of them
    slower at once, and would be reported as so many regressions. Both directions count: the figures of a machine that
    has become faster do not belong to this baseline either.

    Args:
        losses: Screening launch minus the baseline's centre, one for each check.
    """
    if len(losses) < SHIFT_CHECKS:
        return None
    most_lost = statistics.median_low(losses) > SHIFT
    most_gained = statistics.median_high(losses) < -SHIFT
    return statistics.median(losses) if most_lost or most_gained else None


def _error(spread: float, m: int, k: int) -> float:
    return spread * math.sqrt(MEDIAN_VARIANCE * (1 / m + 1 / k))
