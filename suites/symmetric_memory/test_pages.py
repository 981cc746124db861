"""The pages that go arrive in their places, and no others."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.symmetric_memory.programs import pages


def move(ctx: Context, way: str, number: int, sent: int, page_bytes: int) -> None:
    """Two steps, compared on the ranks."""
    step = getattr(pages, way)(ctx, pages=number, sent=sent, page_bytes=page_bytes)
    for steps in (1, 2):
        arrived = step()
        ctx.barrier()
        pages.verify(ctx, arrived, steps, sent=sent)
        assert not arrived.any(), "the next step need not write what is there still"
        ctx.barrier()


@pytest.mark.ranks(2, 3, 4, nodes=1)
@pytest.mark.parametrize("way", ["by_nccl", "by_puts", "by_gets"])
def test_pages_arrive(ranks: Ranks, way: str) -> None:
    for number, sent, page_bytes in ((5, 5, 4), (64, 20, 1024), (9, 1, 70_004)):
        ranks.run(functools.partial(move, way=way, number=number, sent=sent, page_bytes=page_bytes))


@pytest.mark.parametrize(("number", "sent"), [(5, 5), (64, 20), (2, 2), (1, 1), (100, 99)])
def test_no_page_goes_twice(number: int, sent: int) -> None:
    order = pages.places(number, sent)
    assert len(order.unique()) == sent
    assert bool((order < number).all())
    assert number < 5 or bool((torch.diff(order).abs() > 1).all())
