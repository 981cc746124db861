"""What the summary says of figures that are undecided, or only shown."""

from dataclasses import replace

import pytest

from pytest_gpuperf.report.undecided_lines import noisy_lines, undecided_lines
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.report.examples import SAME


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        (Reason.ASKED, "make the measurement quieter, or ask for less than at_least="),
        (Reason.BUDGET, "raise --race-budget"),
        (
            Reason.CANNOT_RACE,
            "no race: no git; install it; or record these GPUs with --update-baselines=append",
        ),
        (Reason.OPEN, "make the measurement quieter: its launches differ too much"),
        (Reason.SUSPECT, "let the run end: it was interrupted before other launches decided"),
    ],
)
def test_undecided_figures_are_one_line_with_each_cure_once(reason: Reason, cure: str) -> None:
    open_ = SAME.undecided(reason, "no git;\ninstall it")
    assert undecided_lines([SAME, open_, open_], fails=True) == [
        f"undecided: {cure} (2 figures); so the run fails; --undecided=warn lets it pass"
    ]
    assert undecided_lines([open_], fails=False) == [
        f"undecided: {cure} (1 figure); --undecided=fail makes the run fail by it"
    ]


def test_a_run_whose_figures_are_all_decided_says_nothing() -> None:
    assert undecided_lines([SAME], fails=True) == []
    assert noisy_lines([SAME]) == []


def test_figures_that_are_only_shown_are_one_line() -> None:
    noisy = replace(SAME, outcome=Outcome.UNJUDGED, reason=Reason.NOISY)
    assert noisy_lines([SAME, noisy]) == [
        "only shown: 1 figure whose launches or machines differ too much for a loss of 10.0 % to be seen; they fail "
        "below half of their speed"
    ]
