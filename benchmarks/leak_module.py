"""The tests of ``leak_curves.py``, which copies this file to an empty folder and has pytest run it there.

Every test makes a subgroup, which some of them leave behind, and reduces on it; some allocate. Every so
many tests it writes down what the controller, the forkserver and each rank hold on to.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from pytest_gpuperf.ranks.closing import await_ended

TESTS, RANKS, EVERY = (int(os.environ[f"LEAK_{name}"]) for name in ("TESTS", "RANKS", "EVERY"))
NUMEL = 2**20
MALLINFO2 = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
"""What glibc's malloc tells of all its arenas; bytes in use are ``uordblks`` and, mapped one by one, ``hblkhd``."""


def held(pid: int | str) -> dict[str, int]:
    """What the kernel knows of a process; its memory in bytes."""
    proc = Path("/proc", str(pid))
    rollup = (line.split() for line in (proc / "smaps_rollup").read_text().splitlines())
    memory = {words[0]: int(words[1]) * 1024 for words in rollup if words[0] in ("Rss:", "Pss:")}
    return {
        "fds": len(os.listdir(proc / "fd")),
        "threads": len(os.listdir(proc / "task")),
        "rss": memory["Rss:"],
        "pss": memory["Pss:"],
    }


def mappings(ctx: Context) -> list[tuple[int, int, str, int]]:
    """The rank's memory: begin and end of each mapping, its file, and how many bytes of it are resident."""
    found: list[tuple[int, int, str, int]] = []
    begin, end, file = 0, 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):  # the first line of a mapping; its attributes follow
            begin, end = (int(address, 16) for address in words[0].split("-"))
            file = words[5] if len(words) == 6 else ""
        elif words[0] == "Rss:" and words[1] != "0":
            found.append((begin, end, file, int(words[1]) * 1024))
    return found


def outside_heap(found: Sequence[tuple[int, int, str, int]]) -> int:
    """Resident bytes of mappings that are not the heap."""
    return sum(resident for _, _, file, resident in found if file != "[heap]")


def allocated() -> dict[str, int]:
    """Bytes that malloc has given out, touched or not; nothing where this is not glibc 2.33 or newer."""
    fields = [(name, ctypes.c_size_t) for name in MALLINFO2]

    class Mallinfo2(ctypes.Structure):  # mallinfo(3); in here, since it cannot be pickled for the ranks
        _fields_ = fields

    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return {}
    mallinfo2.restype = Mallinfo2
    told = mallinfo2()
    return {"malloc": told.uordblks + told.hblkhd}


def reduced_on_subgroup(ctx: Context, number: int) -> float:
    """What each of the tests does."""
    group = dist.new_group(list(range(ctx.world_size)))
    numel = NUMEL if number % 3 == 0 and number % EVERY else 4  # what a sample sees is not its own test's
    x = torch.full((numel,), float(number), device=ctx.device)
    dist.all_reduce(x, group=group)
    if number % 2:
        dist.destroy_process_group(group)
    return float(x[-1])


def held_by_rank(ctx: Context) -> dict[str, dict[str, int]]:
    """What the rank holds on to; rank 0 also tells of the store and of the forkserver."""
    gc.collect()
    await_ended()  # what a sample sees is not the test's before
    rest = outside_heap(mappings(ctx))
    own = held("self") | allocated() | {"rest": rest, "groups": len(dist.distributed_c10d._world.pg_map)}
    if ctx.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(ctx.device)
        own["gpu"] = total - free
    if ctx.rank:
        return {f"rank {ctx.rank}": own}
    own["keys"] = dist.distributed_c10d._get_default_store().num_keys()
    return {"forkserver": held(os.getppid()), "rank 0": own}


@pytest.mark.ranks(RANKS)
@pytest.mark.parametrize("number", range(1, TESTS + 1))
def test_holds_on_to_nothing(ranks: Ranks, number: int) -> None:
    """One of many tests on one pool."""
    assert ranks.run(reduced_on_subgroup, number) == [float(number * RANKS)] * RANKS
    if number % EVERY == 0:
        sample = {"controller": held("self")}
        for of_rank in ranks.run(held_by_rank):
            sample.update(of_rank)
        with open(os.environ["LEAK_FILE"], "a") as file:
            of_ranks = {f"rank {rank}": found for rank, found in enumerate(ranks.run(mappings))}
            file.write(json.dumps({"tests": number, "held": sample, "mappings": of_ranks}) + "\n")
