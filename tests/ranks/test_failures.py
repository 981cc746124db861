"""Who is blamed when ranks fail, and what is said of the others."""

import signal
import unittest

import pytest

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.failures import (
    RESULT_NOT_PICKLABLE,
    Died,
    Outcome,
    RankDied,
    RankError,
    RanksSkipped,
    RankTimeout,
    RemoteError,
    ResultError,
    Stuck,
    World,
    describe_exit,
    raise_root_cause,
)
from pytest_gpuperf.ranks.messages import Raised, Returned

RETURNED = Returned(run=1, payload=b"")


def raised(at: float, error: BaseException, *, kind: str | None = None, pickled: bool = True) -> Raised:
    data = payload.dump_exception(error) if pickled else None
    name = kind or type(error).__qualname__
    return Raised(1, at, data, name, str(error), f"Traceback of {name}\n{error}", usable=True)


def root_cause(*outcomes: Outcome) -> BaseException:
    with pytest.raises(BaseException) as caught:  # each test says which
        raise_root_cause(outcomes, World(len(outcomes), "gloo", "suite:program", timeout=2.5))
    return caught.value


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def test_the_earliest_failure_is_raised_whatever_its_rank() -> None:
    error = root_cause(raised(3.0, RuntimeError("peer closed")), RETURNED, raised(1.0, ValueError("cause")))
    assert type(error) is ValueError
    assert notes(error) == [
        "raised on rank 2 of 3 (gloo) in suite:program",
        "rank 0 raised RuntimeError: peer closed",
        "rank 1 returned",
    ]


def test_a_death_before_an_exception_is_the_cause() -> None:
    error = root_cause(raised(2.0, RuntimeError("peer closed")), Died(1.0, -9))
    assert type(error) is RankDied
    assert str(error) == "rank 1 of 2 (gloo) in suite:program was killed by SIGKILL"
    assert notes(error) == ["rank 0 raised RuntimeError: peer closed"]


def test_a_death_is_the_cause_of_what_its_peers_raise_before_it_is_noticed() -> None:
    error = root_cause(raised(1.000, RuntimeError("connection closed by peer")), Died(1.001, -11))
    assert type(error) is RankDied
    assert str(error) == "rank 1 of 2 (gloo) in suite:program was killed by SIGSEGV"


def test_an_exception_well_before_a_death_is_the_cause() -> None:
    error = root_cause(Died(20.0, 3), raised(1.0, ValueError("cause")))
    assert type(error) is ValueError
    assert "rank 0 exited with code 3 before the program returned" in notes(error)


def test_ranks_that_did_the_same_share_a_note() -> None:
    same = [raised(at, RuntimeError("peer closed\nsecond line")) for at in (4.0, 2.0, 3.0)]
    error = root_cause(raised(1.0, ValueError("cause")), *same, RETURNED, RETURNED)
    assert notes(error)[1:] == ["ranks 1, 2, 3 raised RuntimeError: peer closed", "ranks 4, 5 returned"]


def test_a_rank_that_waited_for_the_failed_one_shows_where() -> None:
    error = root_cause(raised(1.0, ValueError("cause")), Stuck(3.0, 'File "x.py", line 3 in wait'))
    assert notes(error)[1] == 'rank 1 had not returned when killed, and was here:\nFile "x.py", line 3 in wait'


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
        (0, "exited with code 0 before the program returned"),
        (3, "exited with code 3 before the program returned"),
        (None, "died, and its exit code was not reported"),
    ],
)
def test_an_exit_is_told_in_words(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


def test_a_timeout_names_who_was_stuck_and_where_and_what_to_do() -> None:
    error = root_cause(Stuck(1.0, "stack of 0"), RETURNED, Stuck(1.0, "stack of 2"))
    assert type(error) is RankTimeout
    assert str(error) == (
        "ranks 0, 2 of 3 (gloo) did not return from suite:program within 2.5 s; give it longer with "
        "@pytest.mark.ranks(..., timeout=SECONDS)"
    )
    assert notes(error) == ["rank 1 returned", "rank 0 was here:\nstack of 0", "rank 2 was here:\nstack of 2"]


def skipped(at: float, reason: str) -> Raised:
    return raised(at, pytest.skip.Exception(reason), kind="Skipped")


def test_a_skip_of_unittest_is_a_skip_too() -> None:
    same = raised(1.0, unittest.SkipTest("no NVLS"), kind="unittest.case.SkipTest")
    assert type(root_cause(same, same)) is RanksSkipped
    assert type(root_cause(same, RETURNED)) is RankError


def test_a_skip_of_all_ranks_for_one_reason_is_a_skip() -> None:
    error = root_cause(skipped(2.0, "no NVLS"), skipped(1.0, "no NVLS"))
    assert type(error) is RanksSkipped
    assert str(error) == "no NVLS"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (RETURNED, "rank 0 returned"),
        (skipped(2.0, "another reason"), "rank 0 raised Skipped: another reason"),
        (raised(2.0, ValueError("late")), "rank 0 raised ValueError: late"),
        (Died(2.0, 1), "rank 0 exited with code 1 before the program returned"),
    ],
    ids=["returned", "skipped otherwise", "raised", "died"],
)
def test_a_skip_that_not_all_ranks_agree_on_is_a_failure(other: Outcome, said: str) -> None:
    error = root_cause(other, skipped(1.0, "no NVLS"))
    assert type(error) is RankError
    assert str(error) == (
        "rank 1 of 2 (gloo) skipped in suite:program and the others did not do the same: ranks must agree, so "
        "that no skip hides a failure. It raised Skipped: no NVLS"
    )
    assert notes(error) == [said]


def test_a_skip_after_a_failure_does_not_hide_it() -> None:
    error = root_cause(skipped(2.0, "no NVLS"), raised(1.0, ValueError("cause")))
    assert type(error) is ValueError
    assert notes(error)[1] == "rank 0 raised Skipped: no NVLS"


@pytest.mark.parametrize("order", [SystemExit(0), KeyboardInterrupt(), pytest.exit.Exception("all over")])
def test_what_would_end_the_run_here_is_a_ranks_failure(order: BaseException) -> None:
    error = root_cause(raised(1.0, order), RETURNED)
    assert type(error) is RemoteError
    assert str(error).startswith(f"rank 0 of 2 (gloo) in suite:program raised {type(order).__qualname__}")
    assert f"Traceback of {type(order).__qualname__}" in str(error)


def test_an_exception_that_cannot_be_pickled_keeps_its_text() -> None:
    error = root_cause(RETURNED, raised(1.0, ValueError("holds a lock"), pickled=False))
    assert type(error) is RemoteError
    assert str(error) == (
        "rank 1 of 2 (gloo) in suite:program raised ValueError: holds a lock\nTraceback of ValueError\nholds a lock"
    )
    assert notes(error) == ["rank 0 returned"]


def test_an_exception_that_cannot_be_read_here_keeps_its_text() -> None:
    outcome = Raised(1, 1.0, b"no pickle", "mod.OddError", "", "Traceback\nmod.OddError", usable=True)
    error = root_cause(outcome)
    assert type(error) is RemoteError
    assert str(error) == "rank 0 of 1 (gloo) in suite:program raised mod.OddError\nTraceback\nmod.OddError"


def test_a_result_that_cannot_be_pickled_names_the_rank() -> None:
    error = root_cause(RETURNED, raised(1.0, TypeError("a lock: return tensors"), kind=RESULT_NOT_PICKLABLE))
    assert type(error) is ResultError
    assert str(error) == "rank 1 of 2 (gloo) in suite:program: a lock: return tensors"
