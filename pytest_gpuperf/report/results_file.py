"""``--gpuperf-json``: the results of a run, gathered from the reports and written at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines import json_files, results
from pytest_gpuperf.baselines.json_text import format_json, round_floats
from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.merge import join
from pytest_gpuperf.baselines.plain import FieldError, make_plain, read
from pytest_gpuperf.baselines.results import AGAIN, SCHEMA, ResultsError, ResultsForm
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.hardware.topology import Topology
from pytest_gpuperf.report.forms import SummaryForm
from pytest_gpuperf.report.kinds import KINDS
from pytest_gpuperf.report.properties import has_failed_by_itself, is_final, read_unchecked, read_verdicts
from pytest_gpuperf.report.ran import Ran, RanTests
from pytest_gpuperf.report.shown import Collected, Shown
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.verdict import Verdict

CANDIDATE_PROPERTY = "gpuperf_candidate"
"""Name of the report's user property that carries what a test measured in a launch, as baselines in JSON."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A metric that has a baseline and that its test did not check."""

    test: str
    metric_name: str


@dataclass(frozen=True, slots=True)
class Raced:
    """The two codes of a race of all tests."""

    at: str
    """When the run began to measure, in ISO 8601."""
    host: str
    against: str
    """The other code as the user named it: a commit, or the interpreter that runs it."""
    old_commit: str
    """Its full hash; empty if it is the same commit under another interpreter."""
    commit: str
    """The full hash of what is checked out."""
    dirty: bool
    """Whether the checkout has changes that are not committed."""


@dataclass(frozen=True, slots=True)
class Results:
    """What one run measured, and what it came to."""

    candidate: Baselines
    """Every launch of every perf test that ran; no anchors, no updates, nothing that a reviewer writes."""
    verdicts: tuple[Verdict, ...]
    unchecked: tuple[Unchecked, ...] = ()
    ran: tuple[Ran, ...] = ()
    """What became of each test on ranks."""
    shown: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """What tests show besides metrics, by the name of the kind."""
    topology: Topology | None = None
    """How the machine's GPUs reach one another; None if nobody looked."""
    raced: Raced | None = None
    """None unless the run raced all tests."""
    smoke: bool = False
    """Whether the run only tried bodies, and timed nothing."""
    summary: Mapping[str, Any] | None = None
    """What the run came to as a whole; None if nobody summed it up."""
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What features add, by the feature's name."""


def write(path: Path, results: Results) -> None:
    """Replaces a file of results; its folder is made if it is missing.

    Raises:
        BaselineWriteError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise json_files.BaselineWriteError(path, error) from error
    environments = [info.environment for info in results.candidate.launches.values()]
    form = ResultsForm(
        results=SCHEMA,
        hardware_key=results.candidate.hardware_key,
        environment=environments[0] if environments else {},
        candidate=results.candidate.to_json(),
        verdicts=tuple(make_plain(verdict) for verdict in results.verdicts),
        unchecked=tuple(make_plain(one) for one in results.unchecked),
        ran=tuple(make_plain(one) for one in results.ran),
        shown=results.shown,
        topology=None if results.topology is None else make_plain(results.topology),
        raced=None if results.raced is None else make_plain(results.raced),
        smoke=results.smoke,
        summary=results.summary,
        features=results.features,
    )
    json_files.replace(path, format_json(round_floats(make_plain(form))))


def load(path: Path, kinds: Sequence[Shown] = KINDS) -> Results:
    """Reads a file of results.

    Args:
        path: the file.
        kinds: their values must have their form; those of other kinds are taken as they are.

    Raises:
        ResultsError: For a file that is not there, or says anything else.
    """
    candidate, form = results.load(path)
    try:
        verdicts = tuple(read(Verdict, data, f"file.verdicts[{i}]") for i, data in enumerate(form.verdicts))
        unchecked = tuple(read(Unchecked, data, f"file.unchecked[{i}]") for i, data in enumerate(form.unchecked))
        ran = tuple(read(Ran, data, f"file.ran[{i}]") for i, data in enumerate(form.ran))
        topology = None if form.topology is None else read(Topology, form.topology, "file.topology")
        raced = None if form.raced is None else read(Raced, form.raced, "file.raced")
        for kind in kinds:
            kind.require(form.shown.get(kind.name, ()), f"file.shown.{kind.name}")
        if form.summary is not None:
            read(SummaryForm, form.summary, "file.summary")
    except (FieldError, RecursionError) as error:
        raise ResultsError(path, str(error), AGAIN) from error
    return Results(
        candidate,
        verdicts,
        unchecked,
        ran,
        form.shown,
        topology,
        raced,
        form.smoke,
        form.summary,
        form.features,
    )


class ResultsFile:
    """Collects metrics and verdicts from the reports, wherever the tests ran."""

    def __init__(
        self,
        path: Path | None,
        hardware_key: str,
        match: Mapping[str, Scalar],
        topology: Callable[[], Topology | None] = lambda: None,
        *,
        kinds: Sequence[Shown] = KINDS,
        smoke: bool = False,
    ) -> None:
        """Nothing is collected yet.

        Args:
            path: The file; None if the results are only gathered, for a page.
            hardware_key: Of the run.
            match: Facts of the machine.
            topology: Looks at the machine's GPUs, once the run has ended; None if there is nothing to see.
            kinds: Of what tests show.
            smoke: Whether the run only tries bodies.
        """
        self._path = path
        self._topology = topology
        self.raced: Callable[[], Raced | None] = lambda: None
        """Returns the codes of a race of all tests, once the run has ended."""
        self._smoke = smoke
        self._key = hardware_key
        self._candidates = [Baselines(hardware_key, match)]
        self._verdicts: list[Verdict] = []
        self._unchecked: list[Unchecked] = []
        self._shown = Collected(kinds)
        self._ran = RanTests()
        self._passing: dict[str, list[Baselines]] = {}
        """Candidates of tests whose body has ended, by the items' node ids."""
        self._features: dict[str, Mapping[str, Any]] = {}
        self._lines: list[str] = []
        self.problem: str | None = None
        """Why the file could not be written; None if it was, or is not yet."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of what one test measured, once it has ended well but for its verdicts."""
        if not is_final(report):
            return
        self._ran.take(report)
        if report.when == "call":
            self._take(report)
        elif report.when == "teardown":
            measured = self._passing.pop(report.nodeid, [])
            if report.passed:
                self._candidates += measured
            else:
                self._leave(measured)

    def _take(self, report: pytest.TestReport) -> None:
        self._unchecked += [Unchecked(report.nodeid, name) for name in read_unchecked(report)]
        self._shown.take(report)
        verdicts = read_verdicts(report) or []
        measured: list[Baselines] = []
        for name, value in report.user_properties:
            if name == CANDIDATE_PROPERTY:
                measured.append(Baselines.from_json(json.loads(str(value)), self._path or "results", self._key))
        self._verdicts += verdicts
        # A test fails by its verdicts, or by itself: in a fresh launch, or since it passed and should not.
        if has_failed_by_itself(report, failing=any(verdict.fails for verdict in verdicts)):
            self._leave(measured)
        else:
            self._passing[report.nodeid] = measured

    def _leave(self, measured: Sequence[Baselines]) -> None:
        tests = sorted({test for candidate in measured for test in candidate.tests})
        self._lines += [f"metrics of {test} left out of the results: the test failed: mend it" for test in tests]

    def add(self, feature: str, found: Mapping[str, Any]) -> None:
        """Takes what a feature adds to the results, in values that JSON has."""
        self._features[feature] = found

    def gather(self) -> tuple[Results, dict[str, str]]:
        """Return the results so far, and why the metrics of some tests are not among them, by test."""
        candidate, unfit = join(self._candidates)
        results = Results(
            candidate,
            tuple(self._verdicts),
            tuple(self._unchecked),
            self._ran.tests,
            self._shown.by_name(),
            self._topology(),
            self.raced(),
            self._smoke,
            features=dict(self._features),
        )
        return results, dict(unfit)

    def write(self) -> bool:
        """Writes the file, if one is asked for, also of a run that was interrupted; whether that worked."""
        if self._path is None:
            return True
        results, unfit = self.gather()
        self._lines += [f"metrics of {test} left out of the results: {why}" for test, why in sorted(unfit.items())]
        try:
            write(self._path, results)
        except json_files.BaselineWriteError as error:
            where = str(error.path)
            self._lines.append(f"results not written to {where!r}: {error.why}: name another file with --gpuperf-json")
            return False
        self._lines.append(f"results of {format_count(len(self._verdicts), 'metric')} written to {self._path}")
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says where the results are, and what is not among them."""
        for line in self._lines if self._path is not None else ():
            terminalreporter.write_line(f"gpuperf: {line}")
