"""Each barrier of a program is needed: without it, a rank that is slow holds something else.

One of two ranks goes on behind a barrier only when the other has come as far as it can by itself. What a missing
barrier would allow to happen too early has then happened. Steps follow one another: a barrier may protect the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.bits import fill_with_bits, wrong_bits
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.one_slow_rank import with_one_slow_rank
from suites.shared.peer_memory import Allocate
from suites.shared.places import assert_sum
from suites.symmetric_memory.programs import operations as programs
from suites.symmetric_memory.programs import pages, shards_in_turn, sweeping
from suites.symmetric_memory.programs.kv_cache import kv_cache, new_tokens
from suites.symmetric_memory.programs.optimizer_shards import optimizer_shards

pytestmark = pytest.mark.ranks(2, device="cpu")

SHAPE, DTYPE = (4,), torch.float32
STEPS = 2


@pytest.mark.parametrize("program", [programs.put, programs.get, programs.all_reduce_by_gets])
def test_a_slow_rank_holds_what_it_should(ranks: Ranks, program: Callable[..., Any]) -> None:
    summed = program is programs.all_reduce_by_gets
    kwargs: dict[str, Any] = {"shape": SHAPE, "dtype": DTYPE, "seed": 1}
    prepared = partial(program, **kwargs, **({} if summed else {"distance": 1}))
    for rank, results in enumerate(ranks.run(with_one_slow_rank, prepared, STEPS)):
        for step, result in enumerate(results):
            sent = [programs.sent(each, world_size=2, step=step, **kwargs) for each in range(2)]
            expected = sent[0] + sent[1] if summed else sent[1 - rank]
            assert_close(result, expected, f"rank {rank}, step {step}")


def test_a_slow_rank_holds_the_weights_that_it_should(ranks: Ranks) -> None:
    """Two steps of SGD, whose state is split."""
    weights = integers((4,), torch.float64, seed=1)
    gradients = [[2 * integers((4,), torch.float64, seed=2 * step + rank) for rank in range(2)] for step in (1, 2)]
    first, second = (sum(of_ranks) / 2 for of_ranks in gradients)
    expected = weights - first - (first / 2 + second)
    program = partial(optimizer_shards, weights=weights, gradients=gradients, lr=1.0, momentum=0.5)
    for rank, results in enumerate(ranks.run(with_one_slow_rank, program, 1)):
        assert_close(results[0]["weights"], expected, f"rank {rank}, weights")


def test_a_slow_rank_reads_what_was_appended(ranks: Ranks) -> None:
    """A sequence grows, then is freed, and another one takes its page: too early or too late, either reads wrong."""
    rounds = [[("append", 0, 2)], [("append", 0, 3)], [("free", 0, 0), ("append", 1, 1)]]
    shape: dict[str, Any] = {"page_tokens": 3, "heads": 1, "features": 2}
    program = partial(kv_cache, operations=[[each] * 2 for each in rounds], sequences=2, pages=2, **shape)
    for rank, (found,) in enumerate(ranks.run(with_one_slow_rank, program, 1)):
        held = [(0, 0, 2), (0, 2, 3), (1, 0, 1)]
        tokens = [new_tokens(1 - rank, *place, heads=1, features=2) for place in held]
        expected = [{0: tokens[0]}, {0: torch.cat(tokens[:2], dim=1)}, {1: tokens[2]}]
        for number, ((read, _), want) in enumerate(zip(found, expected, strict=True)):
            assert list(read) == list(want), f"rank {rank}, round {number}: sequences {list(read)}"
            for name, sequence in want.items():
                assert_close(read[name], sequence, f"rank {rank}, round {number}, sequence {name}")


def of_one_size(ctx: Context, name: str, *, allocate: Allocate) -> Callable[[], torch.Tensor]:
    """A program that takes sizes, with one; what a step leaves is copied before anybody goes on."""
    step = getattr(sweeping, name)(ctx, sizes=[16], allocate=allocate)(16)
    return lambda: step().clone()


@pytest.mark.parametrize("name", ["sum_by_gets", "ring_by_puts", "ring_by_gets", "ring_by_stores", "ring_by_loads"])
def test_a_slow_rank_has_sums_and_messages(ranks: Ranks, name: str) -> None:
    for rank, results in enumerate(ranks.run(with_one_slow_rank, partial(of_one_size, name=name), STEPS)):
        for result in results:
            if name.startswith("sum"):
                assert_sum(result, ranks=2, steps=1, where=f"rank {rank}")
            else:
                assert not wrong_bits(result, stream=1 - rank), f"rank {rank}"


def of_pages(ctx: Context, way: str, *, allocate: Allocate) -> Callable[[], torch.Tensor]:
    """Two pages of four, copied before anybody goes on."""
    step = getattr(pages, way)(ctx, pages=4, sent=2, page_bytes=64, allocate=allocate)
    return lambda: step().clone()


@pytest.mark.parametrize("way", ["by_puts", "by_gets"])
def test_a_slow_rank_has_pages(ranks: Ranks, way: str) -> None:
    index = pages.places(4, 2)
    for rank, results in enumerate(ranks.run(with_one_slow_rank, partial(of_pages, way=way), STEPS)):
        sent = torch.empty(64, dtype=pages.DTYPE)
        fill_with_bits(sent, stream=1 - rank)
        expected = torch.zeros(4, 16, dtype=pages.DTYPE)
        expected[index] = sent.view(4, 16)[index]
        for result in results:
            assert_close(result, expected, f"rank {rank}")


def of_weights(ctx: Context, *, allocate: Allocate) -> Callable[[], torch.Tensor]:
    """Steps of the optimizer whose weights are copied before anybody goes on."""
    step = shards_in_turn.by_memory(ctx, numel=4, allocate=allocate)
    return lambda: step().clone()


def test_a_slow_rank_has_all_parts_of_the_weights(ranks: Ranks) -> None:
    first, second = zip(*ranks.run(with_one_slow_rank, of_weights, STEPS), strict=True)
    for steps, of_ranks in enumerate((first, second), 1):
        for rank, weights in enumerate(of_ranks):
            shards_in_turn.verify(SimpleNamespace(rank=rank, world_size=2), weights, steps)  # type: ignore[arg-type]
