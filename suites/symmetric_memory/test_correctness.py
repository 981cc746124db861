"""What arrives through symmetric memory is what was sent, and its sums are sums: exactly, on whole numbers.

Those stay far below what their dtype holds exactly: sums over 8 ranks below 2**7 in bfloat16, and products' sums
below 15 * 15 * 64 * 8 < 2**17 in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.collectives.programs import rank_input
from suites.data import integers, once
from suites.strategies import float_dtypes, seeds, shapes, worlds
from suites.symmetric_memory import programs
from suites.symmetric_memory.memory import (
    ALIGNMENT,
    HEAP_RESERVE,
    Arena,
    Exhausted,
    MappedFiles,
    PeerMemory,
    require_heap,
)
from suites.symmetric_memory.programs import Operation, Shape, Step, Steps

pytestmark = pytest.mark.ranks(2)

# symm_mem's kernels add up these dtypes only, and move 4 bytes at least: numbers of elements are even.
summed_dtypes = st.sampled_from([torch.float32, torch.bfloat16])
even_shapes = st.tuples(st.integers(1, 40), st.sampled_from([2, 6, 64]))


def inputs(degree: int, shape: Shape, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    return [rank_input(rank, shape=shape, dtype=dtype, seed=seed) for rank in range(degree)]


def assert_each(got: list[torch.Tensor], expected: list[torch.Tensor], what: str) -> None:
    """Every rank's tensor is the one expected of it, to the last bit."""
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(have, want), (
            f"rank {rank} has a wrong {what}: {have.flatten()[:8]}, not {want.flatten()[:8]}"
        )


def assert_sums(
    ranks: Ranks, program: Callable[..., Step], *, shape: Shape, dtype: torch.dtype, seed: int, **kwargs: str
) -> None:
    results = ranks.run(once, program, shape=shape, dtype=dtype, seed=seed, **kwargs)
    total = torch.stack(inputs(ranks.world_size, shape, dtype, seed)).sum(dim=0)
    assert_each(results, [total] * ranks.world_size, "sum")


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("operation", programs.ONE_AND_TWO_SHOT)
@given(shape=even_shapes, dtype=summed_dtypes, seed=seeds)
def test_all_reduce(ranks: Ranks, operation: str, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    assert_sums(ranks, programs.all_reduce, operation=operation, shape=shape, dtype=dtype, seed=seed)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("operation", programs.MULTICAST)
def test_all_reduce_by_multicast(ranks: Ranks, operation: str) -> None:
    assert_sums(ranks, programs.all_reduce, operation=operation, shape=(64, 64), dtype=torch.bfloat16, seed=1)


@pytest.mark.parametrize(("variable", "value"), [("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0")])
def test_multicast_is_left_alone_where_the_environment_forbids_it(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NCCL_NVLS_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    context = Context(rank=0, world_size=2, backend="nccl", device=torch.device("cuda", 0), seed=1)
    assert programs.no_multicast(context) == f"NVLink multicast is off: {variable}={value}"
    with pytest.raises(pytest.skip.Exception, match=f"multicast is off: {variable}={value}"):
        programs.all_reduce(context, operation=programs.MULTICAST[0], shape=(2,), dtype=torch.float32, seed=1)


@pytest.mark.ranks(2, device="cuda")
@pytest.mark.parametrize("operation", programs.ONE_AND_TWO_SHOT)
def test_a_dtype_that_is_not_summed_is_refused(ranks: Ranks, operation: str) -> None:
    with pytest.raises(RuntimeError, match="not implemented for 'Double'"):
        ranks.run(once, programs.all_reduce, operation=operation, shape=(64,), dtype=torch.float64, seed=1)


@pytest.mark.ranks(2, 3)
def test_a_broken_all_reduce_is_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"^rank 0 has a wrong sum"):
        assert_sums(ranks, programs.all_reduce_without_one_peer, shape=(3, 6), dtype=torch.float32, seed=1)


def my_all_reduce(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int) -> Step:
    """An implementation of a user's own: all gathered, then added up."""
    x = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed).to(ctx.device)

    def step() -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(ctx.world_size)]
        torch.distributed.all_gather(parts, x)
        return torch.stack(parts).sum(dim=0)

    return step


@pytest.mark.ranks(3)
@given(
    data=st.data(),
    program=st.sampled_from([my_all_reduce, programs.all_reduce_by_gets]),
    shape=even_shapes,
    dtype=summed_dtypes,
    seed=seeds,
)
def test_your_own_all_reduce(
    ranks: Ranks, data: st.DataObject, program: Callable[..., Step], shape: Shape, dtype: torch.dtype, seed: int
) -> None:
    assert_sums(data.draw(worlds(ranks)), program, shape=shape, dtype=dtype, seed=seed)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@given(shape=shapes, dtype=float_dtypes, seed=seeds, symmetric=st.booleans())
def test_low_contention_all_gather(ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int, symmetric: bool) -> None:
    results = ranks.run(once, programs.all_gather, shape=shape, dtype=dtype, seed=seed, symmetric_input=symmetric)
    expected = torch.cat(inputs(ranks.world_size, shape, dtype, seed))
    assert_each(results, [expected] * ranks.world_size, "gathered tensor")


@pytest.mark.ranks(2, 4, 8, device="cuda")
@given(shape=shapes, dtype=summed_dtypes, seed=seeds, symmetric=st.booleans())
def test_low_contention_reduce_scatter(
    ranks: Ranks, shape: Shape, dtype: torch.dtype, seed: int, symmetric: bool
) -> None:
    degree = ranks.world_size
    results = ranks.run(once, programs.reduce_scatter, shape=shape, dtype=dtype, seed=seed, symmetric_input=symmetric)
    total = torch.stack(inputs(degree, (degree * shape[0], *shape[1:]), dtype, seed)).sum(dim=0)
    assert_each(results, list(total.chunk(degree)), "part of the sum")


def assert_products(ranks: Ranks, program: Callable[..., Step], *, rows: int, k: int, seed: int) -> None:
    sizes = {"m": rows * ranks.world_size, "k": k, "n": 16}
    results = ranks.run(once, program, seed=seed, **sizes)
    factors = [programs.matmul_inputs(rank, seed=seed, **sizes) for rank in range(ranks.world_size)]
    # One product of all ranks' factors side by side, where the programs add up one product for each rank.
    whole = torch.cat([a for a, _ in factors], dim=1).double() @ torch.cat([b for _, b in factors]).double()
    assert_each([result.double() for result in results], list(whole.chunk(ranks.world_size)), "product")


@given(rows=st.integers(1, 4), k=st.integers(1, 64), seed=seeds)
def test_matmul_then_reduce_scatter(ranks: Ranks, rows: int, k: int, seed: int) -> None:
    assert_products(ranks, programs.matmul_then_reduce_scatter, rows=rows, k=k, seed=seed)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_matmul_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_products(ranks, programs.fused_matmul_reduce_scatter, rows=rows, k=64, seed=rows)


def assert_shifted(
    ranks: Ranks, program: Callable[..., Step], *, shape: Shape, dtype: torch.dtype, seed: int, **kwargs: int
) -> None:
    degree, distance = ranks.world_size, kwargs["distance"]
    results = ranks.run(once, program, shape=shape, dtype=dtype, seed=seed, **kwargs)
    sent = inputs(degree, shape, dtype, seed)
    assert_each(results, [sent[(rank - distance) % degree] for rank in range(degree)], "tensor")


@pytest.mark.ranks(3)
@given(
    data=st.data(),
    program=st.sampled_from([programs.put, programs.get]),
    shape=shapes,
    dtype=float_dtypes,
    seed=seeds,
    offset=st.integers(0, 8),
)
def test_put_and_get(
    ranks: Ranks,
    data: st.DataObject,
    program: Callable[..., Step],
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    offset: int,
) -> None:
    world = data.draw(worlds(ranks))
    distance = data.draw(st.integers(1, world.world_size - 1))
    # get_buffer gives views that begin at whole 16 bytes: what the vectors of kernels need.
    aligned = offset * ALIGNMENT // dtype.itemsize
    assert_shifted(world, program, shape=shape, dtype=dtype, seed=seed, distance=distance, offset=aligned)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@given(data=st.data(), shape=shapes, dtype=float_dtypes, seed=seeds)
def test_put_with_signal(ranks: Ranks, data: st.DataObject, shape: Shape, dtype: torch.dtype, seed: int) -> None:
    distance = data.draw(st.integers(1, ranks.world_size - 1))
    assert_shifted(ranks, programs.put_with_signal, shape=shape, dtype=dtype, seed=seed, distance=distance)


@pytest.mark.ranks(4, 8, device="cuda")
@pytest.mark.parametrize("program", [programs.put, programs.get])
def test_put_and_get_on_many_gpus(ranks: Ranks, program: Callable[..., Step]) -> None:
    for distance in range(1, ranks.world_size):
        assert_shifted(ranks, program, shape=(1 << 10,), dtype=torch.bfloat16, seed=distance, distance=distance)


def test_a_put_that_does_not_leave_its_rank_is_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"^rank 0 has a wrong tensor"):
        assert_shifted(ranks, programs.put_to_itself, shape=(4,), dtype=torch.float32, seed=1, distance=1)


@pytest.mark.ranks(2, device="cpu")
def test_a_view_beyond_the_end_is_refused(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        MappedFiles(64).buffer(0, (16,), torch.float32, offset=1)

    with pytest.raises(ValueError, match="a buffer of 64 bytes has no 64 bytes from byte 4 on"):
        ranks.run(program)


@pytest.mark.ranks(2, device="cuda")
def test_a_view_beyond_the_end_is_refused_on_gpus(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        # Far beyond: allocations are rounded up to whole pages.
        PeerMemory(ctx, 64).buffer(0, (1 << 30,), torch.float32)

    with pytest.raises(RuntimeError, match="exceeds the allocated size"):
        ranks.run(program)


class TestArena:
    """The pool's own arithmetic, in this process: no ranks take part."""

    @given(sizes=st.lists(st.integers(-40, 40), max_size=40), capacity=st.sampled_from([0, 48, 256]))
    def test_pieces_do_not_overlap_and_come_back_whole(self, sizes: list[int], capacity: int) -> None:
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

    def test_an_exhausted_arena_says_what_there_is(self) -> None:
        arena = Arena(96)
        first, _, third = (arena.allocate(32) for _ in range(3))
        arena.free(first)
        arena.free(third)
        with pytest.raises(Exhausted, match="no room for 48 bytes: 64 of 96 are free, the largest piece has 32"):
            arena.allocate(48)

    def test_what_is_not_allocated_cannot_be_freed(self) -> None:
        arena = Arena(96)
        offset = arena.allocate(32)
        arena.free(offset)
        with pytest.raises(ValueError, match="nothing is allocated at offset 0: it was freed before"):
            arena.free(offset)

    def test_an_allocation_has_a_size(self) -> None:
        with pytest.raises(ValueError, match="at least 1 byte, got 0"):
            Arena(96).allocate(0)


WHAT = ("append", "append", "free")
CACHE = {"pages": 6, "page_tokens": 3, "heads": 2, "features": 2}


# Appends, and frees of what may not be there yet: ``after`` leaves those out. An operation is one drawn number:
# lists of tuples take hypothesis longer to draw than the ranks to run.
cache_operations = st.lists(
    st.integers(0, 3 * 4 * 7 - 1).map(lambda n: (WHAT[n % 3], n // 3 % 4, n // 12 + 1)), max_size=8
)


def after(rank: int, operations: list[Operation]) -> tuple[list[Operation], dict[int, torch.Tensor], list[int]]:
    """Operations without frees of nothing, and the cache that they leave: its sequences, and what it refused.

    By another way than the cache: a list of tokens for each sequence, and a count of the pages that they need.
    """
    kept: list[Operation] = []
    sequences: dict[int, list[torch.Tensor]] = {}
    refused: list[int] = []

    def pages(held: dict[int, int]) -> int:
        return sum(-(-tokens // CACHE["page_tokens"]) for tokens in held.values())

    for what, sequence, count in operations:
        if what == "free":
            if sequence in sequences:
                del sequences[sequence]
                kept.append((what, sequence, count))
            continue
        held = {name: sum(part.shape[1] for part in parts) for name, parts in sequences.items()}
        start = held.get(sequence, 0)
        if pages(held | {sequence: start + count}) > CACHE["pages"]:
            refused.append(len(kept))
        else:
            tokens = programs.new_tokens(rank, sequence, start, count, heads=CACHE["heads"], features=CACHE["features"])
            sequences.setdefault(sequence, []).append(tokens)
        kept.append((what, sequence, count))
    return kept, {name: torch.cat(parts, dim=1) for name, parts in sequences.items()}, refused


def assert_cached(ranks: Ranks, operations: Sequence[list[Operation]], **kwargs: bool) -> None:
    models = [after(rank, each) for rank, each in enumerate(operations)]
    results = ranks.run(once, programs.kv_cache, operations=[kept for kept, _, _ in models], **CACHE, **kwargs)
    for rank, (read, refused) in enumerate(results):
        peer = (rank + 1) % ranks.world_size
        sequences = models[peer][1]
        assert list(read) == list(sequences)
        for name, tokens in sequences.items():
            assert torch.equal(read[name], tokens), f"rank {rank} read a wrong sequence {name} of rank {peer}"
        assert refused == models[rank][2]


@given(operations=st.tuples(cache_operations, cache_operations))
def test_kv_cache(ranks: Ranks, operations: tuple[list[Operation], list[Operation]]) -> None:
    assert_cached(ranks, operations)


def test_a_cache_that_is_read_by_the_wrong_table_is_found(ranks: Ranks) -> None:
    mine: list[Operation] = [("append", 0, 3), ("append", 1, 3)]
    theirs: list[Operation] = [("append", 1, 3), ("append", 0, 3)]
    with pytest.raises(AssertionError, match=r"^rank 0 read a wrong sequence 1 of rank 1"):
        assert_cached(ranks, [mine, theirs], own_tables=True)


LR, MOMENTUM = 2**-3, 2**-1


def assert_optimized(
    ranks: Ranks, *, numel: int, steps: int, seed: int, program: Callable[..., Steps], **kwargs: bool
) -> None:
    """The same weights as one optimizer's that sees the mean of all gradients.

    Exactly: weights and gradients are whole numbers, the gradients multiples of R, learning rate and momentum powers
    of 2. After 3 steps no bit is worth less than 2**-3 * 2**-2, and none more than 2**9.
    """
    degree = ranks.world_size
    weights = integers((numel,), torch.float64, seed=seed)
    gradients = [
        [degree * integers((numel,), torch.float64, seed=seed * 64 + 8 * step + rank + 1) for rank in range(degree)]
        for step in range(steps)
    ]
    whole, momenta = weights.clone(), torch.zeros_like(weights)
    for of_ranks in gradients:  # torch.optim.SGD's definition of momentum, without dampening
        momenta = MOMENTUM * momenta + sum(of_ranks) / degree
        whole = whole - LR * momenta
    results = ranks.run(once, program, weights=weights, gradients=gradients, lr=LR, momentum=MOMENTUM, **kwargs)
    assert_each([result["weights"] for result in results], [whole] * degree, "weight")
    assert torch.equal(torch.cat([result["momenta"] for result in results]), momenta)
    # What the split is for: no rank keeps more than its R-th of the momenta, rounded up.
    assert max(len(result["momenta"]) for result in results) == -(-numel // degree)


@given(numel=st.integers(1, 20), steps=st.integers(1, 3), seed=seeds)
def test_optimizer_shards(ranks: Ranks, numel: int, steps: int, seed: int) -> None:
    assert_optimized(ranks, numel=numel, steps=steps, seed=seed, program=programs.optimizer_shards)


@pytest.mark.ranks(4, 8, device="cuda")
def test_optimizer_shards_on_many_gpus(ranks: Ranks) -> None:
    assert_optimized(ranks, numel=1001, steps=3, seed=1, program=programs.optimizer_shards)


def test_shards_that_see_only_their_own_gradient_are_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"^rank 0 has a wrong weight"):
        assert_optimized(ranks, numel=8, steps=1, seed=1, program=programs.optimizer_shards, only_own_gradients=True)


@pytest.fixture
def nvshmem(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Ranks that have used no symmetric memory yet: an environment of their own gives them processes of their own."""
    monkeypatch.setenv("TORCH_SYMMMEM", "NVSHMEM")
    monkeypatch.setenv("NVSHMEM_REMOTE_TRANSPORT", "none")  # one host: it need not look for network cards
    return ranks


def nvshmem_expected(operation: str, sent: list[torch.Tensor], root: int) -> list[torch.Tensor]:
    degree = len(sent)
    match operation:
        case "put" | "put_with_signal":
            return [sent[rank - rank % 2] for rank in range(degree)]
        case "get":
            return [sent[rank - rank % 2 + 1] for rank in range(degree)]
        case "broadcast":
            return [sent[root]] * degree
        case _:
            return [torch.cat([tensor.chunk(degree)[rank] for tensor in sent]) for rank in range(degree)]


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("operation", ["put", "get", "put_with_signal", "broadcast", "all_to_all"])
def test_nvshmem(nvshmem: Ranks, operation: str) -> None:
    degree = nvshmem.world_size
    for seed, dtype in enumerate((torch.float32, torch.bfloat16)):
        root = seed % degree
        results = nvshmem.run(
            once, programs.nvshmem, operation=operation, numel=64 * degree, dtype=dtype, seed=seed, root=root
        )
        sent = inputs(degree, (64 * degree,), dtype, seed)
        assert_each(results, nvshmem_expected(operation, sent, root), operation)


@pytest.mark.ranks(2, device="cuda")
def test_a_small_nvshmem_heap_is_named(nvshmem: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "16M")
    with pytest.raises(MemoryError, match="heap of 16777216 bytes: set NVSHMEM_SYMMETRIC_SIZE=49M or more"):
        nvshmem.run(once, programs.nvshmem, operation="put", numel=4 << 20, dtype=torch.float32, seed=1)


@pytest.mark.parametrize(
    ("declared", "nbytes"), [("512M", 512 << 20), ("1.5g", 3 << 29), (str(1 << 20), 1 << 20), (None, 1 << 30)]
)
def test_a_heap_holds_what_it_declares(declared: str | None, nbytes: int) -> None:
    environ = {} if declared is None else {"NVSHMEM_SYMMETRIC_SIZE": declared}
    require_heap(nbytes - HEAP_RESERVE, environ)
    with pytest.raises(MemoryError, match=f"do not fit into NVSHMEM's heap of {nbytes} bytes: set") as error:
        require_heap(nbytes - HEAP_RESERVE + 1, environ)
    cure = str(error.value).partition("NVSHMEM_SYMMETRIC_SIZE=")[2].split()[0]
    require_heap(nbytes - HEAP_RESERVE + 1, {"NVSHMEM_SYMMETRIC_SIZE": cure})


@pytest.mark.parametrize("declared", ["", "M", "lots", "infM"])
def test_a_heap_size_that_is_none_is_refused(declared: str) -> None:
    with pytest.raises(ValueError, match=f"NVSHMEM_SYMMETRIC_SIZE must be a size like 512M or 2G, got '{declared}'"):
        require_heap(1, {"NVSHMEM_SYMMETRIC_SIZE": declared})
