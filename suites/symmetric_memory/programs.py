"""What R ranks do through symmetric memory: PyTorch's operations, puts and gets, a KV cache, optimizer shards.

A program's step returns what its rank holds afterwards. PyTorch's operations need GPUs; the programs that only
need buffers and barriers run on CPUs as well, see ``memory``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.programs import rank_input
from suites.data import integers
from suites.symmetric_memory.memory import ALIGNMENT, Arena, PeerMemory, allocate, require_heap

Shape = tuple[int, ...]
Step = Callable[[], torch.Tensor]
Steps = Callable[[], dict[str, torch.Tensor]]
Tokens = dict[int, torch.Tensor]
"""By sequence: 2 x tokens x heads x features, keys first, then values."""


def symmetric(ctx: Context, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor in this rank's symmetric memory; all ranks call it, with tensors of one shape."""
    import torch.distributed._symmetric_memory as symm_mem

    copy = symm_mem.empty(tuple(tensor.shape), dtype=tensor.dtype, device=ctx.device)
    symm_mem.rendezvous(copy, ctx.group)
    return copy.copy_(tensor)


def no_multicast(ctx: Context) -> str | None:
    """Why NVLink multicast cannot be used here; None where it can.

    The environment is asked first: where it forbids multicast, nothing that might touch it is called.
    """
    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1":
        return "NVLink multicast is off: TORCH_SYMM_MEM_DISABLE_MULTICAST=1"
    if os.environ.get("NCCL_NVLS_ENABLE") == "0":
        return "NVLink multicast is off: NCCL_NVLS_ENABLE=0"
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    if not _SymmetricMemory.has_multicast_support(DeviceType.CUDA, ctx.device.index):
        return "these GPUs have no NVLink multicast"
    return None


# torch.ops.symm_mem's sums over all ranks. One-shot: each rank reads all inputs and adds them up by itself. Two-shot:
# each rank adds up its part, then all read the parts of all. With multicast, the switch adds.
ONE_AND_TWO_SHOT = (
    "one_shot_all_reduce",
    "one_shot_all_reduce_out",
    "two_shot_all_reduce_",
    "two_shot_all_reduce_out",
)
MULTICAST = ("multimem_all_reduce_", "multimem_one_shot_all_reduce")


def all_reduce(ctx: Context, *, operation: str, shape: Shape, dtype: torch.dtype, seed: int) -> Step:
    """One of the operations of torch.ops.symm_mem; its name says whether it works in place or fills a tensor."""
    reason = no_multicast(ctx) if operation in MULTICAST else None
    if reason:
        pytest.skip(reason)
    mine = symmetric(ctx, rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed))
    into = [torch.empty_like(mine)] if operation.endswith("_out") else []

    def step() -> torch.Tensor:
        result: torch.Tensor = getattr(torch.ops.symm_mem, operation)(mine, "sum", ctx.group.group_name, *into)
        return result

    return step


def all_reduce_by_gets(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int) -> Step:
    """One-shot by hand: each rank adds up all ranks' buffers."""
    return _sum_of_buffers(ctx, range(ctx.world_size), shape=shape, dtype=dtype, seed=seed)


def all_reduce_without_one_peer(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int) -> Step:
    """Wrong on purpose: the rank after this one is left out."""
    others = [rank for rank in range(ctx.world_size) if rank != (ctx.rank + 1) % ctx.world_size]
    return _sum_of_buffers(ctx, others, shape=shape, dtype=dtype, seed=seed)


def _sum_of_buffers(ctx: Context, ranks: Iterable[int], *, shape: Shape, dtype: torch.dtype, seed: int) -> Step:
    mine = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed)
    memory = allocate(ctx, mine.nbytes)
    memory.buffer(ctx.rank, shape, dtype).copy_(mine)

    def step() -> torch.Tensor:
        memory.barrier()
        out = torch.zeros(shape, dtype=dtype, device=ctx.device)
        for rank in ranks:
            out += memory.buffer(rank, shape, dtype)
        memory.barrier()  # nobody's buffer changes or goes while others read it
        return out

    return step


def all_gather(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, symmetric_input: bool) -> Step:
    """Copies by the copy engines, on a stream of their own, from a symmetric input or from a workspace."""
    import torch.distributed._symmetric_memory

    x = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed)
    x = symmetric(ctx, x) if symmetric_input else x.to(ctx.device)
    return lambda: _waited(torch.ops.symm_mem._low_contention_all_gather(x, ctx.group.group_name))


def reduce_scatter(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, symmetric_input: bool) -> Step:
    """Copies of each rank's part, then the sum; ``shape`` is that of the output."""
    import torch.distributed._symmetric_memory

    x = rank_input(ctx.rank, shape=(ctx.world_size * shape[0], *shape[1:]), dtype=dtype, seed=seed)
    x = symmetric(ctx, x) if symmetric_input else x.to(ctx.device)
    return lambda: _waited(torch.ops.symm_mem._low_contention_reduce_scatter(x, "sum", ctx.group.group_name))


def _waited(result: torch.Tensor) -> torch.Tensor:
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(result)
    return waited


def matmul_inputs(rank: int, *, m: int, k: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's M x K and K x N whole numbers, on the CPU."""
    first = integers((m, k), torch.float32, seed=seed * 64 + 2 * rank)
    return first, integers((k, n), torch.float32, seed=seed * 64 + 2 * rank + 1)


def matmul_then_reduce_scatter(ctx: Context, *, m: int, k: int, n: int, seed: int) -> Step:
    """Each rank multiplies, then its rows of the sum of all products arrive: multiplies first, then reduces."""
    a, b = (factor.to(ctx.device) for factor in matmul_inputs(ctx.rank, m=m, k=k, n=n, seed=seed))
    out = torch.empty(m // ctx.world_size, n, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(out, a @ b)
        return out

    return step


def fused_matmul_reduce_scatter(ctx: Context, *, m: int, k: int, n: int, seed: int) -> Step:
    """The same rows, each rank's multiplied while the ones before are fetched by the rank that they belong to."""
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = (factor.to(ctx.device) for factor in matmul_inputs(ctx.rank, m=m, k=k, n=n, seed=seed))
    # Loads the kernels that the step launches. CUDA loads a kernel when it is first launched and waits for the device
    # meanwhile; within the step, the device could be waiting for a peer whose host is stuck in the same: a deadlock.
    torch.mm(a.chunk(ctx.world_size)[0], b).expand(ctx.world_size, -1, -1).contiguous().sum(dim=0)

    def step() -> torch.Tensor:
        rows: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a, b, "sum", scatter_dim=0, group_name=ctx.group.group_name
        )
        return rows

    return step


def put(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, distance: int, offset: int = 0) -> Step:
    """Each rank writes its tensor into the buffer of the rank ``distance`` further, ``offset`` elements in."""
    mine = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed).to(ctx.device)
    memory = allocate(ctx, mine.nbytes + offset * dtype.itemsize)
    there = memory.buffer((ctx.rank + distance) % ctx.world_size, shape, dtype, offset)
    here = memory.buffer(ctx.rank, shape, dtype, offset)

    def step() -> torch.Tensor:
        memory.barrier()
        there.copy_(mine)
        memory.barrier()
        return here.clone()

    return step


def get(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, distance: int, offset: int = 0) -> Step:
    """Each rank reads the buffer of the rank ``distance`` before it."""
    mine = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed).to(ctx.device)
    memory = allocate(ctx, mine.nbytes + offset * dtype.itemsize)
    memory.buffer(ctx.rank, shape, dtype, offset).copy_(mine)
    there = memory.buffer((ctx.rank - distance) % ctx.world_size, shape, dtype, offset)

    def step() -> torch.Tensor:
        memory.barrier()
        out = there.clone()
        memory.barrier()
        return out

    return step


def put_to_itself(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, distance: int, offset: int = 0) -> Step:
    """Wrong on purpose: no byte leaves the rank."""
    return put(ctx, shape=shape, dtype=dtype, seed=seed, distance=0, offset=offset)


def put_with_signal(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, distance: int) -> Step:
    """As ``put``, but each rank waits for its own sender alone, and none for all."""
    mine = rank_input(ctx.rank, shape=shape, dtype=dtype, seed=seed).to(ctx.device)
    memory = PeerMemory(ctx, mine.nbytes)
    receiver, sender = ((ctx.rank + way) % ctx.world_size for way in (distance, -distance))
    there, here = (memory.buffer(rank, shape, dtype) for rank in (receiver, ctx.rank))

    def step() -> torch.Tensor:
        there.copy_(mine)
        memory.handle.put_signal(receiver, channel=0)
        memory.handle.wait_signal(sender, channel=0)
        arrived = here.clone()
        # The other way round: has been read, may be written again.
        memory.handle.put_signal(sender, channel=1)
        memory.handle.wait_signal(receiver, channel=1)
        return arrived

    return step


class KvCache:
    """A rank's keys and values in pages of symmetric memory, which any rank reads who is told the pages.

    Pages of T tokens, as in PagedAttention (Kwon et al., 2023, section 4): a sequence takes a page when its last one
    is full, so that none holds more than T - 1 tokens' room in vain.
    """

    def __init__(self, ctx: Context, *, pages: int, page_tokens: int, heads: int, features: int) -> None:
        self._rank = ctx.rank
        self._page_tokens = page_tokens
        self._page_shape = (2, page_tokens, heads, features)
        self._page_bytes = 2 * page_tokens * heads * features * torch.float32.itemsize
        self._arena = Arena(pages * self._page_bytes)
        self._memory = allocate(ctx, pages * self._page_bytes)
        self.tables: dict[int, list[int]] = {}
        """The offsets of each sequence's pages, in the order of its tokens."""
        self.lengths: dict[int, int] = {}

    def barrier(self) -> None:
        """What any rank has appended before it, every rank reads after it."""
        self._memory.barrier()

    def append(self, sequence: int, tokens: torch.Tensor) -> None:
        """Tokens at the end of a sequence, which begins with its first ones; all of them, or none.

        Raises:
            Exhausted: too few pages are free.
        """
        table, length = list(self.tables.get(sequence, [])), self.lengths.get(sequence, 0)
        total = length + tokens.shape[1]
        taken: list[int] = []
        try:
            while (len(table) + len(taken)) * self._page_tokens < total:
                taken.append(self._arena.allocate(self._page_bytes))
        except MemoryError:
            for offset in taken:
                self._arena.free(offset)
            raise
        table += taken
        at = length
        while at < total:
            page, slot = divmod(at, self._page_tokens)
            count = min(self._page_tokens - slot, total - at)
            self._page(self._rank, table[page])[:, slot : slot + count] = tokens[:, at - length : at - length + count]
            at += count
        self.tables[sequence], self.lengths[sequence] = table, total

    def free(self, sequence: int) -> None:
        """Gives the sequence's pages back."""
        for offset in self.tables.pop(sequence):
            self._arena.free(offset)
        del self.lengths[sequence]

    def read(self, rank: int, table: list[int], length: int) -> torch.Tensor:
        """A sequence of any rank, from its table and length."""
        pages = [self._page(rank, offset) for offset in table]
        return torch.cat(pages, dim=1)[:, :length].clone()

    def _page(self, rank: int, offset: int) -> torch.Tensor:
        return self._memory.buffer(rank, self._page_shape, torch.float32, offset // torch.float32.itemsize)


Operation = tuple[str, int, int]
"""What is done (append or free), to which sequence, and with how many tokens."""


def new_tokens(rank: int, sequence: int, start: int, count: int, *, heads: int, features: int) -> torch.Tensor:
    """Tokens that no other rank, sequence or place has."""
    seed = (rank * 64 + sequence) * 4096 + start
    return integers((2, count, heads, features), torch.float32, seed=seed, low=-1000, high=1000)


def kv_cache(
    ctx: Context,
    *,
    operations: list[list[Operation]],
    pages: int,
    page_tokens: int,
    heads: int,
    features: int,
    own_tables: bool = False,
) -> Callable[[], tuple[Tokens, list[int]]]:
    """Each rank does its operations, then reads all sequences of the rank after it.

    The step returns them, and which of the rank's own operations found the cache exhausted.

    Args:
        ctx: the rank's context.
        operations: of each rank.
        pages: of each rank's cache.
        page_tokens: how many tokens a page holds.
        heads: of each token.
        features: of each head.
        own_tables: wrong on purpose: looks its peer's pages up in its own tables.
    """
    cache = KvCache(ctx, pages=pages, page_tokens=page_tokens, heads=heads, features=features)

    def step() -> tuple[Tokens, list[int]]:
        refused = []
        for index, (what, sequence, count) in enumerate(operations[ctx.rank]):
            if what == "free":
                cache.free(sequence)
                continue
            start = cache.lengths.get(sequence, 0)
            tokens = new_tokens(ctx.rank, sequence, start, count, heads=heads, features=features)
            try:
                cache.append(sequence, tokens.to(ctx.device))
            except MemoryError:
                refused.append(index)
        told: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(told, (cache.tables, cache.lengths))
        peer = (ctx.rank + 1) % ctx.world_size
        tables, lengths = told[peer]
        if own_tables:
            tables = {sequence: cache.tables.get(sequence, table) for sequence, table in tables.items()}
        cache.barrier()
        read = {sequence: cache.read(peer, tables[sequence], lengths[sequence]) for sequence in tables}
        cache.barrier()
        return read, refused

    return step


def optimizer_shards(
    ctx: Context,
    *,
    weights: torch.Tensor,
    gradients: list[list[torch.Tensor]],
    lr: float,
    momentum: float,
    only_own_gradients: bool = False,
) -> Steps:
    """SGD with momentum whose state is split over the ranks: R ranks, N weights, N/R momenta on each.

    The first stage of ZeRO (Rajbhandari et al., 2020, section 5.1), with gets for its reduce-scatter and puts for its
    all-gather: weights and gradients lie in symmetric memory, a rank reads its part of all gradients, updates its
    part of the weights, and writes that into every rank's weights.

    Args:
        ctx: the rank's context.
        weights: all of them, flat.
        gradients: for each step, each rank's.
        lr: the learning rate.
        momentum: of SGD.
        only_own_gradients: wrong on purpose: a rank's part sees the rank's own gradient alone.
    """
    dtype, numel = weights.dtype, weights.numel()
    nbytes = 2 * (weights.nbytes + ALIGNMENT)
    arena, memory = Arena(nbytes), allocate(ctx, nbytes)
    weights_at, gradients_at = (arena.allocate(weights.nbytes) // dtype.itemsize for _ in range(2))
    start, size = _part(numel, ctx)
    mine = torch.nn.Parameter(weights.to(ctx.device)[start : start + size].clone())
    optimizer = torch.optim.SGD([mine], lr=lr, momentum=momentum)

    def part(rank: int, at: int) -> torch.Tensor:
        return memory.buffer(rank, (size,), dtype, at + start)

    def step() -> dict[str, torch.Tensor]:
        memory.buffer(ctx.rank, (numel,), dtype, weights_at).copy_(weights)
        for of_ranks in gradients:
            memory.buffer(ctx.rank, (numel,), dtype, gradients_at).copy_(of_ranks[ctx.rank])
            memory.barrier()
            readable = [ctx.rank] * ctx.world_size if only_own_gradients else range(ctx.world_size)
            mine.grad = torch.stack([part(rank, gradients_at) for rank in readable]).mean(dim=0)
            optimizer.step()
            for rank in range(ctx.world_size):
                part(rank, weights_at).copy_(mine.detach())
            memory.barrier()
        state = optimizer.state[mine].get("momentum_buffer")
        assert state is not None
        return {"weights": memory.buffer(ctx.rank, (numel,), dtype, weights_at).clone(), "momenta": state.clone()}

    return step


def _part(numel: int, ctx: Context) -> tuple[int, int]:
    """Where this rank's part begins and how long it is: those of torch.chunk, empty ones for the ranks after them."""
    each = -(-numel // ctx.world_size)
    start = min(ctx.rank * each, numel)
    return start, min(each, numel - start)


# torch's nvshmem_put and nvshmem_get name no group: they meet the ranks of this one (nvshmem_extension.cu), the first
# default group, and so would wait for ranks that neither put nor get, had all not met there before.
PUT_GROUP: Any = "0"  # a str; for newer versions of torch of a type of its own


def use_nvshmem(ctx: Context) -> None:
    """Takes NVSHMEM for all symmetric memory of this process, or skips where that is not there.

    A process has one backend from its first allocation on: this needs processes that used no other.
    """
    import torch.distributed._symmetric_memory as symm_mem

    if not symm_mem.is_nvshmem_available():
        pytest.skip("this torch finds no NVSHMEM: neither built in, nor libnvshmem_host.so.3")
    if symm_mem.get_backend(ctx.device) != "NVSHMEM":
        symm_mem.set_backend("NVSHMEM")


def nvshmem(ctx: Context, *, operation: str, numel: int, dtype: torch.dtype, seed: int, root: int = 0) -> Step:
    """One of NVSHMEM's operations, after which the step returns the rank's tensor.

    put: even ranks write to the ranks after them. get: even ranks read from those. put_with_signal: as put, and the
    receiver waits for the signal, nobody for all. broadcast: from ``root``. all_to_all: R parts, one for each rank.
    """
    use_nvshmem(ctx)
    mine = rank_input(ctx.rank, shape=(numel,), dtype=dtype, seed=seed)
    require_heap(3 * mine.nbytes)
    import torch.distributed._symmetric_memory as symm_mem

    if not hasattr(torch.ops.symm_mem, f"nvshmem_{operation}"):
        pytest.skip(f"torch {torch.__version__} has no torch.ops.symm_mem.nvshmem_{operation}")
    tensor, out = symmetric(ctx, mine), symmetric(ctx, torch.zeros_like(mine))
    pad = symm_mem.rendezvous(tensor, ctx.group).get_signal_pad(ctx.rank)
    if operation in ("put", "get"):
        symm_mem.rendezvous(tensor, PUT_GROUP)
    even, following, name = ctx.rank % 2 == 0, (ctx.rank + 1) % ctx.world_size, ctx.group.group_name
    ops = torch.ops.symm_mem

    def step() -> torch.Tensor:
        arrived = None
        dist.barrier()  # all ranks' tensors hold what they should
        match operation:
            case "put" | "get" if even:
                getattr(ops, f"nvshmem_{operation}")(tensor, following)
            case "put_with_signal" if even:
                ops.nvshmem_put_with_signal(tensor, pad, 1, following)
            case "put_with_signal":
                ops.nvshmem_wait_for_signal(pad, 1, ctx.rank - 1)
                arrived = tensor.clone()  # before any barrier: the signal alone must do
                pad.zero_()
            case "broadcast":
                ops.nvshmem_broadcast(tensor, root, name)
            case "all_to_all":
                ops.nvshmem_all_to_all(tensor, out, name)
        # A put has only been issued when the call returns; the stream's end and a barrier complete it everywhere.
        torch.cuda.synchronize()
        dist.barrier()
        if arrived is not None:
            return arrived
        return (out if operation == "all_to_all" else tensor).clone()

    return step
