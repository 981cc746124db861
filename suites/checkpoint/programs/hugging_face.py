"""Hugging Face's sharded safetensors, written by ranks that each hold a part of the model, and read back by ranks.

torch.distributed.checkpoint has a writer and a reader of them. The writer puts files of shards into a folder, and the
first rank joins them to files of whole tensors with an index. What they leave unsaid is checked here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.checkpoint.programs.layouts import split_model
from suites.checkpoint.programs.training import Setup
from suites.shared.llama import their_name
from suites.shared.step import Tensors
from suites.shared.training import Packed

INDEX = "model.safetensors.index.json"
SHARDS = "sharded"
"""The place where torch's writer puts what each rank has, below the checkpoint's folder."""


def files_of_at_most(tensors: Mapping[str, torch.Tensor], nbytes: int) -> dict[str, int]:
    """Which file each tensor goes to, from 1 on: one after the other, into the next file when one is full."""
    files: dict[str, int] = {}
    number, size = 1, 0
    for name, tensor in tensors.items():
        whole = tensor.numel() * tensor.element_size()  # of a DTensor, of all ranks together
        if size and size + whole > nbytes:
            number, size = number + 1, 0
        files[name], size = number, size + whole
    return files


def require_writable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Checks what torch's writer joins: it makes zero of a tensor without dimensions, and stops at whole numbers.

    Raises:
        ValueError: names the tensor.
    """
    for name, tensor in tensors.items():
        if not tensor.dim():
            raise ValueError(f"{name} has no dimension, and torch would write 0 for it: give it the shape [1]")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} is of {tensor.dtype}, and torch joins floating-point shards only: leave it out")


def write(tensors: dict[str, torch.Tensor], folder: Path, *, nbytes: int) -> None:
    """Writes tensors that ranks share, in files of at most so many bytes; all ranks call it.

    Raises:
        ValueError: a tensor cannot be written.
    """
    require_writable(tensors)
    writer = dcp.HuggingFaceStorageWriter(
        str(folder),
        fqn_to_index_mapping=files_of_at_most(tensors, nbytes),
        save_distributed=True,
        enable_consolidation=True,
    )
    dcp.save(tensors, storage_writer=writer)
    if dist.get_rank() == 0:
        shutil.rmtree(folder / SHARDS)
    dist.barrier()


def require_whole(folder: Path) -> None:
    """Checks that each file that the index names is there, with its tensors: torch's reader takes no index.

    Raises:
        FileNotFoundError: there is no index, or no such file; names its tensors.
        ValueError: a file has other tensors.
    """
    from safetensors import safe_open

    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} has no {INDEX}: a checkpoint of several files needs one")
    index: Mapping[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
    for file in sorted(set(index.values())):
        named = {name for name, of in index.items() if of == file}
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{folder / INDEX} names {file} for {', '.join(sorted(named))}, and it is not there: copy it again"
            )
        with safe_open(folder / file, "pt") as opened:
            held = set(opened.keys())
        if held != named:
            other = ", ".join(sorted(held ^ named))
            raise ValueError(f"{folder / file} has other tensors than {INDEX} says: {other}: copy both again")


def read(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Reads into tensors that ranks share; all ranks call it.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the files have other tensors, or tensors of another shape or dtype.
    """
    require_whole(folder)
    reader = dcp.HuggingFaceStorageReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        entry = saved.get(name)
        have = (
            f"{entry.properties.dtype} {list(entry.size)}" if isinstance(entry, dcp.TensorStorageMetadata) else "none"
        )
        want = f"{tensor.dtype} {list(tensor.shape)}"
        if have != want:  # torch casts without a word
            raise ValueError(f"{name} is {have} in {folder}, and {want} in the model: build the model that was saved")
    dcp.load(tensors, storage_reader=reader)


def _theirs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = get_model_state_dict(model)
    return {their_name(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}


def export(
    ctx: Context,
    *,
    job: Setup,
    folder: Path,
    nbytes: int = 0,
    writer: Callable[[dict[str, torch.Tensor], Path], None] | None = None,
) -> None:
    """Writes the job's initial weights, split by its layout, under transformers' names.

    Args:
        ctx: the rank's context.
        job: the model and its layout.
        folder: for the files.
        nbytes: of a file, at most.
        writer: yours, in place of ``write``.
    """
    tensors = _theirs(split_model(ctx, job.config, job.layout, dtype=job.dtype, seed=job.seed))
    if writer is None:
        write(tensors, folder, nbytes=nbytes)
    else:
        writer(tensors, folder)


def imported(ctx: Context, *, job: Setup, folder: Path) -> Packed:
    """Reads into a model of other weights, split by the job's layout; returns its whole parameters by our names."""
    model = split_model(ctx, job.config, job.layout, dtype=job.dtype, seed=job.seed + 1)
    read(_theirs(model), folder)
    found: Tensors = {}
    for name, value in model.named_parameters():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        found[name.removeprefix("module.")] = whole.detach()
    return Packed.of(found)


def export_cut(ctx: Context, *, tensors: Tensors, dims: Mapping[str, int], folder: Path) -> Tensors:
    """Writes tensors that are each cut along a dimension, and returns them gathered.

    Args:
        ctx: the rank's context.
        tensors: whole ones, by name.
        dims: along which dimension each is cut.
        folder: for the files.
    """
    mesh = ctx.mesh((ctx.world_size,))
    cut: dict[str, torch.Tensor] = {
        name: distribute_tensor(value.to(ctx.device), mesh, [Shard(dims[name])], src_data_rank=None)
        for name, value in tensors.items()
    }
    write(cut, folder, nbytes=1)
    return {name: value.full_tensor().cpu() for name, value in cut.items() if isinstance(value, DTensor)}
