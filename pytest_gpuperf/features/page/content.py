"""What a page says of one run or several, in the words and units of reports; knows no HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from pytest_gpuperf.baselines.differences import differing
from pytest_gpuperf.baselines.plain import read
from pytest_gpuperf.baselines.schema import Baselines, MetricBaseline
from pytest_gpuperf.features.page.charts import Curve, Square, Table, draw_curve, draw_square, draw_table
from pytest_gpuperf.features.page.facts import MOVED, explain_not_judged, find_points, list_facts
from pytest_gpuperf.features.page.history import History
from pytest_gpuperf.features.page.parts import Environment, Figure, NotJudged, Row, Subject, Test
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.features.page.timelines import Timeline, make_timelines
from pytest_gpuperf.features.page.topology import Picture
from pytest_gpuperf.report.change import show_change
from pytest_gpuperf.report.headline import TestFigures, group_by_test
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.units import choose_scale, format_count, format_percent, format_value
from pytest_gpuperf.report.verdict_line import describe_outcome, list_details
from pytest_gpuperf.traces.profile import Profile
from pytest_gpuperf.verdicts.outcome import Effect, Outcome
from pytest_gpuperf.verdicts.verdict import Verdict


@dataclass(frozen=True)
class Content:
    """All that a page says."""

    runs: Sequence[Run]
    """The newest first."""
    stored: Mapping[str, Baselines] = field(default_factory=dict)
    """By hardware key."""
    histories: Mapping[str, History] = field(default_factory=dict)
    """The metric's launches over time, by hardware key."""

    @cached_property
    def keys(self) -> list[str]:
        """The hardware keys of the runs."""
        return list(dict.fromkeys(run.key for run in self.runs))

    @cached_property
    def subjects(self) -> list[Subject]:
        """Files with their tests, those with the worst tests first."""
        tests = sorted(self._tests, key=lambda test: (test.file, test.outcome.severity))  # stable: in the run's order
        subjects = [Subject(file, list(group)) for file, group in groupby(tests, key=lambda test: test.file)]
        return sorted(subjects, key=lambda subject: (_compute_severity(subject), subject.file))

    @cached_property
    def counts(self) -> list[tuple[Outcome, int]]:
        """How many tests came to which outcome, the worst first."""
        counts = Counter(test.outcome for test in self._tests)
        return [(outcome, counts[outcome]) for outcome in Outcome if counts[outcome]]

    @cached_property
    def moved(self) -> list[Row]:
        """The tests that are slower or faster than before, each with its worst figure, the worst tests first."""
        rows = []
        for test in self._tests:
            if figures := [figure for figure in test.figures if figure.outcome in MOVED]:
                worst = min(figures, key=lambda figure: figure.outcome.severity)
                rows.append(Row(test, worst, len(figures) - 1))
        return sorted(rows, key=lambda row: row.figure.outcome.severity)

    @cached_property
    def not_judged(self) -> list[NotJudged]:
        """The figures that could not be judged, by their reason, those that fail first."""
        groups: dict[tuple[bool, int, str], list[Row]] = {}
        for test in self._tests:
            for figure in test.figures:
                if figure.why_not_judged:
                    key = (figure.effect is Effect.PASSES, figure.outcome.severity, figure.why_not_judged)
                    groups.setdefault(key, []).append(Row(test, figure))
        return [
            NotJudged(rows[0].figure.outcome, why, passes, rows) for (passes, _, why), rows in sorted(groups.items())
        ]

    @property
    def not_run(self) -> int:
        """How many tests did not run."""
        return sum(len(tests) for _, tests in self.skips)

    @cached_property
    def ran(self) -> list[Ran]:
        """What became of each test on ranks in the newest run that has it."""
        newest: dict[str, Ran] = {}
        for run in self.runs:
            for ran in run.results.ran:
                newest.setdefault(ran.test, ran)
        return list(newest.values())

    @cached_property
    def failures(self) -> list[Ran]:
        """Tests that failed, with their reports."""
        return [ran for ran in self.ran if ran.outcome == "failed"]

    @cached_property
    def skips(self) -> list[tuple[str, list[str]]]:
        """Reasons for which tests did not run, the most frequent first, with the tests."""
        reasons: dict[str, list[str]] = {}
        for ran in self.ran:
            if ran.outcome == "skipped" and ran.test not in self._with_figures:
                reasons.setdefault(ran.reason, []).append(ran.test)
        return sorted(reasons.items(), key=lambda entry: (-len(entry[1]), entry[0]))

    @cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """What the newest run that was summed up came to as a whole; None if none was."""
        return next((run.results.summary for run in self.runs if run.results.summary is not None), None)

    @property
    def sentence(self) -> str:
        """What the runs came to, in one sentence."""
        ends = Counter(ran.outcome for ran in self.ran)
        tests = ", ".join(f"{ends[end]} {end}" for end in ("failed", "passed", "skipped") if ends[end])
        bad = Counter(test.outcome for test in self._tests if not test.passes)
        figures = ", ".join(f"{bad[outcome]} {outcome.value}" for outcome in Outcome if bad[outcome])
        said = [f"{format_count(len(self.ran), 'test')} on ranks: {tests}."] if tests else []
        if self.tried:
            tried = format_count(len(self.tried), "perf test")
            bodies = "its body" if len(self.tried) == 1 else "their bodies"
            said.insert(0, f"smoke: {tried} ran {bodies} once, and nothing was timed.")
        if self._tests:
            measured = f"{format_count(len(self._tests), 'test')} with metrics"
            said.insert(0, f"{measured}: {figures}." if figures else f"{measured}, none of them worse.")
        return " ".join(said) or "No test ran on ranks."

    @property
    def races(self) -> bool:
        """Whether figures have an old value beside the present one."""
        return any(run.results.raced is not None for run in self.runs)

    @cached_property
    def tried(self) -> list[str]:
        """The perf tests whose bodies smoke runs tried."""
        return list(dict.fromkeys(one.test for run in self.runs if run.results.smoke for one in run.results.verdicts))

    @cached_property
    def curves(self) -> list[Curve]:
        """The sweeps of the newest run that has them."""
        newest: dict[tuple[str, str], tuple[Run, Mapping[str, Any]]] = {}
        for run in self.runs:
            for told in run.results.shown.get("curves", ()):
                newest.setdefault((run.key, str(told["test"])), (run, told))
        return [draw_curve(number, run, told) for number, (run, told) in enumerate(newest.values())]

    @cached_property
    def squares(self) -> list[Square]:
        """The matrices of the newest run that has them."""
        newest: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        for run in self.runs:
            for told in run.results.shown.get("matrices", ()):
                newest.setdefault((run.key, str(told["test"]), str(told["name"])), told)
        return [draw_square(told) for told in newest.values()]

    @cached_property
    def timelines(self) -> list[Timeline]:
        """The profiled steps of the newest run that has them."""
        newest: dict[tuple[str, str, str], Profile] = {}
        for run in self.runs:
            for told in run.results.shown.get("profiles", ()):
                profile = read(Profile, told, "profile")
                newest.setdefault((run.key, profile.test, profile.arm), profile)
        return make_timelines(list(newest.values()))

    @cached_property
    def pictures(self) -> list[Picture]:
        """The topology of each hardware, from the newest run that has it."""
        newest: dict[str, Picture] = {}
        for run in self.runs:
            topology = run.results.topology
            if topology is not None and len(topology.gpus) > 1:
                newest.setdefault(run.key, Picture(run.key, topology))
        return list(newest.values())

    @cached_property
    def tables(self) -> list[Table]:
        """The searches of the newest run that has them."""
        newest: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        for run in self.runs:
            for told in run.results.shown.get("searches", ()):
                newest.setdefault((run.key, str(told["test"]), str(told["name"])), told)
        return [draw_table(number, told) for number, told in enumerate(newest.values())]

    @cached_property
    def environments(self) -> list[Environment]:
        """What each run ran with."""
        return [self._make_environment(run) for run in self.runs if run.launches]

    @property
    def moments(self) -> list[tuple[str, str]]:
        """When and where each launch of the baselines began, and each of their commits; charts have places in this."""
        _ = self._tests
        return list(self._places)

    @property
    def drawings(self) -> dict[str, Mapping[str, Any]]:
        """What the charts draw, by the id of the figure, the curve or the table."""
        figures = {figure.id: figure.drawing for test in self._tests for figure in test.figures}
        tables = {table.id: table.drawing for table in self.tables if table.drawing is not None}
        return {**figures, **{curve.id: curve.drawing for curve in self.curves}, **tables}

    @cached_property
    def _places(self) -> dict[tuple[str, str], int]:
        """The place of each moment. Thousands of figures share a few, so each is on the page once."""
        return {}

    def _place(self, when: str, where: str) -> int:
        return self._places.setdefault((when, where), len(self._places))

    @cached_property
    def _with_figures(self) -> set[str]:
        return {verdict.test for run in self.runs for verdict in run.results.verdicts}

    @cached_property
    def _verdicts(self) -> list[tuple[Run, dict[tuple[str, str], Verdict]]]:
        """The verdicts of each run by test and metric, the oldest run first."""
        return [
            (run, {(verdict.test, verdict.metric_name): verdict for verdict in run.results.verdicts})
            for run in reversed(self._timed)
        ]

    @property
    def _timed(self) -> list[Run]:
        """The runs whose figures say how fast something is."""
        return [run for run in self.runs if not run.results.smoke]

    @cached_property
    def _tests(self) -> list[Test]:
        seen: dict[tuple[str, str], tuple[Run, TestFigures]] = {}
        for run in self._timed:
            for figures in group_by_test(run.results.verdicts):
                seen.setdefault((run.key, figures.test), (run, figures))
        return [self._test(number, run, figures) for number, (run, figures) in enumerate(seen.values())]

    def _test(self, number: int, run: Run, figures: TestFigures) -> Test:
        verdicts = (figures.headline, *figures.others)
        told = [self._make_figure(f"f{number}-{place}", run, verdict) for place, verdict in enumerate(verdicts)]
        return Test(figures.name, figures.file, run.key, told[0], told)

    def _make_figure(self, id_: str, run: Run, verdict: Verdict) -> Figure:
        metric = verdict.metric
        share = metric.share_of_limit
        return Figure(
            id_,
            verdict.metric_name,
            verdict.outcome,
            " → ".join(format_value(value, metric.unit) for value in (verdict.old, metric.value) if value is not None),
            show_change(verdict),
            share,
            "" if share is None else f"{format_percent(share)} of {metric.limit_name or 'its limit'}",
            (describe_outcome(verdict), *list_details(verdict, _Options())),
            list_facts(verdict, run),
            self._make_drawing(run, verdict),
            verdict.effect,
            find_points(run, verdict),
            explain_not_judged(verdict),
        )

    def _make_drawing(self, run: Run, verdict: Verdict) -> dict[str, Any]:
        metric, baseline = verdict.metric, verdict.baseline
        scale, symbol = choose_scale(metric.value, metric.unit)
        drawing: dict[str, Any] = {
            "kind": "figure",
            "unit": symbol,
            "better": metric.better,
            "now": _quartiles(metric.value, metric.q1, metric.q3, scale),
            "outcome": verdict.outcome.value,
            "trace": [sample / scale for sample in metric.trace],
        }
        if metric.limit is not None:
            drawing["limit"] = metric.limit / scale
        if baseline is not None:
            drawing["center"] = baseline.center / scale
            drawing["bound"] = verdict.bound
            drawing["launches"] = self._list_launches(run.key, baseline, scale)
        past = self.histories.get(run.key, {}).get((verdict.test, verdict.metric_name), ())
        if len(past) > 1:
            drawing["history"] = [[self._place(one.at[:10], one.commit[:12]), one.center / scale] for one in past]
        others = [
            [one.name, found.metric.value / scale, found.outcome.value]
            for one, verdicts in self._verdicts
            if one.key == run.key
            and (found := verdicts.get((verdict.test, verdict.metric_name))) is not None
            and found.metric.unit == metric.unit
        ]
        if len(others) > 1:
            drawing["runs"] = others
        return drawing

    def _list_launches(self, key: str, baseline: MetricBaseline, scale: float) -> list[list[Any]]:
        """Return the place of each launch in ``moments``, and the figure's median there."""
        known = self.stored[key].launches if key in self.stored else {}
        rows: list[list[Any]] = []
        for one in baseline.launches:
            info = known.get(one.launch)
            where = "" if info is None else f"{info.host} {info.commit[:12]}"
            rows.append([self._place(one.launch[:20], where), one.median / scale])
        return rows

    def _make_environment(self, run: Run) -> Environment:
        now, stored = run.environment, self.stored.get(run.key)
        recorded = [] if stored is None else [info.environment for info in stored.launches.values()]
        changes = differing(recorded, now) if recorded else {}
        names = sorted({*now, *changes}, key=lambda name: (name not in changes, name.isupper(), name))
        rows = [
            (name, now.get(name, "not set"), changes[name][0] or "not set" if name in changes else "") for name in names
        ]
        nodes = run.launches[-1].nodes
        rows += [(f"node {name}", ", ".join(f"{key} {nodes[name][key]}" for key in nodes[name]), "") for name in nodes]
        return Environment(run, rows)


def _compute_severity(subject: Subject) -> int:
    return min(test.outcome.severity for test in subject.tests)


class _Options:
    """Names options alone: a page is read elsewhere than pytest was started."""

    def record(self, identity: str, *more: str, mode: str = "") -> str:
        """Return how a baseline is recorded."""
        return "pytest --update-baselines"

    def bisect(self, identity: str, good: str) -> str:
        """Return how the commit that made a test slower is found."""
        return f"pytest --bisect={good}"


def _quartiles(value: float, q1: float | None, q3: float | None, scale: float) -> list[float | None]:
    return [value / scale, None if q1 is None else q1 / scale, None if q3 is None else q3 / scale]
