"""How often the rule of verdicts/rule.py raises a false alarm and finds a slowdown, beside the rules of others.

    python benchmarks/judge_simulation.py [--suites 600] [--seed 1] [--json FILE] [--check]

Simulated suites of 100 checks; the rule is imported, not copied. A launch's figure is exp(S), and S has the standard
deviation sigma, which differs from check to check: sigma_b^2 * 10 / chi2(10). The noise is

    normal   S is normal
    heavy    S is Student's t with 5 degrees of freedom, scaled to the same standard deviation, and 2 % of the launches
             are bad, 5 to 25 % slower
    modes    as normal, but a launch has one of three usual speeds, 2.5 % apart, for 20 of the 100 checks together

The modes are much as on one machine with 2 x H200, where an all_gather of 1 KiB took 5.5, 5.65 or 5.8 us and most small
collectives of a launch were fast or slow together.

Every rule sees the same draws. In an A/A run nothing has changed; a false alarm of the suite is one check or more that
is called a regression. In a slow run, one in five, all checks are 5 % slower, and power is the share that is found, of
those without modes.
Intervals are Wilson's, of 95 %. The rules of others compare one launch with one launch, but for ReFrame's, whose
reference is the median of the baseline; criterion also looks into the launch, where 50 samples have a coefficient of
variation of 1 %. Launches, fresh ones included, are independent: no drift, no shift of the whole machine.

Needs numpy. Exit status 0; with --check 1 if a target is not met.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Policy, Rule

Array: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

CHECKS = 100
SLOWDOWN = 1.05
SLOW_EVERY = 5  # a slow suite gives 100 answers, an A/A suite one
NOISES = ("normal", "heavy", "modes")
SIGMAS = (0.003, 0.005, 0.010, 0.015, 0.020)
BASELINES = (5, 10, 20)  # launches
SIGMA_DOF = 10  # of the checks' variances around sigma_b^2
TAIL_DOF = 5
BAD = 0.02  # share of bad launches
BAD_SLOWDOWN = (0.05, 0.25)
MODES, CHANCES = (-0.025, 0.0, 0.025), (0.4, 0.3, 0.3)
MODAL = 20  # checks, the first ones

SAMPLES = 50  # within a launch, for criterion
SAMPLE_CV = 0.01
CRITERION_THRESHOLD = 0.01
# z for its interval of 95 %: a bootstrap of the mean of 50 normal samples is normal.
CRITERION_Z = NormalDist().inv_cdf(0.975)
MEGATRON_RERUNS = 10

CHUNK = 50  # suites that one process simulates at a time

FALSE_ALARMS_AT_MOST = 0.01
FALSE_ALARMS_FROM = 10  # launches in the baseline
POWER_AT_LEAST = 0.95
POWER_UP_TO = 0.010  # sigma_b
POWER_LAUNCHES = 20  # in the baseline


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What a row of the table is about."""

    noise: str
    sigma_b: float
    launches: int
    """In the baseline."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of some suites."""

    suites: int = 0
    slow_checks: int = 0
    alarms: int = 0
    """Suites with a false alarm."""
    found: int = 0
    """Checks of slow runs that were called a regression."""
    undecided: int = 0
    slow_undecided: int = 0
    extra_launches: int = 0
    """Of A/A runs, summed over the checks."""

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Tally)))

    @property
    def false_alarms(self) -> float:
        """Share of the suites."""
        return self.alarms / self.suites

    @property
    def power(self) -> float:
        """Share of the checks that were 5 % slower."""
        return self.found / self.slow_checks


Tallies: TypeAlias = Mapping[str, Tally]

OURS = "this rule"


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share; Wilson, Journal of the American Statistical Association 22 (1927)."""
    z = NormalDist().inv_cdf(0.975)
    share, scale = successes / trials, 1 + z * z / trials
    center = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, center - half), min(1.0, center + half)


def sigmas(rng: np.random.Generator, sigma_b: float, checks: int) -> Array:
    """Each check's standard deviation."""
    return sigma_b * np.sqrt(SIGMA_DOF / rng.chisquare(SIGMA_DOF, checks))


def launches(rng: np.random.Generator, noise: str, sigma: Array, count: int) -> Array:
    """Logarithms of the figures, a row for each check, a column for each launch."""
    shape = (len(sigma), count)
    if noise in ("normal", "modes"):
        logs = sigma[:, None] * rng.standard_normal(shape)
        if noise == "modes":
            logs[:MODAL] += rng.choice(MODES, count, p=CHANCES)
        return logs
    scaled = rng.standard_t(TAIL_DOF, shape) / math.sqrt(TAIL_DOF / (TAIL_DOF - 2))
    bad = rng.random(shape) < BAD
    return sigma[:, None] * scaled + bad * np.log1p(rng.uniform(*BAD_SLOWDOWN, shape))


# The rules of others, as their sources had it in 2026. Each tells which checks it would call a regression.


def pytest_benchmark(old: Array, new: Array) -> Flags:
    """--benchmark-compare-fail=mean:5%: worse than the saved run by more than 5 %."""
    return new / old * 100 - 100 > 5


def reframe(reference: Array, new: Array) -> Flags:
    """A time with the reference (ref, None, 0.05): worse than it by more than 5 %."""
    return new > reference * 1.05


def megatron_golden(golden: Array, new: Array) -> Flags:
    """Golden values of the iteration time, isclose with rtol=0.05: both directions fail."""
    return np.abs(new - golden) > 0.05 * np.abs(golden)


def megatron_rerun(old: Array, attempts: Array) -> Flags:
    """moe_perf: more than 1.02 of the baseline in each attempt, a column each; here each is a fresh launch."""
    return np.asarray(np.all(attempts > 1.02 * old[:, None], axis=1))


def criterion(old: Array, new: Array, old_sd: Array, new_sd: Array) -> Flags:
    """The bootstrap interval of the change of the mean is above 1 %; its t-test (p < 0.05) holds wherever that does.

    Args:
        old: Means of the samples.
        new: The same of the new launch.
        old_sd: Standard deviations of the samples.
        new_sd: The same of the new launch.
    """
    ratio = new / old
    error = ratio * np.sqrt(((old_sd / old) ** 2 + (new_sd / new) ** 2) / SAMPLES)
    return np.asarray(ratio - 1 - CRITERION_Z * error > CRITERION_THRESHOLD)


def sample_sd(rng: np.random.Generator, figure: Array) -> Array:
    """The standard deviation of the samples within a launch, drawn as what it is for normal samples."""
    return SAMPLE_CV * figure * np.sqrt(rng.chisquare(SAMPLES - 1, figure.shape) / (SAMPLES - 1))


def verdicts_of_others(old: Array, fresh: Array, old_sd: Array, new_sd: Array) -> dict[str, Flags]:
    """What the others say.

    Args:
        old: Figures of the baseline, a column for each launch.
        fresh: Figures of fresh launches; the first is judged, the next are reruns.
        old_sd: Standard deviations of the samples in the baseline's first launch.
        new_sd: The same in the fresh launch.
    """
    first, new = old[:, 0], fresh[:, 0]
    return {
        "pytest-benchmark mean:5%": pytest_benchmark(first, new),
        "ReFrame +5 %": reframe(np.median(old, axis=1), new),
        "Megatron isclose 5 %": megatron_golden(first, new),
        "Megatron 1.02x": megatron_rerun(first, fresh[:, :1]),
        "Megatron 1.02x, 10 reruns": megatron_rerun(first, fresh[:, : 1 + MEGATRON_RERUNS]),
        "criterion": criterion(first, new, old_sd, new_sd),
    }


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rule says of one check."""

    regressed: bool = False
    undecided: bool = False
    extra_launches: int = 0


def judged(rule: Rule, history: History, fresh: Sequence[float]) -> Judged:
    """Screens by the first of the fresh launches and confirms by the next."""
    if not rule.suspects(history, fresh[0]):
        return Judged()
    rounds = rule.rounds(history)
    if not rounds:
        return Judged(undecided=True)
    regressed = rule.confirm(history, fresh[1 : 1 + rounds]).regressed
    return Judged(regressed, not regressed and rule.launches(history) is None, rounds)


def tally(calm: Sequence[Judged], slow: Sequence[Judged]) -> Tally:
    """One suite, judged as it is and, maybe, slowed down."""
    return Tally(
        suites=1,
        slow_checks=len(slow),
        alarms=any(check.regressed for check in calm),
        found=sum(check.regressed for check in slow),
        undecided=sum(check.undecided for check in calm),
        slow_undecided=sum(check.undecided for check in slow),
        extra_launches=sum(check.extra_launches for check in calm),
    )


def suite(rng: np.random.Generator, setting: Setting, slow: bool) -> dict[str, Tally]:
    """Simulates one suite and judges it by every rule.

    Args:
        rng: Where the draws come from.
        setting: Noise, spread and baseline.
        slow: Whether to judge it slowed down, too.
    """
    policy, m = Policy(), setting.launches
    sigma = sigmas(rng, setting.sigma_b, CHECKS)
    logs = launches(rng, setting.noise, sigma, m + 1 + max(policy.kmax, MEGATRON_RERUNS))
    old, fresh = logs[:, :m], logs[:, m:]
    histories = [History.of(row) for row in old.tolist()]
    rule = Rule.of(policy, histories)
    speeds = (1.0, SLOWDOWN) if slow else (1.0,)
    steady = MODAL if setting.noise == "modes" else 0
    ours = [
        [judged(rule, history, row) for history, row in zip(histories, (fresh + math.log(speed)).tolist(), strict=True)]
        for speed in speeds
    ]
    tallies = {OURS: tally(ours[0], ours[1][steady:] if slow else ())}
    figures, sd = np.exp(old), sample_sd(rng, np.exp(logs[:, [0, m]]))
    theirs = [verdicts_of_others(figures, speed * np.exp(fresh), sd[:, 0], speed * sd[:, 1]) for speed in speeds]
    for name, calm in theirs[0].items():
        found = [Judged(bool(flag)) for flag in theirs[1][name][steady:]] if slow else []
        tallies[name] = tally([Judged(bool(calm.any()))], found)
    return tallies


def chunk(setting: Setting, seeds: Sequence[np.random.SeedSequence]) -> dict[str, Tally]:
    """Simulates some suites, one for each seed; every fifth is slowed down, too."""
    total: dict[str, Tally] = {}
    for index, seed in enumerate(seeds):
        for name, one in suite(np.random.default_rng(seed), setting, slow=index % SLOW_EVERY == 0).items():
            total[name] = total.get(name, Tally()) + one
    return total


def simulated(settings: Sequence[Setting], suites: int, seed: int) -> dict[Setting, dict[str, Tally]]:
    """All settings; the result depends on the seed and not on the number of processes."""
    total: dict[Setting, dict[str, Tally]] = {setting: {} for setting in settings}
    roots = np.random.SeedSequence(seed).spawn(len(settings))
    work = [
        (setting, seeds[start : start + CHUNK])
        for setting, seeds in zip(settings, (root.spawn(suites) for root in roots), strict=True)
        for start in range(0, suites, CHUNK)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(chunk, *zip(*work, strict=True))
        for (setting, _), tallies in zip(work, done, strict=True):
            for name, one in tallies.items():
                total[setting][name] = total[setting].get(name, Tally()) + one
    return total


def table(found: Mapping[Setting, Tallies]) -> str:
    """This rule, a row for each setting."""
    lines = [
        f"{'noise':<8}{'sigma_b':>7}{'m':>4}   {'suite false alarms':<25}{'power at +5 %':<21}"
        f"{'undecided A/A, slow':<21}{'extra launches':>14}"
    ]
    for setting, tallies in found.items():
        ours = tallies[OURS]
        low, high = wilson(ours.alarms, ours.suites)
        least, most = wilson(ours.found, ours.slow_checks)
        lines.append(
            f"{setting.noise:<8}{setting.sigma_b:>7.1%}{setting.launches:>4}   "
            f"{f'{ours.false_alarms:.4f}  {low:.4f}-{high:.4f}':<25}{f'{ours.power:.3f}  {least:.3f}-{most:.3f}':<21}"
            f"{f'{ours.undecided / ours.suites / CHECKS:.3f}, {ours.slow_undecided / ours.slow_checks:.3f}':<21}"
            f"{ours.extra_launches / ours.suites / CHECKS:>14.2f}"
        )
    return "\n".join(lines)


def comparison(found: Mapping[Setting, Tallies], launches: int) -> str:
    """All rules with baselines of so many launches: suite false alarms / power, a column for each spread."""
    lines = []
    for noise in dict.fromkeys(setting.noise for setting in found):
        columns = {key.sigma_b: one for key, one in found.items() if (key.noise, key.launches) == (noise, launches)}
        lines.append(f"{noise + f', m = {launches}':<26}" + "".join(f"{sigma_b:>14.1%}" for sigma_b in columns))
        for name in next(iter(columns.values())):
            cells = (f"{one[name].false_alarms:.3f} / {one[name].power:.3f}" for one in columns.values())
            lines.append(f"{name:<26}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """What the rule promises, and the row that comes closest to breaking it."""

    name: str
    met: bool
    worst: Setting
    measured: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        """For the last lines of the output."""
        low, high = self.interval
        where = f"{self.worst.noise}, sigma_b {self.worst.sigma_b:.1%}, m = {self.worst.launches}"
        measured = f"worst {self.measured:.4f} ({low:.4f}-{high:.4f}), {where}"
        return f"{'met' if self.met else 'NOT MET'}: {self.name}; {measured}"


def targets(found: Mapping[Setting, Tallies]) -> list[Target]:
    """The two promises against what was measured."""
    ours = {setting: tallies[OURS] for setting, tallies in found.items()}
    known = [setting for setting in ours if setting.launches >= FALSE_ALARMS_FROM]
    loudest = max(known, key=lambda setting: ours[setting].false_alarms)
    alarms = ours[loudest]
    promised = [key for key in ours if key.sigma_b <= POWER_UP_TO and key.launches == POWER_LAUNCHES]
    weakest = min(promised, key=lambda setting: ours[setting].power)
    power = ours[weakest]
    return [
        Target(
            f"with {FALSE_ALARMS_FROM} launches or more "
            f"at most {FALSE_ALARMS_AT_MOST:.0%} of the suites raise a false alarm",
            alarms.false_alarms <= FALSE_ALARMS_AT_MOST,
            loudest,
            alarms.false_alarms,
            wilson(alarms.alarms, alarms.suites),
        ),
        Target(
            f"power of {POWER_AT_LEAST:.0%} at +5 % up to sigma_b {POWER_UP_TO:.0%} with {POWER_LAUNCHES} launches",
            power.power >= POWER_AT_LEAST,
            weakest,
            power.power,
            wilson(power.found, power.slow_checks),
        ),
    ]


def at_least_1(text: str) -> int:
    """A number of suites."""
    if (suites := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {suites}")
    return suites


def main() -> int:
    """Prints the tables; with --check 1 if a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=at_least_1, default=600, help="A/A suites for each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a target is not met")
    options = parser.parse_args()
    settings = [Setting(noise, sigma_b, m) for noise in NOISES for sigma_b in SIGMAS for m in BASELINES]
    found = simulated(settings, options.suites, options.seed)
    promises = targets(found)
    print(f"{options.suites} suites of {CHECKS} checks a row, seed {options.seed}, {Policy()}")
    print(table(found))
    print("\nsuite false alarms / power at +5 %, by sigma_b\n" + comparison(found, max(BASELINES)))
    print("\n" + "\n".join(str(promise) for promise in promises))
    if options.json is not None:
        rows = [
            {**asdict(setting), "rule": name, **asdict(one)}
            for setting, tallies in found.items()
            for name, one in tallies.items()
        ]
        document = {"seed": options.seed, "rows": rows, "targets": [asdict(promise) for promise in promises]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if options.check and not all(promise.met for promise in promises) else 0


if __name__ == "__main__":
    sys.exit(main())
