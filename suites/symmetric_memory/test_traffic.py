"""What NCCL is raced with sends no more than it must: the numbers would be the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pytest_gpuperf import Context, Ranks
from suites.shared.step import Step
from suites.shared.traffic import Messages, messages_of
from suites.symmetric_memory.programs import exchanges, pages, shards_in_turn

RANKS = 3
NUMEL = 30
"""Elements of the weights."""
NBYTES = 60
"""Bytes of activations, and of gradients."""


def of_size(ctx: Context, *, program: Callable[..., Any]) -> Step[Any]:
    """A program that takes sizes, with one."""
    step: Step[Any] = program(ctx, sizes=[NBYTES])(NBYTES)
    return step


# What a rank gives away in a step. Of three stages the last one sends nothing.
CASES: dict[str, tuple[Callable[..., Any], list[Messages]]] = {
    "pages": (partial(pages.by_nccl, pages=8, sent=3, page_bytes=20), [[("send", 3 * 20)]] * RANKS),
    "shards": (
        partial(shards_in_turn.by_nccl, numel=NUMEL),
        [[("reduce_scatter", 4 * NUMEL), ("all_gather", 4 * NUMEL // RANKS)]] * RANKS,
    ),
    "gradients": (partial(of_size, program=exchanges.gradients_by_nccl), [[("reduce_scatter", NBYTES)]] * RANKS),
    "activations": (
        partial(of_size, program=exchanges.handoff_by_nccl),
        [[("send", NBYTES)], [("send", NBYTES)], []],
    ),
}


@pytest.mark.ranks(RANKS, nodes=1)
@pytest.mark.parametrize("name", CASES)
def test_bytes_that_are_sent(ranks: Ranks, name: str) -> None:
    program, expected = CASES[name]
    assert ranks.run(messages_of, program) == expected
