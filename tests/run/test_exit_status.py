"""The exit status of a run: that of its tests, and what a recording, a slower machine and the results add to it."""

import pytest

from pytest_gpuperf.features.recording.recorded_run import choose_exit_status
from pytest_gpuperf.run.exit_status import Ending, exit_status

OK, FAILED, NONE, USAGE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
    pytest.ExitCode.USAGE_ERROR,
)
BAD = Ending(results_problem=True)


@pytest.mark.parametrize("status", [OK, NONE])
@pytest.mark.parametrize("saved", [True, False])
def test_what_was_asked_for_and_not_done_fails_a_run_that_passed(status: int, saved: bool) -> None:
    assert exit_status(status, BAD) == FAILED
    assert choose_exit_status(status, saved=saved, failed=True) == FAILED


@pytest.mark.parametrize("status", [FAILED, USAGE, pytest.ExitCode.INTERRUPTED])
@pytest.mark.parametrize("ending", [BAD, Ending(slower=True)], ids=str)
def test_a_failure_stays_what_it_is(status: int, ending: Ending) -> None:
    assert exit_status(status, ending) == status
    assert choose_exit_status(status, saved=True, failed=ending == BAD) == status


@pytest.mark.parametrize(
    ("status", "ending", "becomes"),
    [
        (OK, Ending(), OK),
        (NONE, Ending(), NONE),
        (OK, Ending(slower=True), FAILED),
        (NONE, Ending(slower=True), NONE),
        (OK, Ending(unraced=True), FAILED),
    ],
)
def test_a_run_that_passed(status: int, ending: Ending, becomes: int) -> None:
    assert exit_status(status, ending) == becomes


@pytest.mark.parametrize(("status", "saved", "becomes"), [(OK, True, OK), (NONE, False, NONE), (OK, False, OK)])
def test_a_recording_that_passed(status: int, saved: bool, becomes: int) -> None:
    assert choose_exit_status(status, saved=saved, failed=False) == becomes


def test_a_recording_that_was_resumed_when_all_was_measured_is_a_success() -> None:
    assert choose_exit_status(NONE, saved=True, failed=False) == OK
