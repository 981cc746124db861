"""What differs from the record of a figure that moved, in words."""

from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.plain import make_plain, read
from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.report.why import explain_change, say_changed, say_measured
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import SAME

BASELINE = MetricBaseline(
    "B/s",
    "higher",
    "",
    (
        LaunchFigure("a", 50, 350e9, sm_clock=1.98e9, watts=400.0, kelvin=320.0),
        LaunchFigure("b", 50, 362e9, sm_clock=1.96e9, watts=410.0, kelvin=322.0),
        LaunchFigure("old", 50, 356e9),
    ),
)


def moved(**observed: float) -> Verdict:
    return replace(
        SAME,
        outcome=Outcome.REGRESSED,
        baseline=BASELINE,
        metric=replace(SAME.metric, **observed),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        ({"sm_clock": 1.97e9, "watts": 405.0, "kelvin": 321.0}, ""),
        ({"sm_clock": 1.95e9, "watts": 440.0, "kelvin": 328.0}, ""),  # as launches differ
        ({}, ""),
        ({"sm_clock": 1.41e9}, "while it was measured: SM clock 1.410 GHz, recorded 1.970 GHz"),
        ({"sm_clock": 1.97e9, "watts": 300.0, "kelvin": 350.0}, ""),  # it was as fast: the GPU had rested before
        (
            {"sm_clock": 1.41e9, "watts": 300.0, "kelvin": 350.0},
            "while it was measured: SM clock 1.410 GHz, recorded 1.970 GHz; power 300.0 W, recorded 405.0 W; "
            "temperature 77 C, recorded 48 C",
        ),
    ],
)
def test_clock_power_and_temperature(observed: dict[str, float], words: str) -> None:
    assert say_measured(moved(**observed)) == words
    assert explain_change(moved(**observed)) == ([words] if words else [])
    assert say_measured(replace(moved(**observed), outcome=Outcome.SAME)) == ""


def test_a_record_that_tells_nothing_of_its_gpus() -> None:
    bare = replace(BASELINE, launches=BASELINE.launches[2:])
    assert say_measured(replace(moved(sm_clock=1e9, watts=1.0, kelvin=400.0), baseline=bare)) == ""


def test_what_gpus_did_is_kept_and_may_be_missing() -> None:
    data = make_plain(BASELINE)
    assert "sm_clock" not in data["launches"][2]
    assert data["launches"][0]["watts"] == 400.0
    assert read(MetricBaseline, data, "baseline") == BASELINE


def test_only_the_first_changed_files_are_named() -> None:
    assert say_changed(()) == ""
    assert say_changed(["a.py"]) == "changed since, and imported by the test: a.py"
    assert say_changed([f"{n}.py" for n in range(7)]).endswith(": 0.py, 1.py, 2.py, 3.py, 4.py and 2 more")
