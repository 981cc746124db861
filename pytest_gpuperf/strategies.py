"""hypothesis strategies for distributed programs: shapes, dtypes, exact tensors, splits, batches, reductions, worlds.

    from pytest_gpuperf.strategies import tensors, worlds

What is drawn here is drawn once, in the pytest process, and sent to every rank by ``ranks.run``. Loads torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ModuleNotFoundError(
        "pytest_gpuperf.strategies needs hypothesis, which is not installed; the rest of pytest_gpuperf works without "
        "it: install it with python -m pip install hypothesis",
        name=error.name,
    ) from None

if TYPE_CHECKING:
    from pytest_gpuperf.api.ranks import Ranks

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The floating dtypes that gloo and NCCL reduce."""
INTEGERS = (torch.int32, torch.int64)
"""Integer dtypes that both reduce, wide enough for the sums of drawn tensors."""

# Significand bits with the implicit one (IEEE 754; bfloat16 as in torch.finfo): whole numbers up to 2**bits are exact.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.int64: 63, torch.int32: 31}
_BLOCK = 1 << 16  # drawn values; larger tensors repeat them, since drawing 1 GiB on a CPU takes seconds
_HIGH = 15  # the largest magnitude drawn, unless sums ask for less: products of a few stay exact too


def seeds() -> st.SearchStrategy[int]:
    """Seeds of generators, 0 and up."""
    return st.integers(0, 2**16)


def dtypes(*, floating: bool | None = None) -> st.SearchStrategy[torch.dtype]:
    """Dtypes that gloo and NCCL both reduce.

    Args:
        floating: True for floating ones alone, False for integers alone, None for both.
    """
    return st.sampled_from({None: FLOATS + INTEGERS, True: FLOATS, False: INTEGERS}[floating])


def shapes(*, min_dims: int = 1, max_dims: int = 3, max_size: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of 1 and more along each dimension."""
    return st.lists(st.integers(1, max_size), min_size=min_dims, max_size=max_dims).map(tuple)


def exact(dtype: torch.dtype, addends: int = 8) -> int:
    """The largest whole number of which ``addends`` can be added without rounding in this dtype.

    Raises:
        ValueError: there is none: more addends than the dtype counts to.
    """
    largest: int = min(_HIGH, 2 ** _BITS[dtype] // addends)
    if largest < 1:
        raise ValueError(f"{addends} addends cannot be added exactly in {dtype}, which counts to {2 ** _BITS[dtype]}")
    return largest


def whole_numbers(
    shape: Sequence[int], dtype: torch.dtype, *, seed: int, low: int = -_HIGH, high: int = _HIGH
) -> torch.Tensor:
    """Whole numbers between ``low`` and ``high`` in any dtype, on the CPU, the same for the same seed.

    The default is small enough for the sum over 8 ranks to be exact in bfloat16, which holds integers up to 256.
    """
    numel = math.prod(shape)
    generator = torch.Generator().manual_seed(seed)
    block = torch.randint(low, high + 1, (min(numel, _BLOCK),), generator=generator)
    repeats = math.ceil(numel / _BLOCK) if numel else 1
    return block.to(dtype).repeat(repeats)[:numel].reshape(tuple(shape))


def tensors(
    *,
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
    dtype: st.SearchStrategy[torch.dtype] | None = None,
    addends: int = 8,
) -> st.SearchStrategy[torch.Tensor]:
    """Tensors of whole numbers, on the CPU, of which ``addends`` can be added in any order without rounding.

    So a sum over ranks has one right result, whatever the algorithm. Shape and dtype shrink; values come from
    a drawn seed, which keeps examples quick.
    """

    def make(drawn: tuple[tuple[int, ...], torch.dtype, int]) -> torch.Tensor:
        size, kind, seed = drawn
        largest = exact(kind, addends)
        return whole_numbers(size, kind, seed=seed, low=-largest, high=largest)

    # hypothesis warns where a strategy is taken for a truth value.
    shape = shapes() if shape is None else shape
    dtype = dtypes() if dtype is None else dtype
    return st.tuples(shape, dtype, seeds()).map(make)


def splits(total: int, parts: int, *, least: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """How ``total`` things are split over ``parts`` ranks, each of which gets ``least`` or more.

    Shrinks to splits that are even.

    Raises:
        ValueError: there are not enough for all.
    """
    if parts < 1 or least < 0 or total < parts * least:
        raise ValueError(f"{total} cannot be split into {parts} parts of {least} or more")
    even = tuple(total // parts + (part < total % parts) for part in range(parts))
    cuts = st.lists(st.integers(0, total - parts * least), min_size=parts - 1, max_size=parts - 1).map(sorted)
    uneven = cuts.map(
        lambda at: tuple(b - a + least for a, b in zip([0, *at], [*at, total - parts * least], strict=True))
    )
    return st.just(even) | uneven


@dataclass(frozen=True)
class Batches:
    """Padded sequences of tokens, cut over ranks: what makes wrong counts, groups and stale state show."""

    lengths: tuple[tuple[int, ...], ...]
    """Valid tokens of each sequence, by step."""
    rows: tuple[int, ...]
    """How many sequences of a step each rank has."""
    vocabulary: int
    seed: int

    def whole(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tokens and targets of each step, (sequences, longest); targets of padding are -100."""
        generator = torch.Generator().manual_seed(self.seed)
        found = []
        for lengths in self.lengths:
            size = len(lengths), max(max(step) for step in self.lengths)
            tokens, targets = (torch.randint(self.vocabulary, size, generator=generator) for _ in range(2))
            padding = torch.arange(size[1]) >= torch.tensor(lengths)[:, None]
            found.append((tokens.masked_fill(padding, 0), targets.masked_fill(padding, -100)))
        return found

    def share(self, rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The rank's sequences of each step."""
        begin = sum(self.rows[:rank])
        end = begin + self.rows[rank]
        return [(tokens[begin:end], targets[begin:end]) for tokens, targets in self.whole()]


def batches(ranks: int, *, steps: int = 2, vocabulary: int = 32, longest: int = 8) -> st.SearchStrategy[Batches]:
    """Batches with unequal lengths, numbers of sequences that ranks do not divide, and other data on each rank.

    Shrinks to batches that are even, so the shrunk example shows what a fault needs.

    Args:
        ranks: how many share a step; each has a sequence or more.
        steps: how many batches.
        vocabulary: number of tokens.
        longest: the most tokens of a sequence; each has one or more.
    """

    def make(rows: tuple[int, ...]) -> st.SearchStrategy[Batches]:
        length = st.integers(0, longest - 1).map(lambda missing: longest - missing)
        lengths = st.tuples(*[st.tuples(*[length] * sum(rows))] * steps)
        return st.builds(Batches, lengths, st.just(rows), st.just(vocabulary), seeds())

    total = st.integers(ranks, 3 * ranks)
    return total.flatmap(lambda total: splits(total, ranks, least=1)).flatmap(make)


def reduce_ops(*, product: bool = False) -> st.SearchStrategy[str]:
    """Names of reductions that are exact on drawn tensors: a program passes ``getattr(dist.ReduceOp, name)``.

    Args:
        product: PRODUCT too; products of drawn numbers soon leave the exact range of small dtypes.
    """
    return st.sampled_from(("SUM", "MAX", "MIN", *(("PRODUCT",) if product else ())))


def worlds(ranks: Ranks) -> st.SearchStrategy[Ranks]:
    """Worlds of more than half the test's ranks: with markers of 2, 4 and 8, each size from 2 to 8 once."""
    return st.integers(max(ranks.world_size // 2 + 1, min(2, ranks.world_size)), ranks.world_size).map(ranks.resized)
