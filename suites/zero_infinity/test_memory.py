"""What offloaded training makes goes again: between steps there are shards and batches alone, and in them one copy.

That is what sharding is for: a rank that keeps the gathered parameters, or copies of them on the host, trains as well.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.problems import Problem
from suites.zero_infinity.programs import offloading as programs
from suites.zero_infinity.programs.offloading import Memory, Shard, memory
from suites.zero_infinity.test_correctness import NUMBERS, slice_size

WIDTH, STEPS, ITEMSIZE = 64, 3, 8


def wide(world_size: int, optimizer: str) -> Problem:
    """A problem whose parameters are large next to its activations.

    They are 3 (SGD) or 1 (Adam) of 64 x 64, and 2 or no biases of 64.
    """
    return Problem(
        world_size=world_size,
        seed=1,
        inputs=WIDTH,
        hidden=0 if optimizer == "adam" else WIDTH,
        outputs=WIDTH,
        rows=1,
        steps=STEPS,
        optimizer=optimizer,
    )


def numels(optimizer: str) -> list[int]:
    return [WIDTH * WIDTH] if optimizer == "adam" else [WIDTH * WIDTH] * 3 + [WIDTH] * 2


def kept(degree: int, optimizer: str) -> dict[str, int]:
    """Bytes between steps: inputs and output gradients of all steps on the device, shards on the host.

    For each parameter Adam counts its steps besides, in a float32.
    """
    sizes = [slice_size(numel, degree) for numel in numels(optimizer)]
    counts = 4 * len(sizes) if optimizer == "adam" else 0
    return {"device": STEPS * 2 * WIDTH * ITEMSIZE, "host": NUMBERS[optimizer] * sum(sizes) * ITEMSIZE + counts}


def added(degree: int, optimizer: str) -> list[dict[str, int]]:
    """Bytes that a step may add to those, one moment after the other: c = ceil(n / R) for parameters of n elements.

    The device has R c for each gathered parameter and n for its gradient, once backward is through; and for one
    gradient after the other R c and c, the padded gradient and its slice. A row's activations and their gradients are
    at most 10 numbers for each of 3 widths: outputs and output gradients of both layers, the shortcut and ReLU, two
    gradients of the input, and all sums.

    The host has c for each gradient and its copy that the step returns, or, when gradients are gone, for the copies of
    gradients and values. In the end Adam makes two more of c, for one parameter at a time: a root and a quotient.
    """
    sizes = [slice_size(numel, degree) for numel in numels(optimizer)]
    device = degree * sum(sizes) + sum(numels(optimizer)) + 10 * 3 * WIDTH
    moments = [
        {"device": device + (degree + 1) * size, "host": 2 * sum(sizes[:index])} for index, size in enumerate(sizes)
    ]
    moments.append({"device": device, "host": 2 * sum(sizes) + 2 * max(sizes)})
    return [{place: numbers * ITEMSIZE for place, numbers in moment.items()} for moment in moments]


def by_kind(places: dict[str, int], kinds: Collection[str]) -> dict[str, int]:
    """If ranks train on CPUs, device and host are one."""
    if set(kinds) == {"cpu"}:
        return {"cpu": sum(places.values())}
    (device,) = set(kinds) - {"cpu"}
    return {device: places["device"], "cpu": places["host"]}


def assert_memory(memories: list[Memory], degree: int, optimizer: str) -> None:
    """Between steps there is what is kept, to the byte; during steps a gathered parameter, and no more than may be."""
    sizes = [slice_size(numel, degree) for numel in numels(optimizer)]
    whole = {"device": degree * max(sizes) * ITEMSIZE, "host": 0}
    for rank, of_rank in enumerate(memories):
        between = by_kind(kept(degree, optimizer), of_rank.before)
        assert of_rank.before == between, f"rank {rank}, before the first step"
        for step, after in enumerate(of_rank.after, start=1):
            assert after == between, f"rank {rank}, after step {step}"
        moments = [by_kind(moment, of_rank.before) for moment in added(degree, optimizer)]
        gathered = by_kind(whole, of_rank.before)
        for kind, peak in of_rank.peak.items():
            assert peak - between[kind] >= gathered[kind], f"rank {rank}: nothing was gathered on {kind} in any step"
            beyond = peak - between[kind] - max(moment[kind] for moment in moments)
            assert beyond <= 0, f"rank {rank}, during a step: {beyond} bytes of {kind} beyond the bound"


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_memory(ranks: Ranks, tmp_path: Path, optimizer: str, disk: bool) -> None:
    problem = wide(ranks.world_size, optimizer)
    memories = ranks.run(memory, problem=problem, folder=tmp_path if disk else None)
    assert_memory(memories, ranks.world_size, optimizer)


def late(ctx: Context, shard: Shard) -> torch.Tensor:
    """What it gathers is held a moment longer, as by a backend's thread."""
    whole = programs.gather(ctx, shard)
    held = [whole]
    threading.Timer(0.05, held.clear).start()
    return whole


@pytest.mark.ranks(2)
def test_what_goes_a_moment_later_is_not_kept(ranks: Ranks) -> None:
    def program(ctx: Context) -> Memory:
        measured = memory(ctx, problem=wide(2, "sgd"), folder=None, gather=late)
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
        return measured

    assert_memory(ranks.run(program), 2, "sgd")
