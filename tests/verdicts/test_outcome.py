"""The table of outcomes: what each makes of its test, in which order reports have them, and that none is forgotten."""

from dataclasses import replace
from enum import Enum, EnumType
from pathlib import Path

import pytest

from pytest_gpuperf.report.table import format_verdict_table
from pytest_gpuperf.report.verdict_line import describe
from pytest_gpuperf.run.concluding import Ruling
from pytest_gpuperf.verdicts.outcome import Effect, Outcome
from tests.report.examples import COMMANDS, SAME

DOCS = Path(__file__).parents[2] / "docs"
FAILS = "invalid regressed missed missing"
SKIPS = "environment undecided"
PASSES = "expected improved same recorded unjudged"


def test_the_worst_comes_first() -> None:
    words = [outcome.value for outcome in Outcome]
    assert " ".join(words) == f"{FAILS} {SKIPS} {PASSES}"
    assert [outcome.severity for outcome in Outcome] == list(range(len(words)))


def test_what_each_makes_of_its_test() -> None:
    assert [outcome.value for outcome in Outcome if outcome.fails] == FAILS.split()
    assert [outcome.value for outcome in Outcome if outcome.skips] == SKIPS.split()
    assert [outcome.value for outcome in Outcome if outcome.effect is Effect.PASSES] == PASSES.split()


@pytest.mark.parametrize("outcome", Outcome, ids=str)
def test_an_outcome_rules_its_test_by_its_effect(outcome: Outcome) -> None:
    ruling = Ruling.of([replace(SAME, outcome=outcome)], COMMANDS)
    assert ruling.outcome == {Effect.FAILS: "failed", Effect.SKIPS: "skipped", Effect.PASSES: "passed"}[outcome.effect]
    assert (outcome.fails, outcome.skips) == (ruling.outcome == "failed", ruling.outcome == "skipped")
    assert bool(ruling.text) == (ruling.outcome != "passed")


@pytest.mark.parametrize("outcome", Outcome, ids=str)
def test_every_outcome_is_named_and_told_in_reports_and_docs(outcome: Outcome) -> None:
    verdict = replace(SAME, outcome=outcome)
    assert describe(verdict, COMMANDS)[0].startswith(f"{SAME.metric_name} 354.0 GB/s: ")
    assert any(line.text.startswith(outcome.value) for line in format_verdict_table([verdict]))
    assert outcome.meaning.endswith(".")
    assert "{gpuperf-table} outcomes" in (DOCS / "reference" / "outcomes.md").read_text()
    assert Outcome.of(outcome.value) is outcome


def test_an_outcome_without_an_effect_cannot_be_defined() -> None:
    members = EnumType.__prepare__("More", (Enum,))
    members["__new__"] = vars(Outcome)["__new_member__"]
    members["FORGOTTEN"] = "forgotten"
    with pytest.raises(TypeError, match=r"missing 2 required positional arguments: 'effect' and 'meaning'"):
        EnumType("More", (Enum,), members)
