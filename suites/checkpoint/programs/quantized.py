"""Quantized safetensors, read into shards: torch's reader multiplies each part by the scales of its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import ChunkStorageMetadata
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

from pytest_gpuperf import Context
from suites.checkpoint.programs.sharded_files import read_cut
from suites.shared.step import Tensors


class WholeRows(QuantizedHuggingFaceStorageReader):
    """Reads all numbers of 4 bits: torch 2.13 takes the number of groups in a row for that of its numbers."""

    def read_metadata(self) -> Any:
        """The files' contents, of 4 bits as they are once they are dequantized."""
        metadata = super().read_metadata()
        for name, entry in metadata.state_dict_metadata.items():
            if name.endswith("_blocks"):
                begin = torch.Size([0] * len(entry.size))
                entry.chunks = [ChunkStorageMetadata(offsets=begin, sizes=entry.size)]
                stored = metadata.storage_data.pop(MetadataIndex(name, [0] * (len(entry.size) + 1)))
                metadata.storage_data[MetadataIndex(name, begin)] = stored
        return metadata


def dequantized(
    ctx: Context, *, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], folder: Path, block: int,
    dtype: torch.dtype,
) -> Tensors:  # fmt: skip
    """What all ranks read together, each its shards.

    Args:
        ctx: the rank's context.
        shapes: of the tensors, by name.
        dims: along which dimension each is cut; the others are read whole by all ranks.
        folder: of the files and their index.
        block: rows, and columns, that have a scale in common.
        dtype: of the numbers.
    """
    reader = WholeRows(str(folder), target_dtype=dtype, block_size=block, thread_count=2)
    blank = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    return read_cut(ctx, blank, dims, reader)
