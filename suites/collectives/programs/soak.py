"""Collectives with sizes, dtypes and groups that change, for a given time, each of them checked."""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.programs.in_flight import NAMES, Flight, flown, groups_of
from suites.collectives.reference import REDUCTIONS, Collective
from suites.shared.strategies import FLOATS, INTEGERS

_AT_ONCE = 4
_ROUNDS = 8  # between two looks at the clock


def soak(ctx: Context, *, seconds: float, seed: int, largest: int) -> tuple[int, list[str]]:
    """How many collectives this rank took part in, and what was wrong with them; ends soon after the first fault.

    All ranks draw the same collectives from the seed. Rank 0 tells the others when the time is over.

    Args:
        ctx: the rank.
        seconds: how long it goes on.
        seed: another one draws other collectives.
        largest: elements of a share, at most.
    """
    drawn = random.Random(seed)
    world = tuple(range(ctx.world_size))
    memberships = [world, *(some for some in (world[::2], world[1::2], world[1:], world[:-1]) if len(some) > 1)]
    ends = time.monotonic() + seconds
    over = torch.zeros(1, device=ctx.device)
    done, wrong = 0, list[str]()
    with groups_of(ctx, memberships) as groups:
        while not over.item():
            for _ in range(_ROUNDS):
                number = drawn.randint(1, _AT_ONCE)
                collectives = [drawn_collective(drawn, list(groups), largest) for _ in range(number)]
                order = drawn.sample(range(len(collectives)), len(collectives))
                flights = {
                    place: Flight(ctx, collective, groups[collective.members])
                    for place, collective in enumerate(collectives)
                    if ctx.rank in collective.members
                }
                wrong += flown(flights, order)
                done += len(flights)
            over.fill_(bool(wrong) or (ctx.rank == 0 and time.monotonic() > ends))
            dist.all_reduce(over)
    return done, wrong


def drawn_collective(drawn: random.Random, memberships: list[tuple[int, ...]], largest: int) -> Collective:
    """One of any kind, of one of these groups of ranks."""
    name, members = drawn.choice(NAMES), drawn.choice(memberships)
    dtype = drawn.choice(FLOATS + INTEGERS)
    ops = ["sum", "min", "max"]
    if name != "reduce_scatter":  # gloo has neither for it
        ops += ["product", *(["avg"] if dtype.is_floating_point else [])]
    numel = int(largest ** drawn.random())  # as many small ones as large ones
    row = [0, 1, numel // 2, numel]
    return Collective(
        name=name,
        numel=numel,
        dtype=dtype,
        seed=drawn.randrange(2**20),
        members=members,
        op=drawn.choice(ops) if name in REDUCTIONS else "sum",
        root=drawn.choice(members),
        splits=tuple(tuple(drawn.choices(row, k=len(members))) for _ in members),
    )
