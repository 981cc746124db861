"""Live ranks that fail: what the run raises, and what becomes of the ranks."""

import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, RankDied, RankError, RankTimeout, ResultError
from pytest_gpuperf.ranks.channel import Channel, Parcel
from pytest_gpuperf.ranks.failures import RemoteError
from pytest_gpuperf.ranks.messages import Returned
from pytest_gpuperf.ranks.pool import GRACE, Pool
from tests.ranks.conftest import Call, notes, pids
from tests.ranks.processes import survivors

HERE = rf"{re.escape(__file__)}:\d+"


def connection_of_the_rank() -> Channel:
    # The one with the lower number was handed over first; the other is for inquiries.
    open_ones = [obj for obj in gc.get_objects() if type(obj) is Channel and obj.fileno() >= 0]
    return min(open_ones, key=lambda connection: connection.fileno())


def test_a_late_reply_to_an_earlier_run_is_dropped(call: Call) -> None:
    def program(ctx: Context) -> str:
        gc.unfreeze()
        connection_of_the_rank().send(Returned(0), Parcel(b"late"))
        return "this run's"

    assert call(program) == ["this run's"] * 2


class Ends:
    """Ends the process that pickles it."""

    def __reduce__(self) -> str:
        os._exit(7)


def test_a_rank_that_dies_in_the_middle_of_its_reply_has_died(call: Call) -> None:
    def program(ctx: Context) -> object:
        return (torch.ones(1_000_000), Ends()) if ctx.rank == 1 else None

    with pytest.raises(RankDied, match=r"^rank 1 of 2 \(gloo\) in program exited with code 7 before"):
        call(program)


def of_a_child() -> None:
    # As a child's crash leaves it on the standard error that it shares: threads keep their numbers across a fork.
    text = f"""terminate called after throwing an instance of 'std::runtime_error'
  what():  of a child
Fatal Python error: Aborted

Current thread 0x{threading.get_ident():016x} (most recent call first):
  File "child.py", line 1 in of_a_child
"""
    os.write(2, text.encode())


def exit_with_3() -> None:
    of_a_child()
    os._exit(3)


def segmentation_fault() -> None:
    ctypes.string_at(0)


def killed() -> None:
    of_a_child()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (exit_with_3, "exited with code 3 before it returned"),
        (
            segmentation_fault,
            r"was killed by SIGSEGV in string_at \(ctypes.*\), called at .*:\d+ in segmentation_fault",
        ),
        (killed, "was killed by SIGKILL"),
    ],
)
def test_a_death_is_told_with_its_rank_and_its_cause(pool: Pool, call: Call, end: Callable[[], None], how: str) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            end()
        dist.barrier()  # rank 0 loses its peer, which is not what went wrong first

    processes = pids(call)
    with pytest.raises(RankDied) as caught:
        call(program)
    assert re.fullmatch(rf"rank 1 of 2 \(gloo\) in program {how}", str(caught.value))
    assert not pool.alive
    assert survivors(processes) == []
    printed = "".join(str(text) for _, _, text in pool.output())
    assert ("Segmentation fault" in printed) == (end is segmentation_fault)


def test_ranks_that_wait_for_a_failed_one_are_not_waited_for(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            raise ValueError("cause")
        wait_for_ever()

    start = time.monotonic()
    with pytest.raises(ValueError, match=r"(?m)^cause$") as caught:
        call(program)
    assert GRACE <= time.monotonic() - start < 30
    assert notes(caught.value)[:2] == [
        "raised on rank 1 of 2 (gloo) in program",
        "rank 0 had not returned when killed:",
    ]
    assert re.fullmatch(
        rf"rank 0 is in wait \(threading\.py:\d+\), called at {HERE} in wait_for_ever", notes(caught.value)[2]
    )
    assert not pool.alive


def wait_for_ever() -> None:
    threading.Event().wait()


def hold_the_interpreter() -> None:
    reading, _ = os.pipe()
    # PyDLL, unlike CDLL, keeps the GIL; and a signal that is handled ends a sleep(), but not a read().
    ctypes.PyDLL(None).read(reading, ctypes.create_string_buffer(1), 1)


@pytest.mark.parametrize("stuck", [wait_for_ever, hold_the_interpreter])
def test_a_timeout_shows_where_each_stuck_rank_was(pool: Pool, call: Call, stuck: Callable[[], None]) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            stuck()

    processes = pids(call)
    with pytest.raises(RankTimeout) as caught:
        call(program, timeout=0.5)
    assert str(caught.value) == (
        "rank 1 of 2 (gloo) did not return from program within 0.5 s; if it needs longer, "
        "set timeout=SECONDS in @pytest.mark.ranks, or in @on_ranks for an adopted class"
    )
    returned, where = notes(caught.value)
    assert returned == "rank 0 returned"
    assert re.fullmatch(rf"rank 1 is in (wait \(threading\.py:\d+\), called at )?{HERE} in {stuck.__name__}", where)
    assert pool.failure is not None
    sections = dict(pool.failure.sections)
    own = [line for line in sections["stack of rank 1"].splitlines() if __file__ in line]
    assert [line.rpartition(" ")[2] for line in own] == [stuck.__name__, "program"]
    assert own[-1] == sections["stack of rank 1"].splitlines()[-1]  # the harness below it is nobody's business
    # Where the interpreter is held, nobody can ask for the collectives.
    asked = "ranks 0, 1" if stuck is wait_for_ever else "rank 0"
    assert sections["collectives"] == f"last collective of {asked}: none"
    assert not pool.alive
    assert survivors(processes) == []


def test_ctrl_c_in_the_controller_ends_the_ranks(pool: Pool, call: Call) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    processes = pids(call)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            call(lambda ctx: wait_for_ever())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not pool.alive
    assert survivors(processes) == []


def test_sys_exit_on_a_rank_is_its_failure(call: Call) -> None:
    with pytest.raises(RemoteError, match=r"(?s)^rank 0 of 2 \(gloo\) in \S+ raised SystemExit: 4\nTraceback"):
        call(lambda ctx: sys.exit(4) if ctx.rank == 0 else None)


def test_an_exception_that_cannot_be_pickled_keeps_its_text(call: Call) -> None:
    def program(ctx: Context) -> None:
        raise ValueError("holds", threading.Lock())

    with pytest.raises(RemoteError, match=r"(?s)raised ValueError: \('holds', .*in program\n.*raise ValueError\("):
        call(program)


def test_a_result_that_cannot_be_pickled_names_its_rank_and_type(pool: Pool, call: Call) -> None:
    with pytest.raises(ResultError) as caught:
        call(lambda ctx: threading.Lock() if ctx.rank == 1 else None)
    assert str(caught.value) == (
        "rank 1 of 2 (gloo) in <lambda>: the program returned a lock that cannot be pickled (TypeError: cannot "
        "pickle '_thread.lock' object): return tensors, numbers, strings or containers of them"
    )
    assert isinstance(caught.value, RankError)
    assert pool.alive


def test_each_failure_takes_the_place_of_the_one_before_and_a_good_run_takes_it_away(pool: Pool, call: Call) -> None:
    def fail(ctx: Context, text: str) -> None:
        raise ValueError(text)

    for text in ("one", "two"):
        with pytest.raises(ValueError) as caught:
            call(fail, text)
        assert pool.failure is not None
        assert pool.failure.error is caught.value
        assert pool.failure.cause == f"ValueError: {text}"
        assert re.fullmatch(rf"{HERE} in fail", pool.failure.place)
        pool.open_group("first", 60)
        assert pool.failure is None
