"""Activations and gradients are the same through NVSHMEM's heap as by NCCL, at every size and step after step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, MiB, Ranks
from suites.shared.bits import fill_with_bits
from suites.shared.comparison import assert_close
from suites.shared.places import addends
from suites.shared.step import Step, StepOf
from suites.shared.strategies import worlds
from suites.symmetric_memory.programs import exchanges
from suites.symmetric_memory.programs.one_sided import ENVIRON, MappedHeap, OneSided

Verify = Callable[[Context, torch.Tensor, int, int], None]

HANDOFFS: dict[str, Callable[..., StepOf]] = {
    "nccl": exchanges.handoff_by_nccl,
    "nvshmem": exchanges.handoff_by_nvshmem,
}
GRADIENTS: dict[str, Callable[..., StepOf]] = {
    "nccl": exchanges.gradients_by_nccl,
    "nvshmem": exchanges.gradients_by_nvshmem,
}
ALL: list[tuple[Callable[..., StepOf], Verify]] = [
    *((program, exchanges.verify_handoff) for program in HANDOFFS.values()),
    *((program, exchanges.verify_gradients) for program in GRADIENTS.values()),
]
EACH = pytest.mark.parametrize(("program", "verify"), ALL, ids=[program.__name__ for program, _ in ALL])
STEPS = 3


def in_turn(ctx: Context, program: Callable[..., StepOf], verify: Verify, sizes: list[int]) -> None:
    """Three steps of each size, compared on the ranks, which do not wait for one another meanwhile."""
    step_of = program(ctx, sizes=sizes)
    for nbytes in sizes:
        step = step_of(nbytes)
        for steps in range(1, STEPS + 1):
            output = step()
            verify(ctx, output, steps, nbytes)
            assert not output.any(), "a later step need not write what is there still"
    ctx.barrier()  # nobody's memory goes while others write to it


@pytest.mark.parametrize("verify", [exchanges.verify_handoff, exchanges.verify_gradients])
def test_what_is_missing_is_reported(verify: Verify) -> None:
    context = Context(rank=1, world_size=2, backend="gloo", device=torch.device("cpu"), seed=1)
    nbytes = 64
    output = torch.zeros(nbytes, dtype=torch.uint8)
    if verify is exchanges.verify_gradients:
        output = torch.zeros(nbytes // exchanges.GRADIENTS.itemsize // 2, dtype=exchanges.GRADIENTS)
    with pytest.raises(AssertionError, match="rank 1"):
        verify(context, output, 1, nbytes)


@pytest.mark.ranks(2, 3, 4, nodes=1, env=ENVIRON)
@EACH
@given(data=st.data(), counts=st.lists(st.integers(1, 9_000), min_size=1, max_size=2, unique=True))
def test_every_size(
    ranks: Ranks, data: st.DataObject, program: Callable[..., StepOf], verify: Verify, counts: list[int]
) -> None:
    world = data.draw(worlds(ranks))
    # Each rank has a part of whole elements.
    sizes = [world.world_size * exchanges.GRADIENTS.itemsize * count for count in [*sorted(counts), 9_001]]
    world.run(in_turn, program, verify, sizes)


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda", largest=True, env=ENVIRON)
@EACH
def test_every_size_on_gpus(ranks: Ranks, program: Callable[..., StepOf], verify: Verify) -> None:
    ranks.run(in_turn, program, verify, [16 * ranks.world_size, 35_001 * 2 * ranks.world_size, 16 * MiB])


@pytest.mark.ranks(2, nodes=1, device="cuda", env={**ENVIRON, "NVSHMEM_SYMMETRIC_SIZE": "16M"})
def test_a_heap_that_is_too_small_is_named_before_anything_is_allocated(ranks: Ranks) -> None:
    with pytest.raises(MemoryError, match="heap of 16777216 bytes: set NVSHMEM_SYMMETRIC_SIZE=49M or more before"):
        ranks.run(in_turn, exchanges.gradients_by_nvshmem, exchanges.verify_gradients, [16 * MiB])


@dataclass(slots=True)
class Counted:
    """Memory that only counts what is allocated of it."""

    asked_for: int
    allocated: int = 0

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(numel, dtype=dtype)
        self.allocated += tensor.nbytes
        return tensor


@pytest.mark.parametrize("program", [HANDOFFS["nvshmem"], GRADIENTS["nvshmem"]], ids=["activations", "gradients"])
def test_as_much_memory_is_asked_for_as_all_sizes_take(program: Callable[..., StepOf]) -> None:
    """CPUs have as much as is allocated; a heap of GPUs would be found to be too small too late."""
    memories: list[Counted] = []

    def opened(ctx: Context, nbytes: int) -> Any:
        memories.append(Counted(nbytes))
        return memories[-1]

    sizes = [32, 64, 4096]
    context = Context(rank=1, world_size=2, backend="gloo", device=torch.device("cpu"), seed=1)
    step_of = program(context, sizes=sizes, open_memory=opened)
    for nbytes in sizes:
        step_of(nbytes)
    (memory,) = memories
    assert memory.allocated == memory.asked_for


@dataclass(slots=True)
class OneSlowPeer:
    """Memory in which one of two ranks goes on behind a wait only when the other has come as far as it can."""

    ctx: Context
    slow: int
    ahead: int
    """How many waits the other one is ahead of the slow one when it can go no further."""
    heap: MappedHeap = field(init=False)
    waits: int = 0
    allocated: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heap = MappedHeap(self.ctx, 0, self.meet)

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        self.allocated.append(self.heap.allocate(numel, dtype))
        return self.allocated[-1]

    def put(self, tensor: torch.Tensor, peer: int, word: int) -> None:
        self.heap.put(tensor, peer, word)

    def signal(self, peer: int, word: int) -> None:
        self.heap.signal(peer, word)

    def wait(self, word: int, peer: int) -> None:
        self._held(partial(self.heap.wait, word, peer))

    def all_to_all(self, given: torch.Tensor, out: torch.Tensor) -> None:
        self.heap.all_to_all(given, out)

    def meet(self) -> None:
        self._held(dist.barrier)

    def ended(self) -> None:
        """The other one is as far as it ever gets."""
        if self.ctx.rank != self.slow:
            for number in range(self.waits, self.waits + 2 * STEPS + 2):
                self.ctx.store.set(f"at wait {number}", "")

    def _held(self, wait: Callable[[], object]) -> None:
        if self.ctx.rank != self.slow:
            self.ctx.store.set(f"at wait {self.waits}", "")
        wait()
        if self.ctx.rank == self.slow:
            self.ctx.store.wait([f"at wait {self.waits + self.ahead}"])
        self.waits += 1


def exchanged_with_one_slow_rank(
    ctx: Context, program: Callable[..., StepOf], slow: int, ahead: int, nbytes: int
) -> list[torch.Tensor]:
    """What some steps return, each of which sends other numbers: the first one's, doubled at each step."""
    memory = OneSlowPeer(ctx, slow, ahead)

    def opened(ctx: Context, nbytes: int) -> OneSided:
        return memory

    step: Step[torch.Tensor] = program(ctx, sizes=[nbytes], open_memory=opened)(nbytes)
    sent = memory.allocated[ctx.rank % 2 if program is exchanges.handoff_by_nvshmem else 0]
    results = []
    for number in range(STEPS):
        if number:
            sent.mul_(2)
        results.append(step().clone())
    memory.ended()
    ctx.barrier()
    return results


@pytest.mark.ranks(2, device="cpu")
@pytest.mark.parametrize(("slow", "ahead"), [(0, 0), (1, 1)], ids=["sender", "receiver"])
def test_a_slow_stage_gets_and_gives_its_activations(ranks: Ranks, slow: int, ahead: int) -> None:
    nbytes = 64
    expected = torch.empty(nbytes, dtype=torch.uint8)
    fill_with_bits(expected, stream=0)
    first, last = ranks.run(exchanged_with_one_slow_rank, exchanges.handoff_by_nvshmem, slow, ahead, nbytes)
    for number in range(STEPS):
        assert first[number].numel() == 0
        assert_close(last[number], expected, f"step {number}")
        expected = expected * 2


@pytest.mark.ranks(2, device="cpu")
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_adds_up_the_gradients_of_its_own_step(ranks: Ranks, slow: int) -> None:
    nbytes = 64
    of_ranks = ranks.run(exchanged_with_one_slow_rank, exchanges.gradients_by_nvshmem, slow, 1, nbytes)
    for rank, results in enumerate(of_ranks):
        numel = nbytes // exchanges.GRADIENTS.itemsize // 2
        given: dict[str, Any] = {"dtype": exchanges.GRADIENTS, "ranks": 2, "start": rank * numel}
        total = addends(numel, rank=0, **given) + addends(numel, rank=1, **given)
        for number, result in enumerate(results):
            assert_close(result, total * 2**number, f"rank {rank}, step {number}")
