"""What becomes of a perf test when its body has ended: its metrics are concluded, and rule its outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_gpuperf.api.checks import Checks
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.markers import find_scope
from pytest_gpuperf.report.curves import CURVES, make_curve
from pytest_gpuperf.report.matrices import MATRICES, make_matrix
from pytest_gpuperf.report.properties import make_unchecked_properties, make_verdict_properties
from pytest_gpuperf.report.results_file import CANDIDATE_PROPERTY
from pytest_gpuperf.report.searches import SEARCHES, make_table
from pytest_gpuperf.report.table import rank_verdicts
from pytest_gpuperf.report.verdict_line import VerdictCommands, describe
from pytest_gpuperf.run.body_hash import hash_body
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.judging import Judging
from pytest_gpuperf.run.launches import find_launch
from pytest_gpuperf.run.pytest_internals import skip_where_it_is_defined
from pytest_gpuperf.verdicts.verdict import Verdict, judge_unjudged

WAITS = pytest.StashKey[Callable[[Verdict], bool]]()
"""On an item whose reports are held back if one of its verdicts waits: Returns whether a verdict does."""
VERDICTS = pytest.StashKey[list[Verdict]]()
"""On such an item, if one does."""
FIGURES = pytest.StashKey[dict[str, Metric]]()
"""On an item of a later launch, which decides about the first one: its metrics; empty until it has some."""


class Ruled(pytest.fail.Exception):  # type: ignore[misc, name-defined]  # an attribute is no class to mypy
    """A test fails by its metrics, and the report is this text alone: its first words are the metric's."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a test's verdicts mean for its outcome."""

    outcome: str
    """``failed``, ``skipped`` or ``passed``."""
    text: str

    @classmethod
    def of(cls, verdicts: Sequence[Verdict], commands: VerdictCommands) -> Ruling:
        """The worst of them decides, and comes first: pytest's summary shows the first line.

        Args:
            verdicts: of one test.
            commands: makes the commands of the test.
        """
        worst_first = rank_verdicts(verdicts)
        bad = [describe(verdict, commands) for verdict in worst_first if verdict.fails]
        if bad:
            return cls("failed", "\n".join("\n  ".join(lines) for lines in bad))
        # A reason to skip is one line, as pytest prints it.
        open_ = ["; ".join(describe(verdict, commands)) for verdict in worst_first if verdict.outcome.skips]
        return cls("skipped", "; ".join(open_)) if open_ else cls("passed", "")


class Concluding:
    """Concludes the perf tests of one run."""

    def __init__(
        self,
        hardware_key: str,
        launch: CurrentLaunch,
        judging: Judging | None,
        commands: VerdictCommands,
        *,
        smoke: bool,
        results: bool,
    ) -> None:
        """Keeps what it needs.

        Args:
            hardware_key: names the machine.
            launch: that the metrics are of.
            judging: judges them, or keeps them; None if they are only shown.
            commands: makes the commands of a test.
            smoke: whether the run only tries bodies.
            results: whether the run writes a file of results.
        """
        self._key = hardware_key
        self._launch = launch
        self._judging = judging
        self._commands = commands
        self._smoke = smoke
        self._results = results

    def conclude(self, item: pytest.Function, checks: Checks) -> None:
        """Fails or skips the test by its metrics, unless its reports wait for later launches.

        Raises:
            pytest.fail.Exception: a metric fails the test, or it has checked none.
            pytest.skip.Exception: a metric leaves it open.
        """
        __tracebackhide__ = True
        launch = find_launch(item)
        if not checks.metrics:
            raise Ruled(
                "the perf test checked no metric, so nothing was judged: hand what it measures to "
                "perf.check, for example perf.check(time=timing.time)",
                pytrace=False,
            )
        self.show(item, checks)
        metrics, shown = _add_scopes(item, checks.metrics), _add_scopes(item, checks.shown)
        self._launch.note(launch.identity, metrics)
        body = hash_body(item)
        candidate = self._launch.candidate(launch.identity, body, metrics) if self._results else None
        if candidate is not None:
            item.user_properties.append((CANDIDATE_PROPERTY, json.dumps(candidate.to_json())))
        if FIGURES in item.stash:
            self._keep_fresh(item, launch.identity, metrics)
            return
        if self._judging is not None:
            unchecked = self._judging.list_unchecked(launch.identity, body, metrics)
            item.user_properties += make_unchecked_properties(unchecked)
        verdicts = self._judge_figures(launch.identity, body, metrics) + self._show(launch.identity, shown)
        waits = item.stash.get(WAITS, None)
        if waits is not None and any(map(waits, verdicts)):
            item.stash[VERDICTS] = verdicts
            return
        item.user_properties += make_verdict_properties(verdicts)
        self._rule(verdicts)

    def show(self, item: pytest.Function, checks: Checks) -> None:
        """Has reports show the test's curves, matrices and searches, also of a body that failed."""
        launch = find_launch(item)
        if launch.number == 1 and not self._smoke:  # what smoke times is noise
            test = launch.identity
            item.user_properties += CURVES.carry(make_curve(test, sweep) for sweep in checks.sweeps)
            matrices = checks.matrices.items()
            item.user_properties += MATRICES.carry(make_matrix(test, name, one) for name, one in matrices)
            item.user_properties += SEARCHES.carry(make_table(test, search) for search in checks.searches)

    def _keep_fresh(self, item: pytest.Function, test: str, metrics: dict[str, Metric]) -> None:
        __tracebackhide__ = True
        # Metrics that prove nothing decide nothing: invalid ones, and those above their limit.
        unfit = Ruling.of(self._show(test, metrics), self._commands)
        if unfit.outcome == "failed":
            raise Ruled(unfit.text, pytrace=False)
        item.stash[FIGURES] = metrics

    def _judge_figures(self, test: str, body: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return self._show(test, metrics) if self._judging is None else self._judging.conclude(test, body, metrics)

    def _show(self, test: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        return judge_unjudged(test, metrics, self._key, smoke=self._smoke)

    def _rule(self, verdicts: Sequence[Verdict]) -> None:
        __tracebackhide__ = True
        ruling = Ruling.of(verdicts, self._commands)
        if ruling.outcome == "failed":
            raise Ruled(ruling.text, pytrace=False)
        if ruling.outcome == "skipped":
            raise skip_where_it_is_defined(ruling.text)


def _add_scopes(item: pytest.Function, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics with what they depend on; those of all GPUs have no metric of a rank by itself."""
    scopes = {name: find_scope(item, name) for name in metrics}
    return {
        name: replace(metric, scope=scopes[name], by_rank=() if scopes[name] == "gpus" else metric.by_rank)
        for name, metric in metrics.items()
    }
