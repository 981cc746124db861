"""The exit status of a run: that of its tests, and what a recording, a slower machine and the results add to it."""

import pytest

from pytest_gpuperf.run.exit_status import Ending, exit_status

OK, FAILED, NONE, USAGE = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
    pytest.ExitCode.USAGE_ERROR,
)
BAD = [Ending(saved=False), Ending(left_out=True), Ending(results_problem=True)]


@pytest.mark.parametrize("status", [OK, NONE])
@pytest.mark.parametrize("ending", BAD, ids=str)
def test_what_was_asked_for_and_not_done_fails_a_run_that_passed(status: int, ending: Ending) -> None:
    assert exit_status(status, ending) == FAILED


@pytest.mark.parametrize("status", [FAILED, USAGE, pytest.ExitCode.INTERRUPTED])
@pytest.mark.parametrize("ending", [*BAD, Ending(saved=True), Ending(slower=True)], ids=str)
def test_a_failure_stays_what_it_is(status: int, ending: Ending) -> None:
    assert exit_status(status, ending) == status


@pytest.mark.parametrize(
    ("status", "ending", "becomes"),
    [
        (OK, Ending(), OK),
        (NONE, Ending(), NONE),
        (NONE, Ending(saved=True), OK),  # resumed when all was measured
        (OK, Ending(saved=True), OK),
        (OK, Ending(slower=True), FAILED),
        (NONE, Ending(slower=True), NONE),
        (OK, Ending(unraced=True), FAILED),
        (NONE, Ending(saved=True, slower=True), FAILED),
    ],
)
def test_a_run_that_passed(status: int, ending: Ending, becomes: int) -> None:
    assert exit_status(status, ending) == becomes
