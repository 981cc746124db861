"""Groups end side by side or beside the next test, and not too many of them at a time."""

import re
import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest

from pytest_gpuperf.ranks import closing as closing_module
from pytest_gpuperf.ranks.closing import MOST, Closing, await_ended, shut_down
from pytest_gpuperf.ranks.surroundings import Surroundings, list_left_behind


class Group:
    """Ends when its last reference goes and the test lets it."""

    def __init__(self, name: str, may_end: threading.Event, ended: list[str]) -> None:
        self.name = name
        self._may_end = may_end
        self._ended = ended

    def __del__(self) -> None:
        self._may_end.wait(60)
        self._ended.append(self.name)


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_who_lets_go_of_groups_does_not_wait_for_their_end(may_end: threading.Event) -> None:
    ended: list[str] = []
    closing = Closing()
    closing.let_go([Group("default", may_end, ended), Group("subgroup", may_end, ended)])
    assert ended == []
    may_end.set()
    closing.wait()
    assert sorted(ended) == ["default", "subgroup"]


def test_a_reference_of_a_programs_own_is_not_dropped(may_end: threading.Event) -> None:
    ended: list[str] = []
    may_end.set()
    kept = Group("kept", may_end, ended)
    closing = Closing()
    closing.let_go([kept])
    closing.wait()
    assert ended == []


def test_a_groups_own_thread_does_not_have_the_last_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_on: list[int] = []
    lets_go, waited = threading.Event(), threading.Event()

    class Held:
        def __del__(self) -> None:
            ended_on.append(threading.get_ident())

    groups = [Held()]

    def hold(held: list[Held]) -> None:
        lets_go.wait(60)
        held.clear()

    own = threading.Thread(target=hold, args=(groups[:],))
    own.start()
    monkeypatch.setattr(closing_module, "HELD", 60.0)
    monkeypatch.setattr(closing_module, "time", mock.Mock(monotonic=time.monotonic, sleep=lambda _: waited.set()))
    closing = Closing()
    closing.let_go(groups)
    assert waited.wait(60), "the group was dropped although its own thread refers to it"
    lets_go.set()
    closing.wait()
    own.join()
    assert len(ended_on) == 1
    assert ended_on != [own.ident]


def test_where_too_many_are_ending_the_oldest_is_waited_for() -> None:
    ended: list[str] = []
    events = [threading.Event() for _ in range(MOST + 1)]
    closing = Closing()
    for number, event in enumerate(events[:MOST]):
        closing.let_go([Group(f"group {number}", event, ended)])
    waiting = threading.Thread(target=closing.let_go, args=([Group("one more", events[MOST], ended)],))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    events[0].set()
    waiting.join(60)
    assert not waiting.is_alive()
    assert ended == ["group 0"]
    for event in events:
        event.set()
    closing.wait()
    assert len(ended) == MOST + 1


def test_groups_that_do_not_end_are_no_reason_to_wait_forever(may_end: threading.Event) -> None:
    closing = Closing()
    for number in range(MOST):
        closing.let_go([Group(f"group {number}", may_end, [])])
    message = (
        "process groups of an earlier test have not ended within 0.01 s: its program left work in them that cannot "
        "end. Wait for all work in the program"
    )
    with pytest.raises(TimeoutError, match=f"^{re.escape(message)}$"):
        closing.let_go([], patience=0.01)
    may_end.set()
    closing.let_go([], patience=60)
    closing.wait()


def test_groups_that_are_ending_are_nothing_that_a_test_left_behind(may_end: threading.Event) -> None:
    before, threads = Surroundings.now(), threading.enumerate()
    closing = Closing()
    closing.let_go([Group("default", may_end, [])])
    assert list_left_behind(before, Surroundings.now()) == []
    assert threading.enumerate() == threads  # a program that counts its threads finds its own


def test_the_end_of_all_groups_can_be_awaited_by_who_does_not_close_them(may_end: threading.Event) -> None:
    ended: list[str] = []
    closing = Closing()
    for name in ("one", "another"):
        closing.let_go([Group(name, may_end, ended)])
    threading.Timer(0.05, may_end.set).start()
    await_ended()
    assert sorted(ended) == ["another", "one"]


class Communicator:
    """Ends when all others are ending too."""

    def __init__(self, all_are_ending: threading.Barrier, error: Exception | None = None) -> None:
        self._all_are_ending = all_are_ending
        self._error = error
        self.ended = False

    def shutdown(self) -> None:
        self._all_are_ending.wait(60)
        if self._error is not None:
            raise self._error
        self.ended = True


def test_communicators_end_side_by_side() -> None:
    barrier = threading.Barrier(3)
    groups = [Communicator(barrier) for _ in range(3)]
    shut_down(groups)
    assert all(group.ended for group in groups)


def test_one_that_cannot_end_is_told_once_the_others_have() -> None:
    barrier = threading.Barrier(3)
    groups = [Communicator(barrier), Communicator(barrier, RuntimeError("NCCL's word")), Communicator(barrier)]
    with pytest.raises(RuntimeError, match="NCCL's word"):
        shut_down(groups)
    assert [group.ended for group in groups] == [True, False, True]


def test_a_group_that_is_alone_is_left_to_torch() -> None:
    group = Communicator(threading.Barrier(1))
    shut_down([group])
    shut_down([])
    assert not group.ended
