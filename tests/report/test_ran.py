"""What became of each test, as it is gathered from the reports of its phases."""

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.report.ran import Ran, RanTests
from tests.report.examples import report


def taken(*reports: pytest.TestReport) -> Ran:
    tests = RanTests()
    for one in reports:
        tests.take(one)
    (ran,) = tests.tests
    return ran


def told(when: str, *properties: tuple[str, object], **more: Any) -> pytest.TestReport:
    return report(when, user_properties=list(properties), duration=0.5, sections=[], **more)


def test_what_a_test_recorded_is_kept_and_what_this_plugin_recorded_is_not() -> None:
    own = ("gpuperf.busbw.value", "3.54e+11")
    ran = taken(told("call", ("soak products", 39000), ("rate", 1.5), ("kind", "sums"), own, ("gpuperf", "[]")))
    assert ran.properties == {"soak products": 39000, "rate": 1.5, "kind": "sums"}


def test_what_is_no_number_and_no_text_is_left_out() -> None:
    assert taken(told("call", ("list", [1]), ("none", None), ("number", 1))).properties == {"number": 1}


def test_the_last_phase_tells_what_all_recorded() -> None:
    """Pytest gives each phase's report all properties so far."""
    first, second = ("soak sums", 7), ("soak copies", 8)
    ran = taken(told("setup"), told("call", first), told("teardown", first, second))
    assert ran.properties == {"soak sums": 7, "soak copies": 8}
    assert ran.seconds == 1.5


def test_a_test_that_fails_keeps_what_it_recorded() -> None:
    ran = taken(told("call", ("soak sums", 7), outcome="failed", longrepr="AssertionError: 1 != 2"))
    assert (ran.outcome, ran.properties) == ("failed", {"soak sums": 7})


def test_a_failure_in_a_worker_of_xdist_says_what_it_says_elsewhere() -> None:
    worker = SimpleNamespace(
        workerinfo={"id": "gw0", "sysplatform": "linux", "version_info": (3, 12, 0), "executable": "python"}
    )
    place = ("t.py", 3, "test_a")
    failed = pytest.TestReport(
        "t.py::test_a", place, {RANKS_KEYWORD: 1}, "failed", "the test checked no metric", "call", node=worker
    )
    assert failed.longreprtext.startswith("[gw0] linux")
    ran = taken(failed)
    assert ran.reason == ran.text == "the test checked no metric"


def test_a_test_that_recorded_nothing_has_no_properties() -> None:
    assert taken(told("call")).properties == {}


@pytest.mark.parametrize(("counted", "line"), [(0, 1), (3, 4), (None, 0)])
def test_lines_are_counted_from_one_and_zero_is_unknown(counted: int | None, line: int) -> None:
    assert taken(told("call", location=("t.py", counted, "test_a"))).line == line
