"""The rule that finds slower programs: a screen against the record, a race for suspects, and the environment's share.

Metrics are natural logarithms, oriented so that larger is worse. A difference of two is a loss, and the loss of a
slowdown by 5 % is ln 1.05. The model: a launch's metric is mu + M + S. M belongs to the machine (its GPUs), and S to
the launch (fresh processes and communicators). Measuring longer within a launch does not change S, so only launches
count.

Notation of the formulas: m launches make the record's centre, of M machines; s is the pooled spread of one launch, and
nu its degrees of freedom; b is the spread between machines; N metrics share the suite's chance of a false alarm alpha;
t(p, nu) is the upper quantile of Student's t. docs/judging.md explains it in words.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.figures.student import SMALLEST_DOF, upper_quantile
from pytest_gpuperf.verdicts.history import History, compute_spread, median_variance, refuse_without_logarithms
from pytest_gpuperf.verdicts.race import (
    CLEARED_AT,
    FEWEST_TO_ACCUSE,
    MOST_BLOCKS,
    RECORD_DOF,
    Decision,
    Sequential,
    compute_center,
    compute_center_variance,
    compute_launch_evidence,
    compute_pair_evidence,
    compute_pair_losses,
    spread_today,
)

FLOOR = 0.005
"""Least spread of one launch that is believed, in logarithms: launches of one hour know little of the next week."""

PRIOR_DOF = 6.0
"""Degrees of freedom that the suite's spread is worth in the estimate of one metric's spread."""

BETWEEN = 0.006
"""Least spread between machines that a suite is believed to have: that of 27 metrics on ten machines of 2 x H200."""

BETWEEN_DOF = 4.0
"""Degrees of freedom that the suite's spread between machines is worth in the estimate of one metric's."""

MISSED = 0.02
"""The chance that the screen passes the minimum slowdown."""

# How many standard errors a loss must have at least to be suspect. For a metric that scatters by more than 1.2 % it
# limits how often an unchanged launch is suspect, at the price of power.
LEAST_ERRORS = 1.75

# Against a record of other days the launches of one run count for so many at most. With 1, a machine slower by 5 % is
# found in 15 of 100 runs if launches scatter by 1 %, with 2 in 70. Without a limit, runs whose launches correlate by
# 0.9 accuse the environment in 17 of 100, with 2 in 5.
ALIKE = 2

HEALTHY = 0.001
"""The chance that a metric of a healthy machine is outside of what healthy machines show."""

SEEN = 0.05
"""The chance that the screen passes the slowdown that it is said to find."""

APART = 2.0
"""The smallest loss that launches look for, in spreads of one launch, if the metric has a record.

A metric that scatters by 5 % and more would never be cleared of a loss of 5 %. Its record says which loss is seen.
"""

GAIN = 0.05
"""The smallest gain that is reported, as a ratio minus 1, unless less than that is to be found of a loss."""

MOST_CLEARING = 3
"""Most launches beyond the screen that may clear a suspect before it races, on GPUs that the record knows."""

MOST_CLEARING_ELSEWHERE = 2
"""Most of them on other GPUs, where they may differ from the record by the machine as well."""

NOISY = 0.10
"""A metric whose launches hide a loss of this, as a ratio minus 1, on one machine is shown, and not judged."""

APART_UNKNOWN = math.log(1.25)
"""The smallest loss that is gross on other GPUs if the record has only one machine.

Of 5380 pairs of machines of 2 x H200, metrics that depend on the GPUs and are not noisy are so far apart in 0.5 %.
"""

HALF = math.log(2)
"""The loss at half the speed. What is only shown is suspect beyond it, and so is a machine that the record lacks."""

MOST_LAUNCHES = 26
"""Most launches that decide against the record, the screen's included, if nothing can race."""

BEYOND = 0.001
"""The chance that a loss that is not beyond the minimum slowdown seems to be so at the end of a race."""

INTERVAL = 0.025
"""The chance that a loss is beyond one end of its interval."""

LARGEST_LOSS = 700.0  # its exponential is still a float


@dataclass(frozen=True, slots=True)
class Policy:
    """What is to be found, and how often the answer may be wrong.

    Raises:
        ValueError: The policy has no meaning, or could decide nothing.
    """

    minimum_effect: float = 0.015
    """Slowdowns up to this, as a ratio minus 1, are no regression."""
    minimum_slowdown: float = 0.05
    """The slowdown, as a ratio minus 1, that is to be found."""
    suite_alpha: float = 0.01
    """The chance of one false alarm or more in a run of the whole suite."""

    def __post_init__(self) -> None:
        """Refuse a policy that could not decide with the best of records."""
        for name in ("minimum_effect", "minimum_slowdown"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure > 0):
                raise ValueError(f"policy {name} is {figure!r}, expected a finite number above 0")
        if not 0 < self.suite_alpha < 0.5:
            raise ValueError(f"policy suite_alpha is {self.suite_alpha!r}, expected a chance between 0 and 0.5")
        # The longest race of one metric whose spread is the floor.
        best = self.least + upper_quantile(SEEN, math.inf) * FLOOR * math.sqrt(
            2 * compute_center_variance(2 * MOST_BLOCKS)
        )
        if self.slower < best:
            raise ValueError(
                f"policy minimum_slowdown is {self.minimum_slowdown!r}, but minimum_effect {self.minimum_effect!r} "
                f"lets no race see less than {math.expm1(best):.4f}: raise minimum_slowdown, or lower minimum_effect"
            )

    @property
    def slower(self) -> float:
        """The loss that is to be found: ln(1 + minimum_slowdown)."""
        return math.log1p(self.minimum_slowdown)

    @property
    def least(self) -> float:
        """The loss that is none yet: ln(1 + minimum_effect)."""
        return math.log1p(self.minimum_effect)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for one suite.

    Raises:
        ValueError: There is no metric, or a spread has no meaning.
    """

    policy: Policy
    checks: int
    """Metrics that share suite_alpha, N."""
    spread_of_suite: float = 0.0
    """The usual spread of one launch."""
    dof_of_suite: float = 0.0
    """Degrees of freedom of all spreads that the usual one is made of."""
    between_of_suite: float = BETWEEN
    """The usual spread between machines: that of the median metric, at least BETWEEN."""

    def __post_init__(self) -> None:
        """Refuse what is no suite."""
        if type(self.checks) is not int or self.checks < 1:
            raise ValueError(f"rule checks is {self.checks!r}, expected a whole number of at least 1")
        for name in ("spread_of_suite", "dof_of_suite", "between_of_suite"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure >= 0):
                raise ValueError(f"rule {name} is {figure!r}, expected a finite number of at least 0")

    @classmethod
    def of(cls, policy: Policy, histories: Sequence[History], checks: int) -> "Rule":
        """Return the rule for a suite.

        Args:
            policy: What is to be found.
            histories: One for each metric that has a record. It may have none, as in a race without a record.
            checks: Metrics that share suite_alpha, fixed before the screen.

        Raises:
            ValueError: checks is no number of metrics.
        """
        spreads = [history.spread**2 for history in histories if history.dof > 0]
        between = [
            history.between**2 / _median_of_variances(history.machines - 1)
            for history in histories
            if history.machines > 1 and not history.known
        ]
        return cls(
            policy,
            checks,
            spread_of_suite=math.sqrt(statistics.median(spreads)) if spreads else 0.0,
            dof_of_suite=sum(history.dof for history in histories),
            # Of the mean metric it would be that of sockets and disks, which hides what all others lose.
            between_of_suite=max(BETWEEN, math.sqrt(statistics.median(between))) if between else BETWEEN,
        )

    @property
    def alpha(self) -> float:
        """One metric's chance of a false alarm: Bonferroni's share of the suite's."""
        return self.policy.suite_alpha / self.checks

    def dof(self, history: History) -> float:
        """Return the degrees of freedom nu of the pooled spread: the suite's and the history's own.

        The suite's spread is worth PRIOR_DOF, and no more than the other histories that it was made of. So a suite of
        one metric does not count its own spread twice.
        """
        return self._prior_dof(history) + history.dof

    def spread(self, history: History) -> float:
        """Return the pooled spread s of one launch, at least FLOOR.

        s^2 = (d0 s0^2 + d1 s1^2) / (d0 + d1), of the suite and of the metric: Smyth, Linear models and empirical Bayes
        methods, Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3, section 4.
        """
        prior, own = self._prior_dof(history), history.dof
        if prior + own == 0:
            return max(FLOOR, self.spread_of_suite)
        variance = (prior * self.spread_of_suite**2 + own * history.spread**2) / (prior + own)
        return max(FLOOR, math.sqrt(variance))

    def between(self, history: History) -> float:
        """Return the pooled spread between machines b; 0 on known GPUs."""
        if history.known:
            return 0.0
        own = history.machines - 1
        variance = (BETWEEN_DOF * self.between_of_suite**2 + own * history.between**2) / (BETWEEN_DOF + own)
        return math.sqrt(variance)

    def is_noisy(self, history: History) -> bool:
        """Return whether launches of one machine hide a loss of NOISY or, if that is more, twice the minimum slowdown.

        Such a metric would race in every other run, and nothing would come of it. A spread that nothing is known about
        is none.
        """
        if self.dof(history) < SMALLEST_DOF:
            return False
        error = self.spread(history) * math.sqrt(1 + median_variance(history.launches))
        seen = self._compute_bound(history, error) + upper_quantile(SEEN, math.inf) * error
        return seen > max(math.log1p(NOISY), 2 * self.policy.slower)

    def hides(self, history: History) -> bool:
        """Return whether the screen lets a loss of NOISY pass, or of twice the minimum slowdown if that is more."""
        return self.find_smallest_slowdown(history) > max(NOISY, math.expm1(2 * self.policy.slower))

    def suspects(self, history: History, y: float, *, shown: bool = False) -> bool:
        """Return whether one launch leaves the minimum slowdown possible, and is slow enough to ask.

        y - B > max(ln(1 + minimum_slowdown) - t(MISSED, nu) T, LEAST_ERRORS T). The first bound passes a
        program that is slower by the minimum slowdown with the chance MISSED. The second one suspects an unchanged
        program in 4 of 100 launches at most.

        Args:
            history: The record.
            y: The launch's logarithm.
            shown: Whether the metric is only shown; then nothing but a gross loss is suspect.
        """
        loss = y - history.center
        if shown:
            return loss > HALF and self.is_gross(history, y)
        return loss > self._compute_bound(history, self.error(history))

    def clears(self, history: History, ys: Sequence[float]) -> bool:
        """Return whether launches of the present code show no loss that has to be raced.

        They do if "the same" is surely more likely. On GPUs that the record lacks, where machines differ by more than
        launches tell, it is enough if the screen would pass what they agree on.

        Args:
            history: The record.
            ys: Logarithms of the launches; the screening launch is the first.
        """
        if self.compare_with_record(history, ys).decision is Decision.CLEARED:
            return True
        if history.known:
            return False
        within = self.spread(history) ** 2 * (median_variance(len(ys)) + median_variance(history.launches))
        error = math.sqrt(within + self._compute_machine_error(history) ** 2)
        return statistics.median(ys) - history.center <= self._compute_bound(history, error)

    def is_gross(self, history: History, y: float) -> bool:
        """Return whether one launch lost more than chance explains, and than machines of one kind differ by.

        y - B > max(ln(1 + minimum_slowdown), t(alpha / N, nu) T), nu that of both spreads together. If the record has
        one machine, and the GPUs are others, the spread of machines is unknown: then APART_UNKNOWN is the least.

        Args:
            history: The record.
            y: The launch's logarithm.
        """
        least = self.policy.slower
        if history.machines == 1 and not history.known:
            least = max(least, APART_UNKNOWN)
        dof = self._compute_launch_dof(history)
        if dof < SMALLEST_DOF:
            return False
        return y - history.center > max(least, upper_quantile(self.alpha, dof) * self.error(history))

    def find_smallest_slowdown(self, history: History) -> float:
        """Return the smallest slowdown, as a ratio minus 1, that the screen finds with 95 %."""
        if self.dof(history) < SMALLEST_DOF:
            return math.inf
        error = self.error(history)
        return _compute_ratio(self._compute_bound(history, error) + upper_quantile(SEEN, math.inf) * error)

    def find_largest_healthy(self, history: History) -> float:
        """Return the largest loss, as a logarithm, that a launch of another healthy machine shows.

        max(ln(1 + minimum_slowdown), t(HEALTHY, nu) T). The degrees of freedom nu are those of both spreads together.

        Args:
            history: Launches of other machines.
        """
        dof = self._compute_launch_dof(history)
        if dof < SMALLEST_DOF:
            return math.inf
        return max(self.policy.slower, upper_quantile(HEALTHY, dof) * self.error(history))

    def is_improved(self, history: History, y: float) -> bool:
        """Return whether one launch is better than chance explains.

        B - y > max(ln(1 + min(minimum_slowdown, GAIN)), t(alpha / N, nu) T). One launch is enough, because nothing
        fails by it.

        Args:
            history: The record.
            y: The launch's logarithm.
        """
        nu = self.dof(history)
        if nu < SMALLEST_DOF:
            return False
        margin = upper_quantile(self.alpha, nu) * self.error(history)
        return history.center - y > max(math.log1p(min(self.policy.minimum_slowdown, GAIN)), margin)

    def compare_with_record(self, history: History, ys: Sequence[float]) -> Sequential:
        """Return what launches show against the record.

        On GPUs that the record knows, MOST_CLEARING launches beyond the screen may clear a suspect. An accusation
        counts only if nothing can race, within MOST_LAUNCHES.

        Args:
            history: The record.
            ys: Logarithms of the launches; the screening launch is the first.

        Raises:
            ValueError: There is no launch, or a logarithm is not finite.
        """
        refuse_without_logarithms("ys", ys, 1, "pass the screening launch first")
        spread, losses = self.spread(history), [y - history.center for y in ys]
        shared = median_variance(history.launches) + (self._compute_machine_error(history) / spread) ** 2
        told = max(self.policy.slower, APART * spread)
        evidence = compute_launch_evidence(losses, told, spread, shared)
        error = spread * math.sqrt(compute_center_variance(len(losses)) + shared)
        return self._decide(
            evidence, compute_center(losses), error, self.dof(history), launches=len(losses), looks=MOST_LAUNCHES
        )

    def race(
        self,
        history: History | None,
        a: Sequence[float],
        b: Sequence[float],
        *,
        apart: float = 0.0,
        over: bool = False,
    ) -> Sequential:
        """Return what a race shows; the loss is that of B against A.

        At the end of a race with a record, a loss that is beyond the minimum slowdown with 999 of 1000 is an
        accusation. The screen let few metrics come so far.

        Args:
            history: The record, for its spread; None if there is none, and the race's own spread counts alone.
            a: Logarithms of arm A's launches, in order of measurement, whole ABBA blocks.
            b: Logarithms of arm B's launches, likewise.
            apart: The smallest loss that the race looks for, in spreads of one launch; see APART.
            over: Whether there are no more blocks.

        Raises:
            ValueError: These are no whole blocks, more than MOST_BLOCKS, or a logarithm is not finite.
        """
        pairs = compute_pair_losses(a, b)
        record, worth = FLOOR, 1.0
        if history is not None:
            record, worth = self.spread(history), min(RECORD_DOF, max(worth, self.dof(history)))
        spread, dof = spread_today(a, b, record, worth)
        spread = max(FLOOR, spread)
        evidence = compute_pair_evidence(pairs, max(self.policy.slower, apart * spread), spread)
        error = spread * math.sqrt(2 * compute_center_variance(len(pairs)))
        found = self._decide(evidence, compute_center(pairs), error, dof, launches=len(pairs), looks=MOST_BLOCKS)
        beyond = over and history is not None and found.loss - upper_quantile(BEYOND, dof) * error > self.policy.slower
        return replace(found, decision=Decision.ACCUSED) if beyond and found.decision is Decision.OPEN else found

    def environment(self, history: History, a: Sequence[float]) -> Sequential:
        """Return what arm A's launches of today show against the record: the loss that is not the code's.

        ACCUSED if the loss is above ln(1 + minimum_effect) and above t(alpha / N, nu) SE, else CLEARED. SE is the error
        of at most ALIKE launches, however many there are: the launches of a run are alike, and the record's are of
        other days.

        If the race cleared the code, pass the launches of both arms: they are launches of equal programs.

        Args:
            history: The record.
            a: Logarithms of arm A's launches.

        Raises:
            ValueError: There is no launch, or a logarithm is not finite.
        """
        refuse_without_logarithms("a", a, 1, "race the baseline's commit first")
        losses, nu = [y - history.center for y in a], self.dof(history)
        own, dof_of_today = compute_spread([a])
        spread = self.spread(history)
        if nu + dof_of_today > 0:  # today's launches may scatter wider than the record's
            spread = max(spread, math.sqrt((nu * spread**2 + dof_of_today * own**2) / (nu + dof_of_today)))
        between = self._compute_machine_error(history)
        shared = median_variance(history.launches) + (between / spread) ** 2
        error = spread * math.sqrt(1 / min(len(losses), ALIKE) + shared)
        dof = _combine_dof((error**2 - between**2, nu), (between**2, BETWEEN_DOF + history.machines - 1))
        loss = compute_center(losses)
        accused = dof >= SMALLEST_DOF and loss > max(self.policy.least, upper_quantile(self.alpha, dof) * error)
        lower, upper = _compute_interval(loss, error, dof)
        evidence = compute_launch_evidence(losses, self.policy.slower, spread, shared)
        return Sequential(Decision.ACCUSED if accused else Decision.CLEARED, evidence, loss, lower, upper)

    def _decide(
        self, evidence: float, loss: float, error: float, dof: float, *, launches: int, looks: int
    ) -> Sequential:
        """Accuse if the evidence does, and if the loss is surely there at any of so many looks.

        The evidence takes the spread for known. The second bound, loss > t(alpha / (N looks), nu) error, does not.
        Nothing is decided if nothing is known about the spread.
        """
        decision = Decision.OPEN
        if dof < SMALLEST_DOF:
            pass
        elif evidence <= CLEARED_AT:
            decision = Decision.CLEARED
        elif evidence >= self.checks / self.policy.suite_alpha and launches >= FEWEST_TO_ACCUSE:
            surely = upper_quantile(self.alpha / looks, dof) * error
            if loss > max(self.policy.least, surely):
                decision = Decision.ACCUSED
        return Sequential(decision, evidence, loss, *_compute_interval(loss, error, dof))

    def _compute_bound(self, history: History, error: float) -> float:
        """Return the smallest loss that is suspect, of a launch with this standard error."""
        nu = self.dof(history)
        if nu < SMALLEST_DOF:
            return -math.inf  # nothing is known about the spread
        hidden = self.policy.slower - upper_quantile(MISSED, nu) * error
        return max(hidden, LEAST_ERRORS * error)

    def error(self, history: History) -> float:
        """Return the standard error T of one launch minus the centre: T^2 = s^2 (1 + pi/(2m)) + b^2 (1 + 1/M)."""
        within = self.spread(history) ** 2 * (1 + median_variance(history.launches))
        return math.sqrt(within + self._compute_machine_error(history) ** 2)

    def _compute_launch_dof(self, history: History) -> float:
        """Return the degrees of freedom of one launch's error: of the launches' spread and the machines' together."""
        between = self._compute_machine_error(history)
        within = (self.error(history) ** 2 - between**2, self.dof(history))
        return _combine_dof(within, (between**2, BETWEEN_DOF + history.machines - 1))

    def _compute_machine_error(self, history: History) -> float:
        return self.between(history) * math.sqrt(1 + 1 / history.machines)

    def _prior_dof(self, history: History) -> float:
        return min(PRIOR_DOF, max(0.0, self.dof_of_suite - history.dof))


def _median_of_variances(dof: int) -> float:
    """The median of estimates of a variance of 1: Wilson and Hilferty, PNAS 17 (1931), 684-688; 3 % too high for 1."""
    return float((1 - 2 / (9 * dof)) ** 3)


def _compute_interval(loss: float, error: float, dof: float) -> tuple[float, float]:
    margin = upper_quantile(INTERVAL, dof) * error if dof >= SMALLEST_DOF else math.inf
    return loss - margin, loss + margin


def _combine_dof(*parts: tuple[float, float]) -> float:
    """Return the degrees of freedom of a sum of variances, each with its own: Satterthwaite, Biometrics 2 (1946)."""
    total = sum(variance for variance, _ in parts)
    off = sum(variance**2 / dof for variance, dof in parts if variance > 0 and dof > 0)
    return total**2 / off if off else 0.0


def _compute_ratio(loss: float) -> float:
    return math.expm1(loss) if loss < LARGEST_LOSS else math.inf
