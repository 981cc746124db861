"""What is learnt from the reports of a run."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.report.findings import Failure, Findings
from pytest_gpuperf.report.place import Place
from pytest_gpuperf.report.properties import PROPERTY, make_unchecked_properties, make_verdict_properties
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.report.examples import SAME, SKIPPED, UNJUDGED, report

PLACE = Place("t.py", 4)


def found(*reports: pytest.TestReport) -> Findings:
    findings = Findings()
    for item in reports:
        findings.pytest_runtest_logreport(item)
    return findings


def test_verdicts_come_from_the_reports_of_calls() -> None:
    properties = [*make_verdict_properties([UNJUDGED, SAME]), ("other", "x")]
    findings = found(*(report(when, user_properties=properties) for when in ("setup", "call", "teardown")))
    assert findings.verdicts == [UNJUDGED, SAME]
    assert findings.places == {UNJUDGED.test: PLACE, SAME.test: PLACE}


def test_figures_that_were_not_checked_come_from_the_reports_of_calls() -> None:
    properties = make_unchecked_properties(["energy", "memory"])
    findings = found(*(report(when, user_properties=properties) for when in ("setup", "call", "teardown")))
    assert findings.unchecked == [("t.py::test_a[2ranks]", "energy"), ("t.py::test_a[2ranks]", "memory")]
    assert make_unchecked_properties([]) == []


def test_a_loss_of_the_environment_is_a_finding_about_the_run() -> None:
    lost = replace(SAME, outcome=Outcome.ENVIRONMENT)
    elsewhere = replace(lost, reason=Reason.ELSEWHERE)
    for verdict, expected in (
        (SAME, (False, False, False)),
        (lost, (True, True, False)),
        (elsewhere, (False, True, False)),
    ):
        findings = found(report(user_properties=make_verdict_properties([SAME, verdict])))
        assert tuple(map(findings.fails_by_environment, (None, True, False))) == expected


def test_an_undecided_figure_is_a_finding_about_the_run() -> None:
    for verdict, expected in ((SAME, False), (SAME.leave_undecided(Reason.OPEN), True)):
        assert found(report(user_properties=make_verdict_properties([SAME, verdict]))).undecided is expected


def test_a_race_that_was_asked_for_and_not_run_is_a_finding_about_the_run() -> None:
    unraced = UNJUDGED.leave_undecided(Reason.CANNOT_RACE, "no git")
    for verdict, expected in ((SAME, False), (SAME.leave_undecided(Reason.CANNOT_RACE), False), (unraced, True)):
        assert found(report(user_properties=make_verdict_properties([verdict]))).unraced is expected


def test_of_a_test_on_no_ranks_nothing_is_told() -> None:
    findings = found(report(keywords={}, outcome="failed"), report("setup", **SKIPPED, keywords={"ranks": 1}))
    assert (findings.nowhere, findings.failures, findings.outcomes) == (Counter(), [], Counter())


def test_skips_are_counted_by_reason_and_test() -> None:
    findings = found(report("setup", **SKIPPED), report("setup", **SKIPPED, nodeid="t.py::test_a[4ranks]"))
    assert findings.nowhere == {("no GPUs", "t.py::test_a"): 2}
    assert findings.outcomes == {"skipped": 2}


@pytest.mark.parametrize("ran", [{}, {"outcome": "failed"}, {"when": "setup", "outcome": "failed"}])
@pytest.mark.parametrize("first", [True, False])
def test_a_test_of_which_one_variant_ran_is_no_test_that_ran_nowhere(ran: dict[str, Any], first: bool) -> None:
    reports = [report(**ran, nodeid="t.py::test_a[4ranks]"), report("setup", **SKIPPED)]
    assert found(*(reports if first else reversed(reports))).nowhere == Counter()


def test_a_setup_alone_is_no_run() -> None:
    assert found(report("setup"), report(**SKIPPED), report("teardown")).nowhere == {("no GPUs", "t.py::test_a"): 1}


def test_an_expected_failure_is_no_skip() -> None:
    assert found(report(outcome="skipped", longrepr="xfail")).nowhere == Counter()


def test_an_undecided_test_ran() -> None:
    findings = found(report(**SKIPPED, user_properties=make_verdict_properties([SAME])))
    assert (findings.nowhere, findings.outcomes) == (Counter(), {"skipped": 1})


def test_a_test_counts_once_and_fails_with_any_phase() -> None:
    def phases(name: str, **outcomes: str) -> list[pytest.TestReport]:
        return [report(when, nodeid=name, outcome=outcome) for when, outcome in outcomes.items()]

    findings = found(
        *phases("a", setup="passed", call="passed", teardown="passed"),
        *phases("b", setup="passed", call="passed", teardown="failed"),
        *phases("c", setup="failed", teardown="passed"),
        *phases("d", setup="passed", call="failed", teardown="skipped"),
    )
    assert findings.outcomes == {"passed": 1, "failed": 3}


def test_a_failure_has_its_place_and_the_exceptions_own_message() -> None:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="AssertionError: no\nraised on rank 1"))
    findings = found(report(outcome="failed", longrepr=crash), report("teardown", outcome="failed", longrepr="left"))
    assert findings.failures == [
        Failure("t.py::test_a[2ranks]", "call", "AssertionError: no\nraised on rank 1", PLACE),
        Failure("t.py::test_a[2ranks]", "teardown", "left", PLACE),
    ]


def test_what_the_verdicts_say_is_no_second_failure() -> None:
    properties = make_verdict_properties([SAME, replace(SAME, outcome=Outcome.REGRESSED)])
    judged: dict[str, Any] = {"outcome": "failed", "user_properties": properties}
    assert found(report(**judged)).failures == []
    assert [failure.when for failure in found(report("teardown", **judged)).failures] == ["teardown"]


def test_a_failure_that_no_verdict_explains_is_one() -> None:
    judged = report(outcome="failed", longrepr="x", user_properties=make_verdict_properties([SAME]))
    assert [failure.when for failure in found(judged).failures] == ["call"]


def test_other_properties_are_no_verdicts() -> None:
    assert found(report(user_properties=[(f"{PROPERTY}.busbw.value", "1")])).verdicts == []
