"""Who is blamed when ranks fail, and what is said of the others."""

import signal
from collections.abc import Mapping, Sequence

import pytest
from hypothesis.errors import UnsatisfiedAssumption

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.collectives import Collective
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, Stuck
from pytest_gpuperf.ranks.failures import (
    CollectiveMismatch,
    RankDied,
    RankError,
    RanksSkipped,
    RankTimeout,
    RemoteError,
    ResultError,
)
from pytest_gpuperf.ranks.messages import Raised, Withdrawal
from pytest_gpuperf.ranks.postmortem import (
    NOTICE,
    RESULT_NOT_PICKLABLE,
    PostMortem,
    World,
    describe_exit,
    has_failed,
    inquire_after,
    post_mortem,
)
from pytest_gpuperf.ranks.stacks import NO_STACK
from tests.ranks.conftest import notes

RETURNED = Answered(EMPTY)
WAITS = '  File "/home/me/test_x.py", line 3 in wait\n  File "/home/me/test_x.py", line 9 in program'
SLEEPS = '  File "/home/me/test_x.py", line 5 in sleep'


def raised(
    at: float,
    error: BaseException,
    *,
    kind: str | None = None,
    pickled: bool = True,
    place: str = "",
    usable: bool = True,
    withdrew: Withdrawal | None = None,
) -> Raised:
    data = payload.dump_exception(error) if pickled else None
    name = kind or type(error).__qualname__
    text = f"Traceback of {name}\n{error}\n"
    return Raised(1, at, data, name, str(error), text, place, usable, withdrew=withdrew)


def inquest(
    *endings: Ending,
    issued: Mapping[int, Sequence[Collective]] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> PostMortem:
    return post_mortem(endings, World(len(endings), "gloo", "suite:program", timeout=2.5), issued, groups)


def root_cause(*endings: Ending) -> BaseException:
    return inquest(*endings).error


def test_a_lost_node_is_the_cause_whoever_raised_before_it_was_known() -> None:
    where = ("node a", "node a", "node b, GPU 0")
    world = World(3, "nccl", "suite:program", timeout=2.5, whereabouts=where)
    lost = Died(9.0, None, lost="node b is gone")
    found = post_mortem([raised(1.0, RuntimeError("peer closed")), RETURNED, lost], world)
    assert str(found.error) == "rank 2 of 3 (node b, GPU 0, nccl) in suite:program was lost: node b is gone"
    assert notes(found.error) == [
        "rank 0 raised RuntimeError: peer closed",
        "rank 1 returned",
        "node a has ranks 0, 1; node b has rank 2",
    ]
    assert found.cause == "was lost: node b is gone"


def test_the_earliest_failure_is_raised_whatever_its_rank() -> None:
    found = inquest(raised(3.0, RuntimeError("peer closed")), RETURNED, raised(1.0, ValueError("cause"), place="x:1"))
    assert type(found.error) is ValueError
    assert notes(found.error) == [
        "raised on rank 2 of 3 (gloo) in suite:program",
        "rank 0 raised RuntimeError: peer closed",
        "rank 1 returned",
    ]
    assert (found.rank, found.cause, found.place) == (2, "ValueError: cause", "x:1")
    assert found.story == ("ValueError: cause", "rank 0 raised RuntimeError: peer closed", "rank 1 returned")


def test_what_a_rank_raised_that_closed_its_group_first_is_the_cause() -> None:
    gone = RuntimeError("Read error [127.0.0.1]:33414: Connection reset by peer")
    found = inquest(raised(1.0, gone), raised(1.2, ValueError("cause")), raised(1.1, gone))
    assert (found.rank, found.cause) == (1, "ValueError: cause")
    assert inquest(raised(1.0, gone), raised(9.0, ValueError("much later"))).rank == 0
    assert inquest(raised(1.0, gone), RETURNED).rank == 0


def test_a_death_before_an_exception_is_the_cause() -> None:
    found = inquest(raised(2.0, RuntimeError("peer closed")), Died(1.0, -9))
    assert type(found.error) is RankDied
    assert str(found.error) == "rank 1 of 2 (gloo) in suite:program was killed by SIGKILL"
    assert notes(found.error) == ["rank 0 raised RuntimeError: peer closed"]
    assert (found.rank, found.cause, found.place) == (1, "was killed by SIGKILL", "")
    assert found.story == (f"RankDied: {found.error}", "rank 0 raised RuntimeError: peer closed")


def test_a_crash_tells_where_it_was() -> None:
    stack = (
        '  File "/usr/lib/python3.12/ctypes/__init__.py", line 519 in string_at\n  File "suite.py", line 7 in program\n'
    )
    found = inquest(Died(1.0, -11, stack=stack), Died(2.0, -6, "no memory", '  File "suite.py", line 9 in program\n'))
    where = "in string_at (ctypes/__init__.py:519), called at suite.py:7 in program"
    assert str(found.error) == f"rank 0 of 2 (gloo) in suite:program was killed by SIGSEGV {where}"
    assert notes(found.error) == ["rank 1 was killed by SIGABRT in suite.py:9 in program: no memory"]
    assert (found.cause, found.place) == ("was killed by SIGSEGV", "suite.py:7 in program")


def test_a_crash_in_a_library_alone_has_no_place_of_the_program() -> None:
    found = inquest(Died(1.0, -11, stack='  File "/usr/lib/python3.12/ctypes/__init__.py", line 519 in string_at\n'))
    assert str(found.error).endswith("was killed by SIGSEGV in ctypes/__init__.py:519 in string_at")
    assert found.place == ""
    assert inquest(Died(1.0, -11, stack=NO_STACK)).story[0].endswith("was killed by SIGSEGV")


def test_a_death_tells_the_exception_that_brought_it() -> None:
    found = inquest(RETURNED, Died(1.0, -6, "CUDA error: device-side assert triggered"))
    what = "was killed by SIGABRT: CUDA error: device-side assert triggered"
    assert str(found.error) == f"rank 1 of 2 (gloo) in suite:program {what}"
    assert found.cause == what


def test_a_death_is_the_cause_of_what_its_peers_raise_before_it_is_noticed() -> None:
    error = root_cause(raised(1.0, RuntimeError("connection closed by peer")), Died(1.0 + NOTICE / 2, -11))
    assert type(error) is RankDied
    assert str(error) == "rank 1 of 2 (gloo) in suite:program was killed by SIGSEGV"


def test_an_exception_well_before_a_death_is_the_cause() -> None:
    error = root_cause(Died(20.0, 3), raised(1.0, ValueError("cause")))
    assert type(error) is ValueError
    assert "rank 0 exited with code 3 before it returned" in notes(error)


def test_ranks_that_did_the_same_share_a_note() -> None:
    same = [raised(at, RuntimeError("peer closed\nsecond line")) for at in (4.0, 2.0, 3.0)]
    error = root_cause(raised(1.0, ValueError("cause")), *same, RETURNED, RETURNED)
    assert notes(error)[1:] == ["ranks 1, 2, 3 raised RuntimeError: peer closed", "ranks 4, 5 returned"]


def test_a_note_says_where_the_others_raised() -> None:
    second = raised(2.0, KeyError(3), place="x.py:2 in g")
    found = inquest(raised(1.0, ValueError("cause"), place="x.py:1 in f"), second)
    assert notes(found.error)[1:] == ["rank 1 raised KeyError: 3, at x.py:2 in g"]
    assert found.sections == (("traceback of rank 1", "Traceback of KeyError\n3"),)


def test_what_others_raised_at_the_same_place_is_said_in_one_note_without_its_traceback() -> None:
    first = raised(1.0, ValueError("cause"), place="x.py:1 in f")
    same = [raised(2.0, ValueError("cause"), place="x.py:1 in f") for _ in range(2)]
    found = inquest(first, *same)
    assert notes(found.error)[1:] == ["ranks 1, 2 raised the same"]
    assert found.sections == ()
    another_value = raised(2.0, ValueError("rank 1's"), place="x.py:1 in f")
    assert notes(root_cause(first, another_value))[1:] == ["rank 1 raised at the same line: ValueError: rank 1's"]
    wrong = [raised(at, AssertionError(f"no neighbour\nassert {at} == 0"), place="x.py:1 in f") for at in (1.0, 2.0)]
    assert notes(root_cause(*wrong))[1:] == ["rank 1 raised at the same line: assert 2.0 == 0"]
    alike = [
        raised(at, AssertionError(f"assert 1 == 3\n +  where 1 = <C at 0x{at}>"), place="x.py:1 in f")
        for at in (1.0, 2.0)
    ]
    assert notes(root_cause(*alike))[1:] == ["rank 1 raised the same"]


def test_the_same_kind_raised_elsewhere_is_not_the_same() -> None:
    found = inquest(
        raised(1.0, ValueError("cause"), place="x.py:1 in f"), raised(2.0, ValueError("cause"), place="x.py:2 in g")
    )
    assert notes(found.error)[1:] == ["rank 1 raised ValueError: cause, at x.py:2 in g"]
    assert [title for title, _ in found.sections] == ["traceback of rank 1"]


def test_tracebacks_of_one_kind_and_place_are_shown_once() -> None:
    others = [raised(2.0, RuntimeError(f"peer {n}"), place="x.py:7 in g") for n in range(3)]
    found = inquest(raised(1.0, ValueError("cause"), place="x.py:1 in f"), *others)
    assert found.sections == (("traceback of ranks 1, 2, 3", "Traceback of RuntimeError\npeer 0"),)


def test_a_rank_that_waited_for_the_failed_one_shows_where() -> None:
    found = inquest(raised(1.0, ValueError("cause")), Stuck(3.0, WAITS))
    assert notes(found.error)[1:] == [
        "rank 1 had not returned when killed:",
        "rank 1 is in /home/me/test_x.py:3 in wait",
    ]
    assert found.sections == (("stack of rank 1", WAITS),)
    assert found.cause == "ValueError: cause"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
        (0, "exited with code 0 before it returned"),
        (3, "exited with code 3 before it returned"),
        (None, "died, and its exit code was not reported"),
    ],
)
def test_an_exit_is_told_in_words(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


def test_no_test_can_give_more_time_to_what_it_did_not_ask_for() -> None:
    world = World(2, "nccl", "opening the process group", 60.0, own=False)
    found = post_mortem([RETURNED, Stuck(1.0, WAITS)], world)
    assert str(found.error) == (
        "rank 1 of 2 (nccl) did not return from opening the process group within 60 s; the stacks tell why"
    )


def test_a_timeout_names_who_was_stuck_and_where_and_what_to_do() -> None:
    found = inquest(Stuck(1.0, WAITS), RETURNED, Stuck(1.0, SLEEPS), Stuck(1.0, WAITS))
    assert type(found.error) is RankTimeout
    assert str(found.error) == (
        "ranks 0, 2, 3 of 4 (gloo) did not return from suite:program within 2.5 s; if it needs longer, "
        "set timeout=SECONDS in @pytest.mark.ranks, or in @on_ranks for an adopted class"
    )
    assert notes(found.error) == [
        "rank 1 returned",
        "rank 2 alone is in /home/me/test_x.py:5 in sleep",
        "ranks 0, 3 are in /home/me/test_x.py:3 in wait",
    ]
    assert found.sections == (("stack of ranks 0, 3", WAITS), ("stack of rank 2", SLEEPS))
    assert (found.rank, found.cause, found.place) == (None, "timeout", "")
    assert found.story == (f"RankTimeout: {found.error}", *notes(found.error))


def collective(number: int, operation: str = "all_reduce", group: str = "0") -> Collective:
    return Collective(group, number, operation, "Float[4]", done=False)


def test_a_hang_says_where_the_collectives_part() -> None:
    issued = {0: [collective(1), collective(2)], 1: [collective(1), collective(2, "broadcast")]}
    found = inquest(Stuck(1.0, WAITS), Stuck(1.0, WAITS), issued=issued)
    parted = (
        "the ranks part at collective 2 of the program: rank 0 issued all_reduce Float[4]; rank 1 issued broadcast "
        "Float[4]"
    )
    assert notes(found.error)[-1] == found.story[-1] == parted
    assert found.sections[0] == (
        "collectives",
        "last collective of rank 0: all_reduce Float[4], its collective 2\n"
        "last collective of rank 1: broadcast Float[4], its collective 2",
    )


def test_a_hang_in_the_same_collective_on_all_ranks_has_no_such_note() -> None:
    found = inquest(Stuck(1.0, WAITS), Stuck(1.0, WAITS), issued={0: [collective(1)], 1: [collective(1)]})
    assert notes(found.error) == ["ranks 0, 1 are in /home/me/test_x.py:3 in wait"]
    assert [title for title, _ in found.sections] == ["collectives", "stack of ranks 0, 1"]


def test_a_group_of_some_ranks_is_compared_among_them() -> None:
    issued = {0: [collective(1, group="3")], 1: [], 2: []}
    found = inquest(*[Stuck(1.0, WAITS)] * 3, issued=issued, groups={"3": (0, 2)})
    assert notes(found.error)[-1] == (
        "rank 2 never issued all_reduce Float[4] (collective 1 of the program), which rank 0 did (group of ranks 0, 2)"
    )


def test_ranks_that_return_from_unequal_collectives_did_not_do_the_same() -> None:
    endings = [Answered(EMPTY, 2), Answered(EMPTY, 1), Answered(EMPTY, 2)]
    issued = {0: [collective(1), collective(2)], 1: [collective(1)], 2: [collective(1), collective(2)]}
    assert has_failed(endings)
    assert inquire_after(endings)
    found = inquest(*endings, issued=issued)
    assert type(found.error) is CollectiveMismatch
    assert str(found.error) == (
        "all ranks returned from suite:program, but not from the same collectives on the default group (gloo): "
        "ranks 0, 2 issued 2; rank 1 issued 1. Every rank of a group must issue each of its collectives"
    )
    assert notes(found.error)[-1] == (
        "rank 1 never issued all_reduce Float[4] (collective 2 of the program), which ranks 0, 2 did"
    )
    assert (found.rank, found.cause, found.place) == (None, "mismatched collectives", "")


@pytest.mark.parametrize(
    ("endings", "failed", "inquired"),
    [
        ([Answered(EMPTY, 3), Answered(EMPTY, 3)], False, False),
        ([Answered(EMPTY, -1), Answered(EMPTY, 3)], False, False),  # the program destroyed the group on rank 0
        ([Answered(EMPTY, 2), raised(1.0, ValueError("cause"))], True, False),
        ([Answered(EMPTY, 2), Died(1.0, 1)], True, True),
        ([Answered(EMPTY, 2), Stuck(1.0, WAITS)], True, True),
    ],
    ids=["equal", "unknown", "raised", "died", "stuck"],
)
def test_a_run_failed_unless_all_ranks_came_to_the_same_end(
    endings: list[Ending], failed: bool, inquired: bool
) -> None:
    assert has_failed(endings) is failed
    assert inquire_after(endings) is inquired


def skipped(at: float, reason: str) -> Raised:
    return raised(at, pytest.skip.Exception(reason), kind="Skipped", withdrew=Withdrawal.SKIPPED)


def rejected(at: float, reason: str = "") -> Raised:
    return raised(at, UnsatisfiedAssumption(reason), withdrew=Withdrawal.REJECTED)


def test_an_example_that_all_ranks_reject_is_rejected() -> None:
    error = root_cause(rejected(2.0), rejected(1.0))
    assert type(error) is UnsatisfiedAssumption


@pytest.mark.parametrize(
    "other", [RETURNED, raised(2.0, ValueError("cause")), Died(2.0, 1), skipped(2.0, ""), rejected(2.0, "another")]
)
def test_an_example_that_not_all_ranks_reject_is_a_failure(other: Ending) -> None:
    error = root_cause(other, rejected(1.0))
    assert type(error) is RankError
    assert str(error) == (
        "rank 1 of 2 (gloo) rejected the example in suite:program and the others did not do the same: ranks must "
        "agree, so that none hides another's failure. It raised UnsatisfiedAssumption"
    )


class Frozen(ValueError):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def test_an_exception_that_takes_no_notes_keeps_its_text() -> None:
    error = root_cause(RETURNED, raised(1.0, Frozen("cause")))
    assert type(error) is RemoteError
    assert str(error).startswith("rank 1 of 2 (gloo) in suite:program raised Frozen: cause\nTraceback of Frozen")


def test_a_skip_of_all_ranks_for_one_reason_is_a_skip() -> None:
    error = root_cause(skipped(2.0, "no NVLS"), skipped(1.0, "no NVLS"))
    assert type(error) is RanksSkipped
    assert str(error) == "no NVLS"
    assert notes(error) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (RETURNED, "rank 0 returned"),
        (skipped(2.0, "another reason"), "rank 0 raised at the same line: Skipped: another reason"),
        (raised(2.0, ValueError("late")), "rank 0 raised ValueError: late"),
        (Died(2.0, 1), "rank 0 exited with code 1 before it returned"),
    ],
    ids=["returned", "skipped otherwise", "raised", "died"],
)
def test_a_skip_that_not_all_ranks_agree_on_is_a_failure(other: Ending, said: str) -> None:
    error = root_cause(other, skipped(1.0, "no NVLS"))
    assert type(error) is RankError
    assert str(error) == (
        "rank 1 of 2 (gloo) skipped in suite:program and the others did not do the same: ranks must agree, so "
        "that none hides another's failure. It raised Skipped: no NVLS"
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
        "rank 1 of 2 (gloo) in suite:program raised ValueError: holds a lock\nTraceback of ValueError\nholds a lock\n"
    )
    assert notes(error) == ["rank 0 returned"]


def test_an_exception_that_cannot_be_read_here_keeps_its_text() -> None:
    ending = Raised(1, 1.0, b"no pickle", "mod.OddError", "", "Traceback\nmod.OddError", "x.py:1 in f", usable=True)
    found = inquest(ending)
    assert type(found.error) is RemoteError
    assert str(found.error) == "rank 0 of 1 (gloo) in suite:program raised mod.OddError\nTraceback\nmod.OddError"
    assert found.cause == "mod.OddError"
    assert found.story == ("RemoteError: rank 0 of 1 (gloo) in suite:program raised mod.OddError",)


def test_an_exception_without_a_text_is_told_by_its_type() -> None:
    assert inquest(raised(1.0, ValueError())).story == ("ValueError",)


def test_a_result_that_cannot_be_pickled_names_the_rank() -> None:
    error = root_cause(RETURNED, raised(1.0, TypeError("a lock: return tensors"), kind=RESULT_NOT_PICKLABLE))
    assert type(error) is ResultError
    assert str(error) == "rank 1 of 2 (gloo) in suite:program: a lock: return tensors"
