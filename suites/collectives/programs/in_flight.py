"""Collectives that are in flight together, of the world and of subgroups of it, and waited for in another order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.programs.checking import IN_PLACE, Input
from suites.collectives.programs.plain import reduce_op
from suites.collectives.reference import Collective

NAMES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_uneven",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)
"""Those that torch can leave in flight by themselves."""
Groups = dict[tuple[int, ...], dist.ProcessGroup]


@contextmanager
def groups_of(ctx: Context, members: Sequence[tuple[int, ...]]) -> Iterator[Groups]:
    """A process group for each tuple of ranks; the world's own where it is all of them.

    All ranks make all groups, in the same order, as torch asks for.
    """
    made: Groups = {}
    for ranks in dict.fromkeys(members):
        made[ranks] = ctx.group if len(ranks) == ctx.world_size else dist.new_group(list(ranks))
    try:
        yield made
    finally:
        for ranks, group in made.items():
            if group is not ctx.group and ctx.rank in ranks:
                dist.destroy_process_group(group)


class Flight:
    """One collective and its buffers on a rank that is a member."""

    def __init__(self, ctx: Context, collective: Collective, group: dist.ProcessGroup) -> None:
        """Allocates; nothing is sent yet."""
        self._rank, self._usual, self._group = ctx.rank, collective, group
        self._input = Input(ctx, collective)
        x = self._input.x
        self._out = x if collective.name in IN_PLACE else x.new_empty(collective.ended(ctx.rank) or 0)

    def start(self, number: int) -> None:
        """Starts the collective with the input of this step."""
        self._collective = self._usual.again(number)
        self._input.fill(self._collective)
        self._work = self._issue()

    def land(self) -> Iterator[str]:
        """Waits, and says what is wrong then."""
        self._work.wait()
        try:
            defined = self._usual.ended(self._rank) is not None
            self._collective.assert_right(self._rank, self._out if defined else None)
            self._input.check(self._collective)
        except AssertionError as error:
            yield f"in flight with others: {error}"

    def _issue(self) -> dist.Work:
        one, group, x, out = self._collective, self._group, self._input.x, self._out
        root, mine = one.root, self._rank == one.root
        work: dist.Work
        match one.name:
            case "all_reduce":
                work = dist.all_reduce(x, reduce_op(one.op), group, async_op=True)
            case "all_gather":
                work = dist.all_gather_into_tensor(out, x, group, async_op=True)
            case "reduce_scatter":
                work = dist.reduce_scatter_tensor(out, x, reduce_op(one.op), group, async_op=True)
            case "broadcast":
                work = dist.broadcast(x, root, group, async_op=True)
            case "reduce":
                work = dist.reduce(x, root, reduce_op(one.op), group, async_op=True)
            case "gather":
                work = dist.gather(x, list(out.split(one.numel)) if mine else None, root, group, async_op=True)
            case "scatter":
                work = dist.scatter(out, list(x.split(one.numel)) if mine else None, root, group, async_op=True)
            case "all_to_all":
                work = dist.all_to_all_single(out, x, group=group, async_op=True)
            case "all_to_all_uneven":
                index = one.members.index(self._rank)
                received = [row[index] for row in one.splits]
                work = dist.all_to_all_single(out, x, received, list(one.splits[index]), group, async_op=True)
            case _:
                raise ValueError(f"{one.name} cannot be in flight by itself")
        return work


def together(
    ctx: Context, *, collectives: Sequence[Collective], order: Sequence[int], late: int | None = None, steps: int = 2
) -> list[str]:
    """Starts all of them one after the other, and waits for each in another order; returns what is wrong.

    As often as there are steps, with other inputs in the same buffers. A rank takes part where it is a member.

    Args:
        ctx: the rank.
        collectives: what is started, in this order.
        order: of the waiting; positions in ``collectives``.
        late: a rank that starts its own so late that who does not wait has nothing yet.
        steps: how often all of it is done.
    """
    wrong: list[str] = []
    with groups_of(ctx, [collective.members for collective in collectives]) as groups:
        flights = {
            place: Flight(ctx, collective, groups[collective.members])
            for place, collective in enumerate(collectives)
            if ctx.rank in collective.members
        }
        for number in range(steps):
            if ctx.rank == late:
                time.sleep(0.03)
            wrong += flown(flights, order, number)
    return wrong


def flown(flights: dict[int, Flight], order: Sequence[int], number: int = 0) -> Iterator[str]:
    """Starts all flights, and has them land in an order; says what is wrong."""
    for flight in flights.values():
        flight.start(number)
    for place in order:
        if place in flights:
            yield from flights[place].land()
