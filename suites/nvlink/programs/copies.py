"""Copies between GPUs that one rank issues by itself: R ranks, rank r on GPU r, every GPU visible to each.

A rank's process copies from its own GPU to another's memory, so that both arms of the ring move the same
bytes between the same GPUs from the same process, without a protocol between processes in either.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pytest_gpuperf import Context, MiB
from suites.shared.bits import fill_with_bits, wrong_bits
from suites.shared.step import Step

CHUNK = 8 * MiB  # of a staged copy: 150 us over PCIe 5, far above the 10 us or so that issuing a copy costs
MIN_SAMPLES = 10

Row = list[list[float] | None]
"""One GPU's bandwidth to each GPU, as samples in B/s; None to itself."""


def fill_sent(tensor: torch.Tensor, *, rank: int, seed: int) -> None:
    """Puts in place what a rank sends: random bits, so that nothing is right by itself or in another place."""
    fill_with_bits(tensor, stream=seed * 64 + rank)


def complaint(tensor: torch.Tensor, *, rank: int, seed: int, gpu: int | None = None) -> str:
    """What is wrong with a copy of what a rank sends, compared where it lies; empty if nothing is.

    Args:
        tensor: the copy.
        rank: who sent it.
        seed: of what was sent.
        gpu: where it belongs, if it is on a GPU; None if that is left open.
    """
    if gpu is not None and tensor.is_cuda and tensor.get_device() != gpu:
        # The bytes alone would be right on any GPU.
        return f"the copy of rank {rank} is on GPU {tensor.get_device()}, expected it on GPU {gpu}"
    wrong = wrong_bits(tensor, stream=seed * 64 + rank)
    return f"{wrong} of {tensor.numel()} elements of the copy of rank {rank} are wrong" if wrong else ""


def following(ctx: Context) -> int:
    """The rank whose GPU this one writes to."""
    return (ctx.rank + 1) % ctx.world_size


def _ends(
    ctx: Context, shape: tuple[int, ...], dtype: torch.dtype, seed: int, source: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's buffer on its own GPU, and room for it on the next rank's."""
    if source is None:
        source = torch.empty(shape, dtype=dtype, device=ctx.device)
        fill_sent(source, rank=ctx.rank, seed=seed)
    there = torch.device(ctx.device.type, following(ctx))
    return source, torch.zeros(shape, dtype=dtype, device=there)


def chunked(*tensors: torch.Tensor, nbytes: int = CHUNK) -> list[tuple[torch.Tensor, ...]]:
    """The tensors' chunks of so many bytes, those of one place together."""
    per_chunk = nbytes // tensors[0].dtype.itemsize
    return list(zip(*(tensor.view(-1).split(per_chunk) for tensor in tensors), strict=True))


def ring_staged(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, source: torch.Tensor | None = None
) -> Step[torch.Tensor]:
    """Every rank's buffer goes to the next rank's GPU through pinned host memory.

    In chunks, on a stream of each GPU: while one chunk is on its way up, the next comes down, and PCIe is
    busy in both directions. The staging buffer holds everything, so that no chunk waits for room.
    """
    source, destination = _ends(ctx, shape, dtype, seed, source)
    staging = torch.empty(source.shape, dtype=dtype, pin_memory=True)
    chunks = chunked(source, staging, destination)

    def step() -> torch.Tensor:
        down = torch.cuda.current_stream(source.device)
        up = torch.cuda.current_stream(destination.device)
        for here, host, there in chunks:
            host.copy_(here, non_blocking=True)
            up.wait_event(down.record_event())
            there.copy_(host, non_blocking=True)
        # The step ends, for whoever times or repeats it, when the last byte has arrived.
        down.wait_event(up.record_event())
        return destination

    return step


def ring_peer(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, source: torch.Tensor | None = None
) -> Step[torch.Tensor]:
    """Every rank's buffer goes to the next rank's GPU over the link between the two."""
    source, destination = _ends(ctx, shape, dtype, seed, source)

    def step() -> torch.Tensor:
        # On this GPU's stream; the other GPU's stream waits for it by itself.
        return destination.copy_(source, non_blocking=True)

    return step


def arrivals(
    ctx: Context, ring: Callable[..., Step[torch.Tensor]], *, numel: int, dtype: torch.dtype, seed: int
) -> str:
    """What is wrong with what two steps of a ring copy leave, the second one with other bytes; empty if nothing is."""
    source = torch.empty(numel, dtype=dtype, device=ctx.device)
    step = ring(ctx, shape=(numel,), dtype=dtype, seed=seed, source=source)
    for sown in (seed, seed + 1):
        fill_sent(source, rank=ctx.rank, seed=sown)
        wrong = complaint(step(), rank=ctx.rank, seed=sown, gpu=following(ctx))
        if wrong:
            return wrong
    return ""


def copies_to_all(ctx: Context, *, numel: int, dtype: torch.dtype, seed: int) -> list[str]:
    """What is wrong with the copies of the rank's buffer on each other GPU."""
    source = torch.empty(numel, dtype=dtype, device=ctx.device)
    fill_sent(source, rank=ctx.rank, seed=seed)
    destinations = {peer: torch.zeros_like(source, device=device) for peer, device in _peers(ctx).items()}
    for destination in destinations.values():
        destination.copy_(source, non_blocking=True)
    told = [complaint(copy, rank=ctx.rank, seed=seed, gpu=peer) for peer, copy in destinations.items()]
    return [wrong for wrong in told if wrong]


def unreachable(ctx: Context) -> list[int]:
    """GPUs that the rank's own cannot write to; the CUDA runtime stages copies to these through the host."""
    return [peer for peer, device in _peers(ctx).items() if not torch.cuda.can_device_access_peer(ctx.device, device)]


def pair_bandwidths(
    ctx: Context, *, sender: int, nbytes: int, samples: int = MIN_SAMPLES, copies: int = 4
) -> Row | None:
    """Bandwidth from the sender's GPU to each other GPU, one pair after the other; None on the other ranks.

    One sender a run, and the others return at once: were they to wait for their turn in an NCCL barrier, its
    polling kernels would take the links' bandwidth (measured: 112 GB/s a pair instead of 386 on 4 H200).

    Args:
        ctx: The rank.
        sender: The rank whose GPU sends.
        nbytes: Size of one copy.
        samples: How often each pair is timed.
        copies: How many copies one sample times, back to back.

    Raises:
        AssertionError: what is timed did not arrive.
    """
    if ctx.rank != sender:
        return None
    source = torch.empty(nbytes, dtype=torch.uint8, device=ctx.device)
    fill_sent(source, rank=sender, seed=nbytes)
    row: Row = [None] * ctx.world_size
    for peer, device in _peers(ctx).items():
        destination = torch.empty_like(source, device=device)
        row[peer] = _bandwidths(source, destination, samples, copies)
        wrong = complaint(destination, rank=sender, seed=nbytes, gpu=peer)
        assert not wrong, wrong
    return row


def _peers(ctx: Context) -> dict[int, torch.device]:
    return {rank: torch.device(ctx.device.type, rank) for rank in range(ctx.world_size) if rank != ctx.rank}


def _bandwidths(source: torch.Tensor, destination: torch.Tensor, samples: int, copies: int) -> list[float]:
    for _ in range(copies):  # the first maps the peer's memory, and an idle link's power state has to rise
        destination.copy_(source, non_blocking=True)
    destination.zero_()  # what is timed has to write it anew
    return [copies * source.nbytes / _seconds(source, destination, copies) for _ in range(samples)]


def _seconds(source: torch.Tensor, destination: torch.Tensor, copies: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    # Not timed: it keeps the GPU busy while the host enqueues the copies that are.
    destination.copy_(source, non_blocking=True)
    start.record()
    for _ in range(copies):
        destination.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3


@dataclass(frozen=True, slots=True)
class Hop:
    """An ordered pair of GPUs and how fast the first writes to the second."""

    sender: int
    receiver: int
    samples: tuple[float, ...]
    """B/s."""

    @property
    def bandwidth(self) -> float:
        """Median, B/s."""
        return statistics.median(self.samples)

    def __str__(self) -> str:
        return f"GPU {self.sender} -> GPU {self.receiver} at {self.bandwidth / 1e9:.1f} GB/s"


def hops(matrix: Sequence[Row]) -> list[Hop]:
    """All ordered pairs of a matrix of bandwidths, slowest first.

    Raises:
        ValueError: a pair was not measured, or a GPU was paired with itself.
    """
    found = []
    for sender, row in enumerate(matrix):
        for receiver, samples in enumerate(row):
            if bool(samples) == (sender == receiver) or len(row) != len(matrix):
                raise ValueError(
                    f"GPU {sender} -> GPU {receiver} has the samples {samples!r} in a matrix of {len(matrix)} "
                    f"GPUs and a row of {len(row)}, expected some for each pair of different GPUs, and only these"
                )
            if samples:
                found.append(Hop(sender, receiver, tuple(samples)))
    return sorted(found, key=lambda hop: hop.bandwidth)


def too_slow(matrix: Sequence[Row], floor: float) -> str:
    """Names the hops below ``floor`` B/s, slowest first; empty if there are none."""
    slow = [hop for hop in hops(matrix) if hop.bandwidth < floor]
    if not slow:
        return ""
    total = len(matrix) * (len(matrix) - 1)
    named = ", ".join(map(str, slow))
    return f"slowest hop: {slow[0]}; {len(slow)} of {total} pairs are below {floor / 1e9:g} GB/s: {named}"
