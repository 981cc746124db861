"""What a launch measured, on its way into baselines."""

from pytest_gpuperf.baselines.recorded import RecordedTest
from pytest_gpuperf.figures.metric import Metric


def test_what_gpus_did_meanwhile_is_kept_with_each_figure() -> None:
    measured = RecordedTest("body")
    measured.add(1, "a", {"time": Metric(1.0, "s", "lower", sm_clock=1.98e9, watts=400.0, kelvin=320.0)})
    measured.add(2, "b", {"time": Metric(1.1, "s", "lower")})
    first, second = measured.entry().metrics["time"].launches
    assert (first.sm_clock, first.watts, first.kelvin) == (1.98e9, 400.0, 320.0)
    assert (second.sm_clock, second.watts, second.kelvin) == (None, None, None)
