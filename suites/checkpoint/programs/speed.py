"""Saves and loads that are timed, beside a plain write and a plain read of the same bytes on the same disk."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard

from pytest_gpuperf import Context, Resettable
from suites.shared.bits import fill_with_bits, wrong_bits

TENSORS = 8


class Uploads:
    """Asynchronous saves that may still write; both arms of a race have the same one, in each rank."""

    def __init__(self) -> None:
        self._pending: list[Future[Any]] = []

    def add(self, upload: Future[Any]) -> None:
        """Takes note of a save that has begun."""
        self._pending.append(upload)

    def wait(self) -> None:
        """Waits until nothing is written any more."""
        while self._pending:
            self._pending.pop().result()


class Saved(NamedTuple):
    """What a step has saved, and where."""

    folder: Path
    tensors: list[torch.Tensor]
    """What this rank has of it."""
    uploads: Uploads


def own_tensors(ctx: Context, nbytes: int) -> list[torch.Tensor]:
    """So many bytes on the rank, random ones of its own; whole numbers, as many in each tensor."""
    tensors = [torch.empty(nbytes // TENSORS // 8, dtype=torch.int64, device=ctx.device) for _ in range(TENSORS)]
    for number, tensor in enumerate(tensors):
        fill_with_bits(tensor, stream=ctx.rank * TENSORS + number)
    return tensors


def assert_own(ctx: Context, tensors: list[torch.Tensor], what: str) -> None:
    """Checks that tensors have the rank's bits."""
    for number, tensor in enumerate(tensors):
        wrong = wrong_bits(tensor, stream=ctx.rank * TENSORS + number)
        assert not wrong, f"rank {ctx.rank}, {what}, tensor {number}: {wrong} of {tensor.numel()} elements are wrong"


def as_shards(ctx: Context, tensors: list[torch.Tensor]) -> dict[str, DTensor]:
    """The ranks' tensors as shards of whole ones."""
    mesh = ctx.mesh((ctx.world_size,))
    return {f"{n}": DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False) for n, tensor in enumerate(tensors)}


def synchronous(ctx: Context, *, folder: Path, nbytes: int, uploads: Uploads) -> Resettable:
    """A save that returns when all is on the disk."""
    tensors = own_tensors(ctx, nbytes)
    state, target = as_shards(ctx, tensors), folder / "synchronous"

    def step() -> Saved:
        _settle(ctx)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(target))
        return Saved(target, tensors, uploads)

    return Resettable(step, lambda: _clear(ctx, target, uploads))


def asynchronous(ctx: Context, *, folder: Path, nbytes: int, uploads: Uploads) -> Resettable:
    """A save that returns when training may change the tensors; a thread writes their copies."""
    tensors = own_tensors(ctx, nbytes)
    state, target = as_shards(ctx, tensors), folder / "asynchronous"
    group = dist.new_group(backend="gloo")
    # Copies in pinned memory, made once: without a GPU nothing can be pinned.
    writer = dcp.FileSystemWriter(target, cache_staged_state_dict=ctx.device.type == "cuda")

    def step() -> Saved:
        _settle(ctx)
        upload = dcp.async_save(state, checkpoint_id=target, storage_writer=writer, process_group=group)
        assert isinstance(upload, Future)
        uploads.add(upload)
        return Saved(target, tensors, uploads)

    return Resettable(step, lambda: _clear(ctx, target, uploads))


def plain_write(ctx: Context, *, folder: Path, nbytes: int, uploads: Uploads) -> Resettable:
    """Each rank writes its bytes, which the host has, to one file, and waits until they are on the disk."""
    tensors = own_tensors(ctx, nbytes)
    data = [tensor.cpu().numpy().data for tensor in tensors]
    target = folder / "plain"

    def step() -> Saved:
        _settle(ctx)
        target.mkdir(exist_ok=True)
        with (target / f"{ctx.rank}").open("wb", buffering=0) as stream:
            for part in data:
                _write_all(stream.fileno(), memoryview(part).cast("B"))
            os.fsync(stream.fileno())
        return Saved(target, tensors, uploads)

    return Resettable(step, lambda: _clear(ctx, target, uploads))


def saved_tensors(ctx: Context, saved: Saved) -> list[torch.Tensor]:
    """What is on the disk of a step's tensors, once all is written."""
    saved.uploads.wait()
    found = [torch.zeros_like(tensor) for tensor in saved.tensors]
    if saved.folder.name == "plain":
        _read_all(saved.folder / f"{ctx.rank}", found)
    else:
        dcp.load(dict(as_shards(ctx, found)), storage_reader=dcp.FileSystemReader(saved.folder))
    return found


def sharded_load(ctx: Context, *, folder: Path, nbytes: int) -> Resettable:
    """Each rank loads its shards from the disk to its device."""
    target = folder / "sharded"
    dcp.save(as_shards(ctx, own_tensors(ctx, nbytes)), storage_writer=dcp.FileSystemWriter(target))
    tensors = [torch.zeros_like(tensor) for tensor in own_tensors(ctx, nbytes)]
    state = as_shards(ctx, tensors)

    def step() -> list[torch.Tensor]:
        _settle(ctx)
        dcp.load(dict(state), storage_reader=dcp.FileSystemReader(target))
        return tensors

    return Resettable(step, lambda: _forget(ctx, target, tensors))


def plain_read(ctx: Context, *, folder: Path, nbytes: int) -> Resettable:
    """Each rank reads a file of its bytes from the disk, and copies them to its device."""
    target = folder / "plain"
    target.mkdir(exist_ok=True)
    with (target / f"{ctx.rank}").open("wb") as stream:
        for tensor in own_tensors(ctx, nbytes):
            stream.write(tensor.cpu().numpy().data)
        stream.flush()
        os.fsync(stream.fileno())
    tensors = [torch.zeros_like(tensor) for tensor in own_tensors(ctx, nbytes)]

    def step() -> list[torch.Tensor]:
        _settle(ctx)
        _read_all(target / f"{ctx.rank}", tensors)
        return tensors

    return Resettable(step, lambda: _forget(ctx, target, tensors))


def _settle(ctx: Context) -> None:
    """Lets the host wait for its device: a save is the host's work, and all of it has to be in the sample."""
    if ctx.device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def _clear(ctx: Context, folder: Path, uploads: Uploads) -> None:
    """Lets no upload go on beside a sample, and each write files of its own."""
    uploads.wait()
    dist.barrier()
    if ctx.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()


def _forget(ctx: Context, folder: Path, tensors: list[torch.Tensor]) -> None:
    """Drops what the kernel keeps of the files, so that they come from the disk: ``posix_fadvise(2)``."""
    for tensor in tensors:
        tensor.zero_()
    dist.barrier()
    if ctx.rank == 0:
        for path in folder.iterdir():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
    dist.barrier()


def _write_all(handle: int, data: memoryview) -> None:
    while data:  # the kernel takes 2 GiB at a time
        data = data[os.write(handle, data) :]


def _read_all(path: Path, tensors: list[torch.Tensor]) -> None:
    with path.open("rb") as stream:
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype)
            stream.readinto(memoryview(host.numpy().data).cast("B"))
            tensor.copy_(host)
