"""However a matrix was cut into pieces, every other cut of it loads, each element at its place."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.pieces import Block, in_pieces
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers

blocks = st.tuples(st.integers(1, 5), st.integers(1, 5))


def expected_blocks(whole: torch.Tensor, block: Block, ranks: int) -> list[torch.Tensor]:
    """What each rank has of a matrix whose blocks are dealt, and -1 elsewhere."""
    number = itertools.count()
    found = [torch.full_like(whole, -1) for _ in range(ranks)]
    for row in range(0, whole.shape[0], block[0]):
        for column in range(0, whole.shape[1], block[1]):
            place = slice(row, row + block[0]), slice(column, column + block[1])
            found[next(number) % ranks][place] = whole[place]
    return found


@pytest.mark.ranks(2)
@pytest.mark.examples(0.1)
@given(shape=st.tuples(st.integers(4, 12), st.integers(4, 12)), of=blocks, to=blocks)
@example(shape=(11, 4), of=(2, 3), to=(3, 2))
@example(shape=(5, 12), of=(5, 2), to=(2, 5))
def test_pieces_of_pieces(ranks: Ranks, shape: tuple[int, int], of: Block, to: Block) -> None:
    whole = integers(shape, torch.float32, seed=1)
    with TemporaryDirectory() as name:
        got = ranks.run(in_pieces, whole=whole, of=of, to=to, folder=Path(name))
    dealt = expected_blocks(whole, to, 2)
    assert_same(
        got,
        [
            {"blocks of blocks": own, "blocks of shards": own, "shards of blocks": whole, "whole": whole}
            for own in dealt
        ],
    )
