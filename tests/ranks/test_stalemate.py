"""When ranks are held to wait in vain, and when there is a doubt."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from pytest_gpuperf.ranks.collectives import Collective
from pytest_gpuperf.ranks.informant import waits_for_a_collective
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.stalemate import Stalemate, Vigil, find_stalemate

BOTH = {"0": (0, 1)}
ALL = {"0": (0, 1, 2)}


def issued(*operations: str, start: int = 1, group: str = "0", done: bool = False) -> list[Collective]:
    return [Collective(group, number, name, "Float[4]", done) for number, name in enumerate(operations, start)]


def account(*operations: str, **changes: Any) -> Account:
    return replace(
        Account(1, waits=True, members=BOTH, collectives=issued(*operations), complete=True, group_is_the_tests=True),
        **changes,
    )


def verdict(*accounts: Account, returned: Collection[int] = (1,)) -> Stalemate | None:
    return find_stalemate(dict(enumerate(accounts)), range(len(accounts)), returned)


def test_a_rank_that_returned_without_it() -> None:
    found = verdict(account("all_reduce", "barrier"), account("all_reduce"))
    assert found is not None
    assert str(found) == "rank 0 waits in barrier Float[4]; rank 1 returned without it"


def test_a_rank_that_issued_another_in_its_place() -> None:
    found = verdict(account("all_reduce"), account("broadcast"), returned=())
    assert str(found) == "rank 0 waits in all_reduce Float[4]; rank 1 issued broadcast Float[4] in its place"


def of(tensors: str, operation: str = "all_reduce") -> Account:
    return account(collectives=[Collective("0", 1, operation, tensors, done=False)])


def test_a_rank_that_issued_it_with_another_number_of_elements() -> None:
    found = verdict(of("Float[2, 4]"), of("Float[4]"))
    assert str(found) == "rank 0 waits in all_reduce Float[2, 4]; rank 1 issued all_reduce Float[4] in its place"
    assert found is not None
    assert found.sizes_differ


@pytest.mark.parametrize(
    ("one", "other", "operation"),
    [
        ("Float[2, 4]", "Float[8]", "all_reduce"),  # the same to a backend
        ("Float[1]", "Float[]", "all_reduce"),
        ("Float[4]", "Int[4]", "all_reduce"),  # wrong sums, which nobody waits for
        ("Float[4]", "Float[8]", "all_gather"),  # each rank may have its own
        ("Float[4]", "Float[8]", "all_to_all"),
    ],
)
def test_tensors_that_need_not_be_alike_are_no_reason(one: str, other: str, operation: str) -> None:
    assert verdict(of(one, operation), of(other, operation)) is None


def test_all_that_wait_and_all_reasons_are_named() -> None:
    waiting = account("barrier", members=ALL)
    four = {"0": (0, 1, 2, 3)}
    accounts = [replace(one, members=four) for one in (waiting, waiting, account(), account("all_reduce"))]
    assert str(find_stalemate(dict(enumerate(accounts)), range(4), (2,))) == (
        "ranks 0, 1 wait in barrier Float[4]; rank 2 returned without it; "
        "rank 3 issued all_reduce Float[4] in its place"
    )


def test_a_rank_that_came_later_is_named_as_well() -> None:
    accounts = {rank: account(*name, members=ALL) for rank, name in enumerate([["barrier"], ["barrier"], []])}
    found = find_stalemate(accounts, [1, 2], [2])
    assert found is not None
    assert found.waiting == (0, 1)
    elsewhere = {**accounts, 0: account("barrier", "barrier", members=ALL)}
    assert find_stalemate(elsewhere, [1, 2], [2]) == replace(found, waiting=(1,)), "it is beyond that collective"


@pytest.mark.parametrize(
    "change",
    [
        {"waits": False},
        {"members": {"0": (0, 3)}},
        {"group_is_the_tests": False},
        {"threads": True},
        {"collectives": []},
    ],
    ids=["it computes", "its group is another one", "not the test's group", "a thread of its own may wait", "it lags"],
)
def test_a_rank_that_may_wait_elsewhere_is_not_named(change: dict[str, Any]) -> None:
    accounts = {rank: account(*name, members=ALL) for rank, name in enumerate([["barrier"], ["barrier"], []])}
    found = find_stalemate({**accounts, 0: replace(accounts[0], **change)}, [1, 2], [2])
    assert found is not None
    assert found.waiting == (1,)


def test_a_rank_that_has_returned_does_not_wait() -> None:
    """Whatever its account says, which was asked earlier."""
    accounts = {rank: account(*name, members=ALL) for rank, name in enumerate([["barrier"], ["barrier"], []])}
    found = find_stalemate(accounts, [1, 2], [0, 2])
    assert found is not None
    assert found.waiting == (1,)


WAITS = account("all_reduce")
RETURNED = account()


@pytest.mark.parametrize(
    ("waits", "other", "returned"),
    [
        (WAITS, RETURNED, ()),
        (WAITS, WAITS, (1,)),
        (replace(WAITS, waits=False), RETURNED, (1,)),
        (replace(WAITS, threads=True), RETURNED, (1,)),
        (replace(WAITS, collectives=None), RETURNED, (1,)),
        (replace(WAITS, members={}), RETURNED, (1,)),
        (replace(WAITS, group_is_the_tests=False), RETURNED, (1,)),
        (WAITS, replace(RETURNED, group_is_the_tests=False), (1,)),
        (WAITS, replace(RETURNED, threads=True), (1,)),
        (WAITS, replace(RETURNED, collectives=None), (1,)),
        (WAITS, replace(RETURNED, members={}), (1,)),
        (WAITS, replace(RETURNED, complete=False), (1,)),
        (WAITS, replace(RETURNED, earlier=issued("all_reduce")), (1,)),
        (WAITS, replace(RETURNED, collectives=issued("barrier", start=2)), (1,)),
        (account("broadcast", members=ALL), replace(RETURNED, members=ALL), (1,)),
        (account("all_to_all", members=ALL), replace(RETURNED, members=ALL), (1,)),
        (account("broadcast"), account("all_reduce", waits=False), ()),
        (replace(WAITS, tells_ends=True, collectives=issued("all_reduce", done=True)), RETURNED, (1,)),
        (
            account("barrier", tells_ends=True),
            account("all_reduce", tells_ends=True),
            (),
        ),
        (account("_all_gather_base"), account("all_gather"), ()),
        (account("_reduce_scatter_base"), account("reduce_scatter"), ()),
    ],
    ids=[
        "not returned",
        "issued",
        "computes",
        "a thread of the waiting",
        "no recorder",
        "group destroyed",
        "a group of the program's own",
        "a group of the returned one's own",
        "a thread of the returned",
        "no recorder of the returned",
        "group destroyed by the returned",
        "recorder overflowed",
        "issued in an earlier run",
        "entry lost",
        "needs its root alone",
        "may need nothing of it",
        "needs its root alone, another instead",
        "done",
        "nccl's barrier",
        "two names of all_gather",
        "two names of reduce_scatter",
    ],
)
def test_a_doubt_is_no_stalemate(waits: Account, other: Account, returned: Collection[int]) -> None:
    assert verdict(waits, other, returned=returned) is None


def test_a_rank_that_moved_lately_does_not_wait_in_vain() -> None:
    assert find_stalemate({0: WAITS, 1: RETURNED}, (1,), (1,)) is None
    assert find_stalemate({0: WAITS, 1: RETURNED}, (0,), (1,)) is None
    assert find_stalemate({0: WAITS}, (0, 1), (1,)) is None


def test_a_group_of_two_needs_both_whatever_they_do() -> None:
    assert verdict(account("broadcast"), RETURNED) is not None


def test_with_nccl_the_first_that_is_not_done_counts() -> None:
    three = [*issued("all_reduce", done=True), *issued("all_gather", "all_reduce", start=2)]
    found = verdict(account(tells_ends=True, collectives=three), account("all_reduce", tells_ends=True))
    assert found is not None
    assert found.collective.operation == "all_gather"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("pytest_gpuperf.ranks.stalemate.time.monotonic", lambda: self.now)


def test_a_vigil_reads_recorders_only_after_the_grace_and_then_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    whole: list[float] = []

    def ask(ranks: Collection[int], wants_all: bool) -> Mapping[int, Account]:
        if wants_all:
            whole.append(clock.now)
        return dict.fromkeys(ranks, WAITS)

    vigil = Vigil(ask, 2.0, timed=False)
    while clock.now < 140.0:
        clock.now = vigil.due
        assert vigil.look([0, 1], []) is None
    assert [moment - 100.0 for moment in whole] == [3.0, 5.0, 9.0, 17.0, 25.0, 33.0]


def test_what_moves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def ask(ranks: Collection[int], wants_all: bool) -> Mapping[int, Account]:
        assert not wants_all
        return {0: replace(WAITS, position=(clock.now,)), 1: replace(WAITS, issued=(("0", int(clock.now)),))}

    vigil = Vigil(ask, 2.0, timed=False)
    for _ in range(20):
        clock.now = vigil.due
        assert vigil.look([0, 1], []) is None


def frame_of(source: str, path: str, name: str = "f") -> FrameType:
    """The frame of a function that is in the middle of the call of ``method``."""
    frames: list[FrameType] = []
    space: dict[str, Any] = {"held": Held(frames)}
    exec(compile(f"def {name}():\n    {source}", path, "exec"), space)
    space[name]()
    return frames[0]


class Held:
    def __init__(self, frames: list[FrameType]) -> None:
        self._frames = frames

    def __getattr__(self, name: str) -> Any:
        return self._note

    def _note(self, *args: object) -> None:
        self._frames.append(Frozen(sys._getframe(1)))  # type: ignore[arg-type]


class Frozen:
    """A frame as it was."""

    def __init__(self, frame: FrameType) -> None:
        self.f_code, self.f_lasti = frame.f_code, frame.f_lasti


@pytest.mark.parametrize(
    ("source", "path", "name", "gloo", "nccl"),
    [
        ("held.wait()", "/x/torch/distributed/distributed_c10d.py", "all_reduce", True, True),
        ("held.wait()", "/x/torch/distributed/distributed_c10d.py", "recv", False, False),
        ("held.wait()", "/x/torch/distributed/distributed_c10d.py", "monitored_barrier", False, False),
        ("held.wait()", "/home/me/test_x.py", "program", True, True),
        ("held.wait(['key'])", "/home/me/test_x.py", "program", False, False),
        ("held.item()", "/home/me/test_x.py", "program", False, True),
        ("held.sleep(3)", "/home/me/test_x.py", "program", False, False),
    ],
)
def test_a_call_that_waits_is_told_by_its_name(source: str, path: str, name: str, gloo: bool, nccl: bool) -> None:
    frame = frame_of(source, path, name)
    assert waits_for_a_collective(frame, "gloo") is gloo
    assert waits_for_a_collective(frame, "nccl") is nccl
