"""Each tier's steps leave what they should, at every size and again with another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_gpuperf import Context, Ranks
from suites.memory_hierarchy import programs, reference
from suites.shared.delays import copies_lasting
from suites.shared.strategies import worlds

TIERS: dict[str, tuple[Callable[..., Any], reference.Verify, dict[str, Any]]] = {
    "copied": (programs.copied, reference.copied, {}),
    "read": (programs.read, reference.read, {}),
    "written": (programs.written, reference.written, {}),
    "triad": (programs.triad, reference.triad, {}),
    "to_gpu": (programs.to_gpu, reference.copied, {}),
    "to_gpu_pageable": (programs.to_gpu, reference.copied, {"pinned": False}),
    "from_gpu": (programs.from_gpu, reference.copied, {}),
    "from_gpu_pageable": (programs.from_gpu, reference.copied, {"pinned": False}),
    "both_ways": (programs.both_ways, reference.both_ways, {}),
    "to_peer": (programs.to_peer, reference.to_peer, {}),
}

counts = st.lists(st.integers(1, 70_000), min_size=2, max_size=4, unique=True).map(sorted)


def in_turn(ctx: Context, name: str, sizes: list[int]) -> None:
    """Two steps of each size, on the ranks themselves: the largest outputs stay where they are."""
    program, verify, arguments = TIERS[name]
    step_of = program(ctx, sizes=sizes, **arguments)
    for nbytes in sizes:
        step = step_of(nbytes)
        for steps in (1, 2):
            verify(ctx, step(), steps, nbytes)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("name", TIERS)
@given(data=st.data(), elements=counts)
def test_each_tier_holds_what_was_written(ranks: Ranks, data: st.DataObject, name: str, elements: list[int]) -> None:
    sizes = [count * programs.DTYPE.itemsize for count in elements]
    data.draw(worlds(ranks)).run(in_turn, name, sizes)


def wiped(ctx: Context, name: str, sizes: list[int]) -> None:
    """What a size has written is gone once the next one is prepared."""
    program, _, arguments = TIERS[name]
    step_of = program(ctx, sizes=sizes, **arguments)
    for nbytes, following in itertools.pairwise(sizes):
        output = step_of(nbytes)()
        ctx.barrier()  # or a copy to the host would arrive after the host has wiped its memory
        step_of(following)
        ctx.barrier()
        for part in output if isinstance(output, tuple) else (output,):
            assert not part.any(), f"rank {ctx.rank}, {name}: {nbytes} bytes are still there for {following}"


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", sorted(TIERS.keys() - {"read"}))  # the sums of two sizes differ
def test_a_size_finds_nothing_of_the_one_before(ranks: Ranks, name: str) -> None:
    ranks.run(wiped, name, [4 * programs.DTYPE.itemsize * count for count in (1, 3, 70)])


def test_each_piece_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 4 million elements are compared one piece after the other; here more than 8 are."""
    monkeypatch.setattr(reference, "CHUNK", 8)
    context = Context(rank=1, world_size=2, backend="gloo", device=torch.device("cpu"), seed=1)
    right = programs.values(20, rank=1)
    reference.copied(context, right, 1, right.nbytes)
    for place in range(20):
        wrong = right.clone()
        wrong[place] += 1
        with pytest.raises(AssertionError, match=f"^rank 1, from element {place // 8 * 8} on: "):
            reference.copied(context, wrong, 1, wrong.nbytes)


class Touched(TorchDispatchMode):
    """Within its block the bytes are added up that operations read and write; what they overwrite they do not read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = {leaf.data_ptr(): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        self.nbytes += sum(tensor.nbytes for tensor in tensors.values())
        return result


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", programs.OWN)
def test_so_many_bytes_cross_the_bus(ranks: Ranks, name: str) -> None:
    nbytes = 4000
    program, _, _ = TIERS[name]

    def touched(ctx: Context) -> int:
        step, mode = program(ctx, sizes=[nbytes])(nbytes), Touched()
        with mode:
            step()
        return mode.nbytes

    of_sum = programs.DTYPE.itemsize if name == "read" else 0
    assert ranks.run(touched) == [programs.OWN[name] * nbytes + of_sum]


@pytest.mark.ranks(1, 2)
def test_host_copies(ranks: Ranks) -> None:
    for rank, (seconds, arrived) in enumerate(ranks.run(programs.host_copies, nbytes=40_000, samples=3)):
        assert len(seconds) == 3
        assert torch.equal(arrived, reference.value_at(torch.arange(rank, rank + 10_000)))


def seconds_of_copies(ctx: Context, lasting: list[float]) -> list[float]:
    """The figures of copies that take so long, one after another."""
    left = iter(lasting)
    with copies_lasting(left):
        seconds, _ = programs.host_copies(ctx, nbytes=4096, samples=len(lasting) - 1)
    assert next(left, None) is None, "not all copies were made"
    return seconds


@pytest.mark.ranks(1)
def test_of_host_copies_the_first_one_alone_is_not_told(ranks: Ranks) -> None:
    """The first one is slow: the system gives it its pages. All others count, the slow ones too."""
    for lasting in ([1000.0, 1.0, 2.0, 4.0], [1.0, 4.0, 2.0, 1000.0], [8.0, 1.0]):
        assert ranks.run(seconds_of_copies, lasting) == [lasting[1:]]
