"""Exceptions that ranks are handling while they hang: the report begins with them."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch, Context, RankTimeout
from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.endings import Answered, Stuck
from pytest_gpuperf.ranks.handling import Handled, find_cause, format_tracebacks, list_handled
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.postmortem import World, post_mortem
from tests.ranks.conftest import Call, notes

TIMEOUT = 1.0  # seconds; less than the grace of a stalemate
BAD = "ValueError: bad sample"


def line_of(function: Callable[..., Any], offset: int) -> str:
    """``file:line`` of a line of a function, counted from its ``def``."""
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def in_except(ctx: Context) -> None:
    try:
        if ctx.rank == 1:
            raise ValueError("bad sample\nwith details")
        dist.all_reduce(torch.ones(4))
    except ValueError:
        dist.barrier()
        raise


def in_finally(ctx: Context) -> None:
    try:
        if ctx.rank == 1:
            raise ValueError("bad sample")
        dist.all_reduce(torch.ones(4))
    finally:
        dist.barrier()


class Waits:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        dist.barrier()


def in_exit(ctx: Context) -> None:
    with Waits():
        if ctx.rank == 1:
            raise ValueError("bad sample")
        dist.all_reduce(torch.ones(4))


@contextlib.contextmanager
def waits() -> Iterator[None]:
    try:
        yield
    finally:
        dist.barrier()


def in_a_generator(ctx: Context) -> None:
    with waits():
        if ctx.rank == 1:
            raise ValueError("bad sample")
        dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize("program", [in_except, in_finally, in_exit, in_a_generator])
def test_an_exception_that_waits_behind_a_cleanup_is_the_cause(
    pool: Pool, call: Call, program: Callable[[Context], None]
) -> None:
    with pytest.raises(RankTimeout) as caught:
        call(program, timeout=TIMEOUT)
    place = f"{line_of(program, 3)} in {program.__name__}"
    assert str(caught.value) == (
        f"rank 1 is handling {BAD}, raised at {place}, and its cleanup has not returned: ranks 0, 1 of 2 (gloo) "
        f"did not return from {program.__name__} within 1 s. A cleanup (except, finally, __exit__) that not all ranks "
        "enter must not wait for the others"
    )
    assert pool.failure is not None
    assert (pool.failure.cause, pool.failure.place) == (BAD, place)
    title, text = pool.failure.sections[0]
    assert title == "traceback of what rank 1 handles"
    assert 'raise ValueError("bad sample' in text


def fails_in_its_cleanup(ctx: Context) -> None:
    try:
        if ctx.rank == 1:
            raise ValueError("bad sample")
        dist.all_reduce(torch.ones(4))
    except ValueError:
        try:
            raise KeyError("log")
        finally:
            dist.barrier()


def test_the_second_exception_of_a_cleanup_names_the_first(call: Call) -> None:
    with pytest.raises(RankTimeout) as caught:
        call(fails_in_its_cleanup, timeout=TIMEOUT)
    first, second = (f"{line_of(fails_in_its_cleanup, line)} in fails_in_its_cleanup" for line in (3, 7))
    assert str(caught.value).startswith(
        f"rank 1 is handling KeyError: 'log', raised at {second}, after {BAD}, raised at {first}, and its cleanup has "
    )


def test_a_stalemate_behind_a_cleanup_names_the_exception(call: Call) -> None:
    with pytest.raises(CollectiveMismatch) as caught:
        call(in_except)
    assert str(caught.value).startswith(
        f"rank 1 is handling {BAD}, raised at {line_of(in_except, 3)} in in_except, and "
    )
    assert "in_except on 2 ranks (gloo) can never end: rank " in str(caught.value)
    assert str(caught.value).endswith(
        ". A cleanup (except, finally, __exit__) that not all ranks enter must not wait for the others"
    )


def all_fall_back(ctx: Context) -> None:
    try:
        raise ImportError("no fast kernels")
    except ImportError:
        if ctx.rank:
            threading.Event().wait()
        dist.barrier()


def test_what_all_ranks_handle_is_no_cause(call: Call) -> None:
    with pytest.raises(RankTimeout, match=r"^ranks 0, 1 of 2 \(gloo\) did not return .*if it needs longer") as caught:
        call(all_fall_back, timeout=TIMEOUT)
    where = f"{line_of(all_fall_back, 2)} in all_fall_back"
    assert notes(caught.value)[0] == f"ranks 0, 1 are handling ImportError: no fast kernels, raised at {where}"


def in_a_thread(ctx: Context) -> None:
    def load() -> None:
        try:
            raise ValueError("bad sample")
        except ValueError:
            threading.Event().wait()

    if ctx.rank:
        threading.Thread(target=load, name="loader", daemon=True).start()
    dist.barrier()
    threading.Event().wait()


def test_what_a_thread_of_the_program_handles_is_a_note(call: Call) -> None:
    with pytest.raises(RankTimeout, match=r"^ranks 0, 1 of 2 \(gloo\) did not return ") as caught:
        call(in_a_thread, timeout=TIMEOUT)
    where = f"{line_of(in_a_thread, 3)} in load"
    assert notes(caught.value)[0] == f"rank 1 is handling {BAD}, raised at {where}, in its thread loader"


def fails_while_another_cleans_up(ctx: Context) -> None:
    try:
        raise ValueError("bad sample")
    except ValueError:
        if ctx.rank == 1:
            threading.Event().wait()
        raise RuntimeError("torn down") from None


def test_an_exception_of_another_rank_stays_the_cause(call: Call) -> None:
    with pytest.raises(RuntimeError, match=r"^torn down") as caught:
        call(fails_while_another_cleans_up)
    assert notes(caught.value)[1].startswith(f"rank 1 is handling {BAD}, raised at {__file__}:")


def plain_hang(ctx: Context) -> None:
    threading.Event().wait()


def test_a_plain_hang_handles_nothing(call: Call) -> None:
    with pytest.raises(RankTimeout) as caught:
        call(plain_hang, timeout=TIMEOUT)
    assert " handling " not in "\n".join([str(caught.value), *notes(caught.value)])


def here() -> tuple[Handled, ...]:
    return list_handled({threading.get_ident(): ""})


def test_no_exception_is_handled_outside_of_a_handler() -> None:
    assert here() == ()


def test_a_long_chain_keeps_its_ends() -> None:
    def attempt(number: int) -> tuple[Handled, ...]:
        try:
            raise ValueError(number)
        except ValueError:
            return attempt(number + 1) if number < 9 else here()

    (found,) = attempt(0)
    assert [found.headline, *(headline for headline, _ in found.earlier)] == [
        f"ValueError: {number}" for number in (9, 8, 7, 0)
    ]
    assert found.origin == found.place


def test_a_suppressed_context_is_not_named_and_a_cause_is() -> None:
    try:
        try:
            raise ValueError("bad sample")
        except ValueError:
            raise KeyError("log") from None
    except KeyError:
        (suppressed,) = here()
    assert suppressed.earlier == ()
    try:
        raise KeyError("log") from OSError("no disk")
    except KeyError:
        (caused,) = here()
    assert caused.earlier == (("OSError: no disk", ""),)
    assert str(caused).endswith(", after OSError: no disk")


def test_ranks_that_handle_different_exceptions_are_all_named_the_fewest_first() -> None:
    many, one = Handled(BAD, "x.py:1 in f", "Many\n"), Handled("KeyError: 3", "x.py:2 in g", "One\n")
    handling = {0: [many], 1: [one], 2: [many]}
    assert find_cause(handling, 4) == ([1], one)
    assert format_tracebacks(handling) == [
        ("traceback of what rank 1 handles", "One"),
        ("traceback of what ranks 0, 2 handle", "Many"),
    ]
    stuck = Stuck(1.0, "")
    found = post_mortem([stuck, stuck, stuck, Answered(EMPTY)], World(4, "gloo", "p", 1.0), handling=handling)
    assert str(found.error).startswith(
        "rank 1 is handling KeyError: 3, raised at x.py:2 in g, and its cleanup has not "
    )
    assert notes(found.error)[0] == f"ranks 0, 2 are handling {BAD}, raised at x.py:1 in f"


def test_no_rank_that_handles_nothing_is_a_cause() -> None:
    assert find_cause({0: [], 1: []}, 2) is None
    assert sys.exc_info() == (None, None, None)
