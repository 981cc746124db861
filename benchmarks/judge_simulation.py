"""How often the rule accuses unchanged code, and finds a slowdown, beside the rule before and simple rules.

    python benchmarks/judge_simulation.py [--suites 150] [--seed 1] [--rows WORD] [--json FILE] [--check]

A simulated suite has a record and a run today; ``simulated/noise.py`` has the kinds of noise. Each figure takes the
whole way of a run: the screen, the launches that clear it, the race, and the environment's share. The rule is imported,
not copied. Every rule sees the same draws.

A run of an unchanged suite raises a false alarm if it accuses the code of any figure. The environment's false alarms
are counted for themselves. Every eighth figure is also slowed: in the code, in the environment, in both.
Of the figures for which any is accused, the two are told apart if exactly the right one is. If both made a figure
slower, the code must be accused. The environment's share may be too small to be proved beside the machines' spread.

--check fails unless, in every row, at most 1 % of the unchanged runs accuse the code. In the rows with a spread of at
most 1 % (0.5 % beside bad launches) it also asks that 95 % of the 5 % slowdowns are found, or 80 % if launches are
correlated by 0.9; of machines that the record lacks only if they are at most 1 % apart. And it asks that 95 % of those
of code and of environment are told apart. Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import NormalDist

import numpy as np

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.simulated.before import Before, known
from benchmarks.simulated.course import Course, against_record, launches_of, raced_without_record, taken
from benchmarks.simulated.noise import MODAL, Noise, Suite, drawn
from benchmarks.simulated.others import OTHERS
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Policy, Rule

CHECKS = 100
SLOW_EVERY = 8  # figures of a suite
CHUNK = 10  # suites that a process simulates at a time
SLOWDOWNS = (0.02, 0.03, 0.05, 0.10)
PROMISED = 0.05  # the slowdown that is to be found

FALSE_ALARMS_AT_MOST = 0.01
POWER_AT_LEAST = 0.95
POWER_OF_CORRELATED = 0.80  # where launches of a run are correlated by 0.9
TOLD_APART_AT_LEAST = 0.95
SPREAD_UP_TO = 0.01
OFFSETS_UP_TO = 0.01  # of a machine that the record lacks
TAILED_UP_TO = 0.005  # with bad launches, which are no part of it: they make it 1.5 %, and 1.7 % of a spread of 1 %
MOST_SUITES = 10  # times as many of few checks

BEFORE = "the rule before"

RIGHT: Mapping[str, Callable[[Course], bool]] = {
    "code": lambda found: found.regressed and not found.environment,
    "environment": lambda found: found.environment and not found.regressed,
    "both": lambda found: found.regressed,
}
"""What of a slowdown must be accused, by where it is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    noise: Noise
    launches: int = 10
    """In the record."""
    checks: int = CHECKS
    race: str = "with record"
    """Or "without record", or "never": where nothing can race."""

    def __str__(self) -> str:
        """What the row is about."""
        suite = "" if self.checks == CHECKS else f", {self.checks} checks"
        race = {"with record": "", "without record": ", raced without a record", "never": ", not raced"}[self.race]
        return f"{self.noise.name}{suite}{race}"

    @property
    def other_environment(self) -> bool:
        """Whether the run is in another environment than the record: slower for months, for that day, or noisier."""
        return bool(self.noise.drift) or self.noise.correlation > 0.5 or self.noise.today > 1

    @property
    def promised(self) -> float:
        """The power that is promised; 0 if none is."""
        noise = self.noise
        if noise.tails and noise.spread > TAILED_UP_TO:
            return 0.0
        if max(noise.spread * noise.today, noise.wide) > SPREAD_UP_TO or self.race == "never":
            return 0.0
        if noise.machines > OFFSETS_UP_TO and not noise.known:
            return 0.0
        return POWER_OF_CORRELATED if noise.correlation > 0.5 else POWER_AT_LEAST


@dataclass(slots=True)
class Tally:
    """What came of some suites, by rule or by slowdown."""

    suites: int = 0
    launches: int = 0
    """Beyond the screen, of unchanged runs."""
    screened: int = 0
    """Unchanged runs with a suspect."""
    environment: int = 0
    """Unchanged runs that accuse the environment."""
    undecided: int = 0
    """Unchanged runs with an undecided figure."""
    slowed: int = 0
    """Figures that were slowed in turn, each in every way."""
    alarms: Counter[str] = field(default_factory=Counter)
    """Unchanged runs that accuse the code, by rule."""
    found: Counter[str] = field(default_factory=Counter)
    """Slowdowns of the code that were found, by rule or by size."""
    accused: Counter[str] = field(default_factory=Counter)
    """Slowdowns of 5 % that accuse anything, by where they were."""
    right: Counter[str] = field(default_factory=Counter)
    """The slowdowns among these that accuse exactly what was slowed down."""
    machine: int = 0
    """Slowdowns of the environment by 5 % that accuse it."""

    def add(self, other: Tally) -> None:
        """Count another one's suites, too."""
        for name, mine in self.plain().items():
            theirs = getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)  # keeps what is 0, unlike a sum
            else:
                setattr(self, name, mine + theirs)

    def plain(self) -> dict[str, int | Counter[str]]:
        """The counts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def false_alarms(self) -> float:
        """The share of unchanged runs that accuse the code."""
        return self.alarms["code"] / self.suites

    def power(self, what: str) -> float:
        """The share of slowdowns that were found."""
        return self.found[what] / self.slowed if self.slowed else math.nan

    def told_apart(self, where: str) -> float:
        """The share of right accusations."""
        return self.right[where] / self.accused[where] if self.accused[where] else math.nan


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share; Wilson, Journal of the American Statistical Association 22 (1927)."""
    z = NormalDist().inv_cdf(0.975)
    share, scale = successes / trials, 1 + z * z / trials
    center = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, center - half), min(1.0, center + half)


def course(row: Row, rule: Rule, history: History, today: Sequence[float], code: float, environment: float) -> Course:
    """One figure's way through the rule, as the row has it."""
    if row.race == "without record":
        return raced_without_record(rule, today, code)
    if row.race == "never":
        return against_record(rule, history, [y + environment for y in today], code)
    return taken(rule, history, today, code, environment)


def suite(rng: np.random.Generator, row: Row, index: int) -> Tally:
    """Simulate one suite and judge it by every rule.

    Args:
        rng: The source of the draws.
        row: Noise and record.
        index: Of the suite; it says which figures are slowed, too.
    """
    made = drawn(rng, row.noise, row.checks, row.launches)
    histories = [History.of(made.machines(check), made.here) for check in range(row.checks)]
    rule = Rule.of(Policy(), [] if row.race == "without record" else histories, row.checks)
    today = made.today.tolist()
    tally = Tally(suites=1)
    calm = [course(row, rule, histories[check], today[check], 0.0, 0.0) for check in range(row.checks)]
    tally.launches = launches_of(calm)
    tally.screened = any(one.suspect for one in calm)
    tally.environment = any(one.environment for one in calm)
    tally.undecided = any(one.undecided for one in calm)
    tally.alarms["code"] = any(one.regressed for one in calm)
    first = MODAL if row.noise.modes else 0  # how far those with two speeds scatter is beyond what is promised
    step = min(SLOW_EVERY, row.checks)
    checks = range(first + index % step, row.checks, step)
    for check in checks:
        _slowed(tally, row, rule, histories[check], today[check])
    if row.race == "with record":
        _others(tally, made, checks)
    return tally


def _slowed(tally: Tally, row: Row, rule: Rule, history: History, today: Sequence[float]) -> None:
    """One figure, slowed in every way in turn."""
    tally.slowed += 1
    for size in SLOWDOWNS:
        loss = math.log1p(size)
        by_code = course(row, rule, history, today, loss, 0.0)
        tally.found[f"{size:.0%}"] += by_code.regressed
        if size == PROMISED and row.race == "with record":
            ways = {"code": by_code}
            ways["environment"] = course(row, rule, history, today, 0.0, loss)
            ways["both"] = course(row, rule, history, today, loss, loss)
            for where, found in ways.items():
                tally.accused[where] += found.regressed or found.environment
                tally.right[where] += RIGHT[where](found)
                tally.machine += where == "environment" and found.environment


def _others(tally: Tally, made: Suite, checks: range) -> None:
    """The rule before, and simple rules."""
    record, loss = made.everything, math.log1p(PROMISED)
    records = [known(made.machines(check), made.here) for check in range(len(record))]
    before = Before.of(records)
    today = made.today.tolist()
    tally.alarms[BEFORE] = any(before.judged(one, ys)[0] for one, ys in zip(records, today, strict=True))
    for check in checks:
        tally.found[BEFORE] += before.judged(records[check], [y + loss for y in today[check]])[0]
    for name, rule in OTHERS.items():
        tally.alarms[name] = bool(rule(record, made.today).any())
        tally.found[name] += int(rule(record, made.today + loss)[checks].sum())


def chunk(row: Row, seeds: Sequence[np.random.SeedSequence], first: int) -> Tally:
    """Simulate some suites, one for each seed; the first one's index is given."""
    total = Tally()
    for index, seed in enumerate(seeds, first):
        total.add(suite(np.random.default_rng(seed), row, index))
    return total


def simulated(rows: Sequence[Row], suites: int, seed: int) -> dict[Row, Tally]:
    """Simulate all rows; the result depends on the seed and not on the number of processes."""
    total = {row: Tally() for row in rows}
    work = []
    for row, root in zip(rows, np.random.SeedSequence(seed).spawn(len(rows)), strict=True):
        count = max(1, min(MOST_SUITES * suites, suites * CHECKS // row.checks))
        seeds = root.spawn(count)
        work += [(row, seeds[start : start + CHUNK], start) for start in range(0, count, CHUNK)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for (row, _, _), one in zip(work, pool.map(chunk, *zip(*work, strict=True)), strict=True):
            total[row].add(one)
    return total


def rows() -> list[Row]:
    """All rows."""
    plain = [Noise(f"independent {spread:.1%}", spread) for spread in (0.003, 0.005, 0.010)]
    others = [
        Noise("correlated in a run, AR 0.5, 1 %", correlation=0.5),
        Noise("correlated in a run, AR 0.9, 1 %", correlation=0.9),
        Noise("new machine, offsets 0.5 %", 0.005, machines=0.005, known=False),
        Noise("new machine, offsets 1 %", 0.005, machines=0.010, known=False),
        Noise("two speeds by machine, new", 0.005, modes=True, known=False),
        Noise("half 0.2 %, half 3 %", 0.002, wide=0.03),
        Noise("tails of a check, 0.5 %", 0.005, tails="check"),
        Noise("tails of a launch, 0.5 %", 0.005, tails="launch"),
        Noise("tails of a check, 1 %", tails="check"),
        Noise("tails of a launch, 1 %", tails="launch"),
        Noise("correlated metrics, 1 %", shared=True),
        Noise("drift of 3 months, 0.5 %", 0.005, drift=0.015),
        Noise("drift of 6 months, 0.5 %", 0.005, drift=0.030),
        Noise("today 3 x noisier than 0.5 %", 0.005, today=3.0),
        Noise("today 3 x noisier than 1 %", 0.010, today=3.0),
    ]
    owned = [
        Noise("known machine, offsets 0.5 %", 0.005, machines=0.005),
        Noise("known machine, offsets 1 %", 0.005, machines=0.010),
        Noise("two speeds by machine, known", 0.005, modes=True),
    ]
    found = [Row(noise, launches) for noise in (*plain, *others) for launches in (5, 10, 25)]
    found += [Row(noise, launches) for noise in owned for launches in (10, 25)]
    found += [Row(noise, 10, checks) for noise in plain[1:] for checks in (1, 10, 500)]
    found += [Row(noise, 10, race="without record") for noise in (*plain, others[0], others[5], others[8], others[14])]
    far = Noise("new machine, offsets 2 %", 0.005, machines=0.020, known=False)
    found += [Row(noise, 10, race="never") for noise in (plain[1], plain[2], others[3], others[8], owned[1])]
    # Last, so that the rows above keep their draws.
    return found + [Row(far, launches) for launches in (5, 10, 25)]


def table(found: Mapping[Row, Tally]) -> str:
    """This rule, a line for each row."""
    sizes = "".join(f"{f'+{size:.0%}':>7}" for size in SLOWDOWNS)
    lines = [
        f"{'':<52}{'false alarms of':^27}{'power of code':^28}{'env.':>7}{'told apart':^24}{'unchanged runs':^30}",
        f"{'noise':<48}{'m':>4}{'the code (95 %)':>20}{'env.':>7}{sizes}{'+5%':>7}"
        f"{'code':>8}{'env.':>8}{'both':>8}{'launches':>10}{'suspect':>9}{'undecided':>11}",
    ]
    for row, tally in found.items():
        low, high = wilson(tally.alarms["code"], tally.suites)
        alarms = f"{tally.false_alarms:.3f} ({low:.3f}-{high:.3f})"
        power = "".join(f"{tally.power(f'{size:.0%}'):>7.3f}" for size in SLOWDOWNS)
        apart = "".join(f"{tally.told_apart(where):>8.3f}" for where in ("code", "environment", "both"))
        lines.append(
            f"{row!s:<48}{row.launches:>4}{alarms:>20}{tally.environment / tally.suites:>7.3f}{power}"
            f"{tally.machine / tally.slowed if tally.slowed else math.nan:>7.3f}{apart}"
            f"{tally.launches / tally.suites:>10.1f}{tally.screened / tally.suites:>9.3f}"
            f"{tally.undecided / tally.suites:>11.3f}"
        )
    return "\n".join(lines)


def comparison(found: Mapping[Row, Tally], launches: int) -> str:
    """All rules with records of so many launches: false alarms / power at 5 %."""
    names = {"this rule": ("code", f"{PROMISED:.0%}"), BEFORE: (BEFORE, BEFORE)}
    names |= {name: (name, name) for name in OTHERS}
    lines = [f"{'noise':<34}" + "".join(f"{name:>28}" for name in names)]
    for row, tally in found.items():
        if row.launches == launches and row.race == "with record":
            cells = (f"{tally.alarms[one] / tally.suites:.3f} / {tally.power(two):.3f}" for one, two in names.values())
            lines.append(f"{row!s:<34}" + "".join(f"{cell:>28}" for cell in cells))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Promise:
    """What the rule promises of a row, and what came of it."""

    row: str
    what: str
    least: float
    measured: float

    @property
    def kept(self) -> bool:
        """Whether it is kept; a share of nothing keeps it."""
        return math.isnan(self.measured) or self.measured >= self.least

    def __str__(self) -> str:
        """For the last lines of the output."""
        return f"{'kept' if self.kept else 'BROKEN'}: {self.row}: {self.what} {self.measured:.4f}, least {self.least:g}"


def promises(found: Mapping[Row, Tally]) -> list[Promise]:
    """All promises."""
    made = []
    for row, tally in found.items():
        name = f"{row}, m = {row.launches}"
        made.append(Promise(name, "runs without a false alarm", 1 - FALSE_ALARMS_AT_MOST, 1 - tally.false_alarms))
        if not row.other_environment:
            calm = 1 - tally.environment / tally.suites
            made.append(Promise(name, "runs that accuse no environment", 1 - FALSE_ALARMS_AT_MOST, calm))
        if row.promised:
            made.append(Promise(name, "power at 5 %", row.promised, tally.power(f"{PROMISED:.0%}")))
        if row.promised and row.race == "with record" and not row.noise.drift:  # drift is the environment's, too
            made += [
                Promise(name, f"told apart, {where}", TOLD_APART_AT_LEAST, tally.told_apart(where))
                for where in ("code", "environment", "both")
            ]
    return made


def at_least_1(text: str) -> int:
    """A number of suites."""
    if (suites := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {suites}")
    return suites


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; with --check 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=at_least_1, default=150, help="unchanged suites of 100 checks for each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", default="", help="only rows with this word")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a promise is broken")
    options = parser.parse_args(argv)
    chosen = [row for row in rows() if options.rows in f"{row} m={row.launches}"]
    if not chosen:
        parser.error(f"--rows {options.rows}: no row has this word")
    found = simulated(chosen, options.suites, options.seed)
    made = promises(found)
    print(f"{options.suites} suites of {CHECKS} checks a row, seed {options.seed}, {Policy()}")
    print(table(found), f"\nfalse alarms / power at 5 %, m = 10\n{comparison(found, 10)}\n", sep="\n")
    broken = [promise for promise in made if not promise.kept]
    print(*broken, f"{len(made) - len(broken)} of {len(made)} promises are kept", sep="\n")
    if options.json is not None:
        told = [{"row": str(row), "launches": row.launches, **tally.plain()} for row, tally in found.items()]
        options.json.write_text(json.dumps({"seed": options.seed, "rows": told}, indent=1) + "\n")
    return int(options.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
