"""Safetensors that ranks write by several threads, read as they are, and join together; or that one rank writes whole.

torch's writer puts the place of each shard into its file; its reader finds the parts by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files_on_every_rank
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.step import Tensors

THREADS = 2
"""Fewer than files."""


def cut(ctx: Context, tensors: Tensors, dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Tensors that are each cut over all ranks along a dimension; the others whole."""
    mesh = ctx.mesh((ctx.world_size,))
    return {
        name: distribute_tensor(value.to(ctx.device), mesh, [Shard(dims[name])], src_data_rank=None)
        if name in dims
        else value.to(ctx.device)
        for name, value in tensors.items()
    }


def read_cut(ctx: Context, tensors: Tensors, dims: Mapping[str, int], reader: dcp.HuggingFaceStorageReader) -> Tensors:
    """Reads into tensors of these shapes that are cut so, and returns them gathered."""
    blank = cut(ctx, {name: torch.full_like(value, -1) for name, value in tensors.items()}, dims)
    dcp.load(blank, storage_reader=reader)
    return {name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu() for name, value in blank.items()}


def read_and_joined(
    ctx: Context, *, tensors: Tensors, there: Mapping[str, int], back: Mapping[str, int], files: Mapping[str, int],
    folder: Path, joiners: Sequence[int] | None = None,
) -> Tensors:  # fmt: skip
    """Writes shards, reads them into other shards, and joins them; returns what was read.

    Args:
        ctx: the rank's context.
        tensors: whole ones, by name.
        there: along which dimension each is cut to be written.
        back: along which dimension each is cut to be read.
        files: the number of the file of each.
        folder: the shards come into ``shards`` below it, and the joined files into ``whole``.
        joiners: the ranks that join them, by default all.
    """
    writer = dcp.HuggingFaceStorageWriter(
        str(folder / "shards"), fqn_to_index_mapping=dict(files), thread_count=THREADS, save_distributed=True
    )
    dcp.save(cut(ctx, tensors, there), storage_writer=writer)
    reader = dcp.HuggingFaceStorageReader(str(folder / "shards"), thread_count=THREADS)
    read = read_cut(ctx, tensors, back, reader)
    (folder / "whole").mkdir(exist_ok=True)
    ctx.barrier()
    group = None if joiners is None else dist.new_group(list(joiners))
    if joiners is None or ctx.rank in joiners:
        consolidate_safetensors_files_on_every_rank(
            str(folder / "shards"), str(folder / "whole"), dict(files), num_threads=THREADS, process_group=group
        )
    return read


def joined(
    ctx: Context, *, tensors: Tensors, there: Mapping[str, int], files: Mapping[str, int] | None, folder: Path
) -> None:
    """Writes shards that rank 0 joins when the save ends, by several threads.

    Args:
        ctx: the rank's context.
        tensors: whole ones, by name.
        there: along which dimension each is cut.
        files: the number of the file of each; by default all are in one.
        folder: for the joined files; the shards stay in ``sharded`` below it.
    """
    writer = dcp.HuggingFaceStorageWriter(
        str(folder),
        fqn_to_index_mapping=None if files is None else dict(files),
        save_distributed=True,
        enable_consolidation=True,
        thread_count_consolidation=THREADS,
    )
    dcp.save(cut(ctx, tensors, there), storage_writer=writer)


def whole(
    ctx: Context, *, tensors: Tensors, back: Mapping[str, int], files: Mapping[str, int] | None, folder: Path
) -> Tensors:
    """Rank 0 writes whole tensors, and all ranks read their shards of them; returns what they have read.

    Args:
        ctx: the rank's context.
        tensors: whole ones, by name.
        back: along which dimension each is cut to be read.
        files: the number of the file of each; by default all are in one.
        folder: for the files and their index.
    """
    if ctx.rank == 0:
        writer = dcp.HuggingFaceStorageWriter(
            str(folder), fqn_to_index_mapping=None if files is None else dict(files), thread_count=THREADS
        )
        dcp.save(dict(tensors), storage_writer=writer, no_dist=True)
    ctx.barrier()
    return read_cut(ctx, tensors, back, dcp.HuggingFaceStorageReader(str(folder), thread_count=THREADS))
