"""Operations of DTensors that select, join, move and repeat numbers."""

from __future__ import annotations

import warnings

import torch
from torch.nn import functional

from suites.tensor_parallel.programs.wide_operations import Operations, numbers, whole

SHAPE = (4, 6, 5)
"""The tensor that all operations take has this shape: two ranks share the last dimension unevenly."""

SELECTED: Operations = {
    "one row": lambda x: x.select(0, -1),
    "one column": lambda x: x.select(1, 2),
    "a slice": lambda x: x[1:3],
    "each second column": lambda x: x[:, 1::2],
    "the end": lambda x: x[..., -2:],
    "index_select of rows": lambda x: x.index_select(0, whole(x, [2, 0, 1])),
    "index_select of the last dimension": lambda x: x.index_select(2, whole(x, [4, 0, 1])),
    "rows by index": lambda x: x[whole(x, [2, 0])],
    "columns by index, one twice": lambda x: x[:, whole(x, [5, 0, 0])],
    "two indices": lambda x: x[whole(x, [2, 0]), :, whole(x, [1, 3])],
    "gather of rows": lambda x: x.gather(0, numbers(x, 2, 6, 5) % 4),
    "gather of the last dimension": lambda x: x.gather(2, numbers(x, 4, 6, 2) % 5),
    "embedding": lambda x: functional.embedding(whole(x, [3, 0, 0, 1]), x.detach()[:, 0]),
    "a diagonal": lambda x: x.diagonal(0, 1, 2),
    "lower triangle": lambda x: x.tril(1),
    "upper triangle": lambda x: x.triu(-1),
}


def _largest_by_index(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is in beta on GPUs
        return x.detach().index_reduce(1, whole(x, [2, 2, 0]), numbers(x, 4, 3, 5).double() / 9, "amax")


WRITTEN: Operations = {
    "scatter of a number": lambda x: x.scatter(1, numbers(x, 4, 2, 5) % 2, 3.0),
    "scatter_add": lambda x: x.scatter_add(1, numbers(x, 4, 3, 5) % 6, numbers(x, 4, 3, 5).double()),
    "index_put": lambda x: x.detach().index_put((whole(x, [2, 0]),), numbers(x, 2, 6, 5).double()),
    "index_put that adds": lambda x: x.detach().index_put(
        (whole(x, [2, 2]),), numbers(x, 2, 6, 5).double(), accumulate=True
    ),
    "index_fill": lambda x: x.index_fill(1, whole(x, [2, 0]), 5.0),
    "index_fill with a tensor": lambda x: x.detach().index_fill(0, whole(x, [3, 1]), whole(x, 5.0)),
    "index_reduce": _largest_by_index,
    "index_add": lambda x: x.index_add(1, whole(x, [2, 0]), numbers(x, 4, 2, 5).double()),
    "index_copy": lambda x: x.index_copy(1, whole(x, [2, 0]), numbers(x, 4, 2, 5).double()),
    "select_scatter": lambda x: x.detach().select_scatter(x.detach().select(1, 0) * 2, 1, 3),
    "slice_scatter": lambda x: x.detach().slice_scatter(x.detach()[:, :2] * 2, 1, 1, 3),
    "diagonal_scatter": lambda x: x.detach().diagonal_scatter(x.detach().diagonal(0, 1, 2) * 2, 0, 1, 2),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, -1.0),
    "where": lambda x: torch.where(x > 0, x, x * x),
    "padding": lambda x: functional.pad(x, (1, 2)),
    "padding of columns": lambda x: functional.pad(x, (0, 0, 2, 1), value=3.0),
}

JOINED: Operations = {
    "cat of rows": lambda x: torch.cat([x, x * 2]),
    "cat of columns": lambda x: torch.cat([x, x[:, :1] * 2], 1),
    "cat of the last dimension": lambda x: torch.cat([x * 3, x], -1),
    "stack": lambda x: torch.stack([x, x + 1]),
    "stack within": lambda x: torch.stack([x, x + 1], 2),
    "split": lambda x: x.split(2),
    "split by sizes": lambda x: x.split([1, 4, 1], 1),
    "chunk": lambda x: x.chunk(2, 2),
    "roll": lambda x: x.roll(2, 0),
    "roll of all": lambda x: x.roll(3),
    "roll of two": lambda x: x.roll((1, -1), (1, 2)),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat along a new dimension": lambda x: x.repeat(2, 1, 1, 1),
    "tile": lambda x: x.tile(2),
    "expand": lambda x: x[:1].expand(3, 6, 5) * 2,
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
}

SHAPED: Operations = {
    "flat": lambda x: x.flatten() * 1.5,
    "rows and columns flat": lambda x: x.flatten(0, 1) * 1.5,
    "columns and the last flat": lambda x: x.flatten(1, 2) * 1.5,
    "unflatten": lambda x: x.unflatten(1, (2, 3)) * 1.5,
    "reshape": lambda x: x.reshape(2, 2, 6, 5) * 1.5,
    "transpose": lambda x: x.transpose(0, 2) * 2,
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "movedim": lambda x: x.movedim(0, 1) * 2,
    "unsqueeze and squeeze": lambda x: x.unsqueeze(1).squeeze(1) * 2,
}

OPERATIONS: Operations = SELECTED | WRITTEN | JOINED | SHAPED
