"""What the summary says of figures that are undecided, or only shown."""

from dataclasses import replace

import pytest

from pytest_gpuperf.report.undecided_lines import describe_noisy, describe_undecided
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.report.examples import SAME


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        (Reason.ASKED, "run on a quieter machine, time a longer step, or lower at_least="),
        (Reason.BUDGET, "time ran out: raise --race-budget"),
        (
            Reason.CANNOT_RACE,
            "it could not race: no git; install it; or record these GPUs with --update-baselines=append",
        ),
        (Reason.OPEN, "its launches differ too much: run on a quieter machine, or time a longer step"),
        (Reason.SUSPECT, "no later launch decided: let the run end; a run without races makes none"),
    ],
)
def test_undecided_figures_are_one_line_with_each_cure_once(reason: Reason, cure: str) -> None:
    open_ = SAME.leave_undecided(reason, "no git;\ninstall it")
    assert describe_undecided([SAME, open_, open_], fails=True) == [
        f"undecided: {cure} (2 metrics); this fails the run; --undecided=warn lets it pass"
    ]
    assert describe_undecided([open_], fails=False) == [
        f"undecided: {cure} (1 metric); the run does not fail by it; --undecided=fail changes that"
    ]


@pytest.mark.parametrize("fails", [True, False])
def test_a_race_of_all_figures_that_could_not_begin_fails_the_run(fails: bool) -> None:
    open_ = replace(SAME.leave_undecided(Reason.CANNOT_RACE, "there is no v1.0"), baseline=None)
    assert describe_undecided([open_], fails=fails) == [
        "undecided: it could not race: there is no v1.0 (1 metric); this fails the run, which was to race"
    ]


def test_a_run_whose_figures_are_all_decided_says_nothing() -> None:
    assert describe_undecided([SAME], fails=True) == []
    assert describe_noisy([SAME]) == []


def test_figures_that_are_only_shown_are_one_line() -> None:
    noisy = replace(SAME, outcome=Outcome.UNJUDGED, reason=Reason.NOISY)
    assert describe_noisy([SAME, noisy]) == [
        "too noisy to judge well: 1 metric: launches or machines differ so much that a loss of 10.0 % could be missed; "
        "a metric fails only if it loses half of its speed"
    ]
