"""Ranks that pass unlike things to one collective: told at the end of the run, by rank."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch, Context, RankError, RankTimeout
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import GRACE, Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import Call, notes

SPARE = 10.0  # seconds; the run has 60
HERE = sys.modules[__name__].__file__


def dtypes(ctx: Context) -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if ctx.rank else torch.float32))


def reductions(ctx: Context) -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if ctx.rank else dist.ReduceOp.SUM)


def functional_reductions(ctx: Context) -> None:
    from torch.distributed._functional_collectives import all_reduce

    all_reduce(torch.ones(4), "max" if ctx.rank else "sum", ctx.group).sum().item()


def roots(ctx: Context) -> None:
    dist.broadcast(torch.ones(4), src=ctx.rank)


def too_few_rows(ctx: Context) -> None:
    given = torch.ones(3 if ctx.rank else 4, 2)
    dist.all_to_all_single(torch.ones(4, 2), given, [2, 2], [1, 2] if ctx.rank else [2, 2])


def sizes(ctx: Context) -> None:
    dist.broadcast(torch.ones(4 - 2 * ctx.rank), src=1)


def asynchronous(ctx: Context) -> None:
    work = [dist.all_reduce(torch.ones(4, dtype=dtype), async_op=True) for dtype in (torch.float32, torch.float64)]
    work.append(dist.all_reduce(torch.ones(4, dtype=torch.int32 if ctx.rank else torch.float32), async_op=True))
    for one in work:
        one.wait()


DTYPES = (
    "all_reduce, collective 1 of the program on group 0 (ranks 0, 1): rank 0 passed Float[4]; rank 1 passed Int[4]. "
    "All ranks of a group must pass the same dtype"
)
REDUCTIONS = (
    "all_reduce, collective 1 of the program on group 0 (ranks 0, 1): rank 0 passed SUM; rank 1 passed MAX. "
    "All ranks of a group must ask for the same reduction"
)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (dtypes, DTYPES),
        (reductions, REDUCTIONS),
        (functional_reductions, REDUCTIONS),
        (
            too_few_rows,
            "all_to_all, collective 1 of the program on group 0 (ranks 0, 1): rank 1 sends 2 elements to rank 0, "
            "which expects 4. A rank must send another as many elements as that one expects of it",
        ),
        (
            sizes,
            "broadcast, collective 1 of the program on group 0 (ranks 0, 1): rank 0 passed Float[4]; rank 1 passed "
            "Float[2]. All ranks of a group must pass as many elements",
        ),
        (asynchronous, DTYPES.replace("collective 1", "collective 3")),
    ],
)
def test_what_does_not_fit_together_fails_though_all_return(
    call: Call, program: Callable[[Context], None], said: str
) -> None:
    with pytest.raises(CollectiveMismatch) as caught:
        call(program)
    assert str(caught.value) == (
        f"all ranks returned from {program.__name__} (gloo), but the ranks passed unlike arguments to {said}"
    )
    place = notes(caught.value)[1]
    assert place.startswith(f"ranks 0, 1 issued it at {HERE}:")
    assert place.endswith(f" in {program.__name__}")


def test_what_keeps_ranks_waiting_is_told_soon(pool: Pool, call: Call) -> None:
    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        call(roots)
    assert str(caught.value) == (
        "roots on 2 ranks (gloo) can never end: the ranks passed unlike arguments to broadcast, collective 1 of the "
        "program on group 0 (ranks 0, 1): rank 0 passed root 0; rank 1 passed root 1. All ranks of a group must name "
        "the same root"
    )
    assert time.monotonic() - start < GRACE + SPARE


def other_shapes(ctx: Context) -> None:
    dist.all_reduce(torch.ones(2, 2) if ctx.rank else torch.ones(4))


def uneven_rows(ctx: Context) -> None:
    sent = [1, 2] if ctx.rank else [3, 4]
    got = [4, 2] if ctx.rank else [3, 1]
    dist.all_to_all_single(torch.ones(sum(got), 3), torch.ones(sum(sent), 3), got, sent)


def a_root(ctx: Context) -> None:
    parts = [torch.ones(3), torch.ones(3)]
    dist.gather(torch.ones(3), parts if ctx.rank == 1 else None, dst=1)
    dist.scatter(torch.ones(3), parts if ctx.rank == 0 else None, src=0)
    dist.reduce(torch.ones(3), dst=1)


def objects(ctx: Context) -> None:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, "x" * (ctx.rank + 1))
    dist.broadcast_object_list(found)
    dist.gather_object(ctx.rank * 100, found if ctx.rank == 0 else None)


def two_ways(ctx: Context) -> None:
    from torch.distributed._functional_collectives import all_reduce

    if ctx.rank:
        dist.all_reduce(torch.ones(4))
    else:
        all_reduce(torch.ones(4), "sum", ctx.group).sum().item()


def ddp(ctx: Context) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()


def refused_everywhere(ctx: Context) -> None:
    with pytest.raises(RuntimeError, match="Split sizes"):
        dist.all_to_all_single(torch.ones(4), torch.ones(4 + ctx.rank), [2, 2], [1, 1])
    dist.barrier()


def one_within_another_that_is_refused(ctx: Context) -> None:
    """As a backend written in Python may issue it."""

    def refuse(*arguments: object) -> None:
        dist.broadcast(torch.ones(2), src=0)
        raise RuntimeError("not here")

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", refuse, "CPU")
    with pytest.raises(RuntimeError, match="not here"):
        dist.all_reduce(torch.ones(4 + ctx.rank))


def groups_of_one_name(ctx: Context) -> None:
    own = [dist.new_group([rank]) for rank in range(2)][ctx.rank]
    for _ in range(ctx.rank):
        dist.all_reduce(torch.ones(1), group=own)


@pytest.mark.parametrize(
    "program",
    [
        other_shapes,
        uneven_rows,
        a_root,
        objects,
        two_ways,
        ddp,
        refused_everywhere,
        one_within_another_that_is_refused,
        groups_of_one_name,
    ],
)
def test_what_fits_together_passes(call: Call, program: Callable[[Context], None]) -> None:
    call(program)


def test_a_collective_of_another_group_that_only_some_ranks_issue(call: Call) -> None:
    def program(ctx: Context) -> None:
        group = dist.new_group([0, 1])
        if ctx.rank:
            dist.all_reduce(torch.ones(3), group=group, async_op=True)

    with pytest.raises(CollectiveMismatch) as caught:
        call(program)
    assert str(caught.value) == (
        "all ranks returned from program (gloo), but not from the same collectives. Every rank of a group must issue "
        "each of its collectives"
    )
    never = "rank 0 never issued all_reduce Float[3] (collective 1 of the program), which rank 1 did"
    assert never in notes(caught.value)


def test_an_error_of_the_backend_shows_the_program_and_not_us(call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [1, 1])

    with pytest.raises(RuntimeError, match="Split sizes") as caught:
        call(program)
    files = [Path(entry.path).name for entry in caught.traceback]
    assert files[-1] == "distributed_c10d.py"


def test_a_stack_shows_the_program_and_not_us(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.all_reduce(torch.ones(4_000_000 * ctx.rank + 1))

    with pytest.raises(RankError) as caught:
        call(program)
    assert "calls.py" not in "".join(notes(caught.value))
    assert pool.failure is not None
    assert "calls.py" not in repr(pool.failure.sections)


def test_calls_that_the_backend_does_not_return_from_are_compared_too(pool: Pool, call: Call) -> None:
    """So it is in the first collective of a group on NCCL, which opens its connections."""

    def program(ctx: Context) -> None:
        library = torch.library.Library("c10d", "IMPL")
        library.impl("allreduce_", lambda *_: threading.Event().wait(), "CPU")
        dist.broadcast(torch.ones(4), src=0)
        reductions(ctx)

    with pytest.raises(RankTimeout) as caught:
        call(program, timeout=1)
    assert pool.failure is not None
    assert dict(pool.failure.sections)["collectives"] == (
        "last collective of ranks 0, 1: all_reduce Float[4], its collective 2"
    )
    unlike, place = notes(caught.value)[-2:]
    alike = REDUCTIONS.partition(". ")[0].replace("collective 1", "collective 2")
    assert unlike == f"the ranks passed unlike arguments to {alike}"
    assert place.endswith(" in reductions")


def test_ranks_that_measure_note_nothing(torch_client: ForkserverClient) -> None:
    pool = Pool(LocalNode(torch_client), PoolSpec(2, timed=True), {})
    try:
        pool.open_group("first", 60)
        task = payload.dumps((dtypes, (), {}), [sys.modules[__name__]])
        pool.run(task, program="p", seed=0, timeout=60)  # nobody compares, and so it passes
    finally:
        pool.close()


def test_no_number_of_calls_hangs_or_is_lost(call: Call) -> None:
    def program(ctx: Context) -> None:
        for _ in range(2000):
            dist.all_reduce(torch.ones(4), async_op=True).wait()
        dist.all_reduce(torch.ones(4, dtype=torch.int32 if ctx.rank else torch.float32))

    with pytest.raises(CollectiveMismatch, match="collective 2001 of the program"):
        call(program)


@pytest.mark.parametrize(("issued", "fails"), [(2, True), (4, False)])
def test_no_more_than_the_first_ones_of_a_group_are_compared(call: Call, issued: int, fails: bool) -> None:
    def program(ctx: Context) -> None:
        from pytest_gpuperf.ranks import calls

        most, calls.MOST = calls.MOST, 3
        try:
            for _ in range(issued):
                dist.all_reduce(torch.ones(4))
            dtypes(ctx)
            for _ in range(5):
                dist.all_reduce(torch.ones(4))
        finally:
            calls.MOST = most

    with pytest.raises(CollectiveMismatch, match="collective 3 of") if fails else contextlib.nullcontext():
        call(program)
