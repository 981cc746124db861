"""Each barrier of a program is needed: without it, a rank that is slow holds something else.

One of two ranks goes on behind a barrier only when the other has come as far as it can by itself. What a missing
barrier would allow to happen too early has then happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.inputs import integers, rank_inputs
from suites.symmetric_memory.programs import operations as programs
from suites.symmetric_memory.programs.memory import Memory, allocate
from suites.symmetric_memory.programs.optimizer_shards import optimizer_shards

pytestmark = pytest.mark.ranks(2, device="cpu")

SHAPE, DTYPE = (4,), torch.float32
SEEDS = (1, 2)
NBYTES = 1024


@dataclass(slots=True)
class OneSlowRank:
    """Memory for one program after another, in which rank 0 lets rank 1 go ahead wherever it can."""

    ctx: Context
    memory: Memory
    missing: int | None
    """Which barrier there is none of, from 1 on."""
    called: int = 0
    passed: int = 0

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """Of the memory."""
        return self.memory.buffer(rank, shape, dtype, offset)

    def barrier(self) -> None:
        """Rank 0 leaves it once rank 1 is at the next one, or has come to the end."""
        self.called += 1
        if self.called == self.missing:
            return
        self.arrived()
        self.memory.barrier()
        self.passed += 1
        self.wait()

    def arrived(self) -> None:
        """Rank 1 can get no further before rank 0 does."""
        if self.ctx.rank == 1:
            self.ctx.store.set(f"arrived {self.passed}", "")

    def wait(self) -> None:
        """Rank 0 waits for that."""
        if self.ctx.rank == 0:
            self.ctx.store.wait([f"arrived {self.passed}"])


def one_after_another(
    ctx: Context, programs: list[Callable[..., Callable[[], Any]]], missing: int | None
) -> tuple[list[Any], int]:
    """What the programs' steps return on the same memory, and how many barriers they have called."""
    memory = OneSlowRank(ctx, allocate(ctx, NBYTES), missing)
    memory.wait()
    results = [program(ctx, allocate=lambda ctx, nbytes: memory)() for program in programs]
    memory.arrived()
    return results, memory.called


def assert_each_step(ranks: Ranks, program: Callable[..., Any], missing: int | None) -> None:
    """The program with one seed, then with another, on the same memory."""
    kwargs = {"shape": SHAPE, "dtype": DTYPE} | ({} if program is programs.all_reduce_by_gets else {"distance": 1})
    steps = [partial(program, seed=seed, **kwargs) for seed in SEEDS]
    for rank, (results, called) in enumerate(ranks.run(one_after_another, steps, missing)):
        assert called == 4
        for seed, result in zip(SEEDS, results, strict=True):
            sent = rank_inputs(2, shape=SHAPE, dtype=DTYPE, seed=seed)
            expected = sent[0] + sent[1] if program is programs.all_reduce_by_gets else sent[1 - rank]
            assert torch.equal(result, expected), f"rank {rank} has a wrong tensor of seed {seed}"


def assert_optimized(ranks: Ranks, missing: int | None) -> None:
    """Two steps of SGD, whose state is split."""
    weights = integers((4,), torch.float64, seed=1)
    gradients = [[2 * integers((4,), torch.float64, seed=2 * step + rank) for rank in range(2)] for step in (1, 2)]
    first, second = (sum(of_ranks) / 2 for of_ranks in gradients)
    expected = weights - first - (first / 2 + second)
    program = partial(optimizer_shards, weights=weights, gradients=gradients, lr=1.0, momentum=0.5)
    for rank, (results, called) in enumerate(ranks.run(one_after_another, [program], missing)):
        assert called == 4
        assert torch.equal(results[0]["weights"], expected), f"rank {rank} has wrong weights"


@pytest.mark.parametrize("program", [programs.put, programs.get, programs.all_reduce_by_gets])
def test_a_slow_rank_holds_what_it_should(ranks: Ranks, program: Callable[..., Any]) -> None:
    assert_each_step(ranks, program, None)


def test_a_slow_rank_holds_the_weights_that_it_should(ranks: Ranks) -> None:
    assert_optimized(ranks, None)


# Nobody needs the first barrier of a put into fresh memory, nor the last one where nothing follows.
@pytest.mark.deliberate_break
@pytest.mark.parametrize(
    ("program", "missing", "who"),
    [
        (programs.put, 2, "rank 1 has a wrong tensor of seed 1"),
        (programs.put, 3, "rank 0 has a wrong tensor of seed 1"),
        (programs.put, 4, "rank 1 has a wrong tensor of seed 2"),
        (programs.get, 1, "rank 1 has a wrong tensor of seed 1"),
        (programs.get, 2, "rank 0 has a wrong tensor of seed 1"),
        (programs.get, 3, "rank 1 has a wrong tensor of seed 2"),
        (programs.all_reduce_by_gets, 1, "rank 1 has a wrong tensor of seed 1"),
        (programs.all_reduce_by_gets, 2, "rank 0 has a wrong tensor of seed 1"),
        (programs.all_reduce_by_gets, 3, "rank 1 has a wrong tensor of seed 2"),
    ],
)
def test_a_missing_barrier_is_found(ranks: Ranks, program: Callable[..., Any], missing: int, who: str) -> None:
    with pytest.raises(AssertionError, match=f"^{who}"):
        assert_each_step(ranks, program, missing)


@pytest.mark.deliberate_break
@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_missing_barrier_of_the_optimizer_is_found(ranks: Ranks, missing: int) -> None:
    with pytest.raises(AssertionError, match=r"^rank [01] has wrong weights"):
        assert_optimized(ranks, missing)
