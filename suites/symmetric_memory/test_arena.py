"""The pool's own arithmetic, in this process: no ranks take part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.symmetric_memory.programs.arena import ALIGNMENT, Arena, Exhausted


@given(sizes=st.lists(st.integers(-40, 40), max_size=40), capacity=st.sampled_from([0, 48, 256]))
def test_pieces_do_not_overlap_and_come_back_whole(sizes: list[int], capacity: int) -> None:
    arena = Arena(capacity)
    pieces: dict[int, int] = {}
    for size in sizes:
        if size > 0:
            taken = {byte for offset, length in pieces.items() for byte in range(offset, offset + length)}
            try:
                offset = arena.allocate(size)
            except Exhausted:
                # No gap between the pieces has room for it.
                wanted = -(-size // ALIGNMENT) * ALIGNMENT
                assert all(set(range(at, at + wanted)) & taken for at in range(capacity - wanted + 1))
                continue
            assert offset % ALIGNMENT == 0
            assert offset + size <= capacity
            assert not taken & set(range(offset, offset + size))
            pieces[offset] = -(-size // ALIGNMENT) * ALIGNMENT
        elif pieces:
            offset = sorted(pieces)[size % len(pieces)]
            arena.free(offset)
            del pieces[offset]
        assert arena.available == capacity - sum(pieces.values())
    for offset in pieces:
        arena.free(offset)
    if capacity:
        assert arena.allocate(capacity) == 0


def test_an_exhausted_arena_says_what_there_is() -> None:
    arena = Arena(96)
    first, _, third = (arena.allocate(32) for _ in range(3))
    arena.free(first)
    arena.free(third)
    with pytest.raises(Exhausted, match="no room for 48 bytes: 64 of 96 are free, the largest piece has 32"):
        arena.allocate(48)


def test_what_is_not_allocated_cannot_be_freed() -> None:
    arena = Arena(96)
    offset = arena.allocate(32)
    arena.free(offset)
    with pytest.raises(ValueError, match="nothing is allocated at offset 0: it was freed before"):
        arena.free(offset)


def test_an_allocation_has_a_size() -> None:
    with pytest.raises(ValueError, match="at least 1 byte, got 0"):
        Arena(96).allocate(0)
