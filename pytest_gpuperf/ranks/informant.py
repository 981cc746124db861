"""The rank's second thread: reports what the first one is doing and which collectives were issued."""

from __future__ import annotations

import contextlib
import dis
import pickle
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.collectives import Collective, find_latest, list_issued
from pytest_gpuperf.ranks.handling import Handled, list_handled
from pytest_gpuperf.ranks.messages import Account, Inquiry
from pytest_gpuperf.ranks.surroundings import child_processes, is_tqdms
from pytest_gpuperf.ranks.unpaired import find_passing
from pytest_gpuperf.ranks.unserved import find_sought_store
from pytest_gpuperf.torch_internals import (
    count_issued,
    find_default_group,
    find_default_group_name,
    find_flight_recorder,
    group_being_opened,
    group_members,
)

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.calls import Calls

NOTING = __file__.rpartition("/")[0] + "/calls.py"
# Where torch waits for collectives; what waits for a single peer, or for the store, is not among it.
_WAITING = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/", "/torch/_ops.py", "/torch/cuda/")
_NOT_FOR_A_COLLECTIVE = ("send", "recv", "monitored_barrier", "rendezvous", "store", "new_group", "process_group")
_OF_WORK = frozenset({"wait"})
_OF_A_DEVICE = frozenset({"wait", "item", "cpu", "tolist", "to", "synchronize"})


class Informant:
    """Answers inquiries on a connection of its own; it costs nothing until it is asked."""

    def __init__(self, connection: Channel, backend: str) -> None:
        self.since = 0
        """Collectives that were issued before, ``time.time_ns``, are not told of."""
        self.calls: Calls | None = None
        """Notes what the rank issues; None if nobody does."""
        self._opened = 0
        self._default: weakref.ref[Any] | None = None
        self._connection = connection
        self._backend = backend
        self._main = threading.get_ident()
        self._dump = find_flight_recorder(backend)
        threading.Thread(target=self._serve, name="gpuperf informant", daemon=True).start()

    def group_opened(self, at: int) -> None:
        """Takes note of the default group that there is now.

        Args:
            at: a moment before it was opened, ``time.time_ns``: earlier groups had the same names.
        """
        self._opened = at
        group = find_default_group()
        self._default = None if group is None else weakref.ref(group)  # nobody's group lives longer for it

    def _group_is_the_tests(self) -> bool:
        group = find_default_group()
        return self._default is not None and group is not None and self._default() is group

    def is_silent(self) -> bool:
        """Whether nothing was issued since ``since``, no send and no receive either; False where that cannot be told.

        The group's own first barrier is in the record: one without entries records nothing.
        """
        record = self._record()
        try:
            moment = None if record is None else find_latest(record)
        except Exception:  # a recorder that another torch keeps otherwise
            return False
        return moment is not None and moment < self.since

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the controller is gone, or this process is
            while True:
                inquiry, _ = self._connection.receive()
                self._connection.send(self._make_account(inquiry))

    def _make_account(self, inquiry: Inquiry) -> Account:
        stack = _read_stack(self._main)
        account = Account(
            number=inquiry.number,
            position=tuple((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lasti) for frame in stack),
            waits=bool(stack) and waits_for_a_collective(stack[0], self._backend),
            threads=any(_is_the_programs(thread, self._main) for thread in threading.enumerate()),
            sought=find_sought_store(stack[0]) if stack else "",
            passing=find_passing(stack[0]) if stack else None,
            issued=count_issued(),
            members=group_members(),
            opening=group_being_opened(stack),
            tells_ends=self._backend == "nccl",
            group_is_the_tests=self._group_is_the_tests(),
        )
        if not inquiry.whole:
            return account
        account = replace(
            account, handling=self._list_handling(), calls=self._read_noted(), children=bool(child_processes())
        )
        if account.calls is not None and self.calls is not None and self.calls.whole and not account.tells_ends:
            # The recorder of gloo knows nothing beyond them.
            return replace(account, collectives=account.calls, complete=True)
        record = self._record()
        if record is None:
            return account
        try:
            collectives = list_issued(record, self.since)
            of_the_group = list_issued(record, self._opened)
            earlier = of_the_group[: max(0, len(of_the_group) - len(collectives))]
            default = find_default_group_name()
            complete = any(one.number == 1 and one.group == default for one in (*earlier, *collectives))
        except Exception:  # a recorder that another torch keeps otherwise is no reason to end
            return account
        return replace(account, collectives=collectives, earlier=earlier, complete=complete)

    def _read_noted(self) -> list[Collective] | None:
        return None if self.calls is None else self.calls.list_issued()

    def _list_handling(self) -> tuple[Handled, ...]:
        own = [thread for thread in threading.enumerate() if _is_the_programs(thread, self._main)]
        threads = {thread.ident: thread.name for thread in own if thread.ident is not None}
        with contextlib.suppress(Exception):  # the exceptions' own code runs here
            return list_handled({**threads, self._main: ""})
        return ()

    def _record(self) -> Mapping[str, Any] | None:
        if self._dump is None:
            return None
        with contextlib.suppress(Exception):  # a recorder that another torch keeps otherwise
            record: Mapping[str, Any] = pickle.loads(self._dump())
            return record
        return None


def waits_for_a_collective(frame: FrameType, backend: str) -> bool:
    """Whether a thread's innermost frame is in a call that waits for one, as far as names tell."""
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    if any(part in path for part in _WAITING):
        return not any(word in function for word in _NOT_FOR_A_COLLECTIVE)
    method, arguments = _read_call(frame)
    if method == "wait" and arguments:
        return False  # a store's, which takes keys
    return method in (_OF_A_DEVICE if backend == "nccl" else _OF_WORK)


def _read_call(frame: FrameType) -> tuple[str, int]:
    """The method that a frame is calling, and how many arguments it passes; an empty name if it calls none."""
    # While a call of Python runs, the frame is at the end of its instruction, which has room for a cache.
    before = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    if not before or not before[-1].opname.startswith("CALL"):
        return "", 0
    arguments = before[-1].arg or 0
    loads = (one for one in reversed(before) if one.opname in ("LOAD_METHOD", "LOAD_ATTR"))
    method = next(loads, None)
    return ("", 0) if method is None else (str(method.argval), arguments)


def _read_stack(thread: int) -> list[FrameType]:
    frame = sys._current_frames().get(thread)
    frames = []
    while frame is not None:
        if frame.f_code.co_filename != NOTING:  # which stands between torch and its backend
            frames.append(frame)
        frame = frame.f_back
    return frames


def _is_the_programs(thread: threading.Thread, main: int) -> bool:
    # A thread of C++ that ran Python once stays in the list for good.
    ours = thread.ident == main or thread.name.startswith("gpuperf ")
    return not (ours or isinstance(thread, threading._DummyThread) or is_tqdms(thread))
