"""Operations of DTensors two of whose dimensions were made one: a rank's numbers lie apart if the inner one is cut."""

from __future__ import annotations

import torch
from torch.nn import functional

from suites.tensor_parallel.programs.wide_operations import Operations, numbers, whole


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(0, 1)


OPERATIONS: Operations = {
    "sum over rows": lambda x: _rows(x).sum(0),
    "sum of each row": lambda x: _rows(x).sum(1),
    "mean of rows": lambda x: _rows(x).mean(0, keepdim=True),
    "variance of rows": lambda x: _rows(x).var(0),
    "maximum of each row": lambda x: _rows(x).amax(-1),
    "softmax of rows": lambda x: _rows(x).softmax(0),
    "softmax of each row": lambda x: _rows(x).softmax(-1),
    "running sum": lambda x: _rows(x).cumsum(0),
    "largest of rows": lambda x: _rows(x).topk(3, 0).values,
    "transpose": lambda x: _rows(x).t() * 2,
    "sum of the transpose": lambda x: _rows(x).t().sum(-1),
    "permute": lambda x: _rows(x)[None].permute(1, 2, 0) * 2,
    "back": lambda x: _rows(x).unflatten(0, (4, 6)) * 2,
    "back further": lambda x: _rows(x).view(2, 2, 6, 5) * 2,
    "flat": lambda x: _rows(x).flatten() * 2,
    "some rows": lambda x: _rows(x)[3:17:2] * 2,
    "some columns": lambda x: _rows(x)[:, 1:-1] * 2,
    "a row": lambda x: _rows(x)[7] * 2,
    "a column": lambda x: _rows(x)[:, -1] * 2,
    "rows by index": lambda x: _rows(x)[whole(x, [20, 3, 3])],
    "columns by index": lambda x: _rows(x)[:, whole(x, [2, 3, 3])],
    "gather": lambda x: _rows(x).gather(0, numbers(x, 3, 5) % 24),
    "scatter_add": lambda x: _rows(x).scatter_add(1, numbers(x, 24, 2) % 5, numbers(x, 24, 2).double()),
    "index_put": lambda x: _rows(x).detach().index_put((whole(x, [20, 3]),), numbers(x, 2, 5).double()),
    "cat of rows": lambda x: torch.cat([_rows(x), _rows(x) * 2]),
    "cat with a whole one": lambda x: torch.cat([_rows(x), numbers(x, 24, 5).double()], 1),
    "stack": lambda x: torch.stack([_rows(x), _rows(x) * 2], 0),
    "columns alone": lambda x: _rows(x)[:, :4].chunk(4, 1),
    "squeeze": lambda x: _rows(x)[None, :, None].squeeze() * 2,
    "unsqueeze": lambda x: _rows(x).unsqueeze(0).squeeze(0) * 2,
    "expand": lambda x: _rows(x).unsqueeze(0).expand(2, 24, 5) * 2,
    "repeat": lambda x: _rows(x).repeat(1, 2),
    "roll": lambda x: _rows(x).roll(5, 0),
    "times a column": lambda x: _rows(x) * numbers(x, 24, 1).double(),
    "minus the mean": lambda x: _rows(x) - _rows(x).mean(0),
    "where": lambda x: torch.where(_rows(x) > 0, _rows(x), numbers(x, 24, 5).double()),
    "times a matrix": lambda x: _rows(x) @ numbers(x, 5, 2).double(),
    "a matrix times it": lambda x: numbers(x, 2, 24).double() @ _rows(x),
    "products of columns": lambda x: _rows(x).t() @ _rows(x),
    "linear": lambda x: functional.linear(_rows(x), numbers(x, 3, 5).double(), numbers(x, 3).double()),
    "layer norm": lambda x: functional.layer_norm(_rows(x), (5,), 1 + numbers(x, 5).double(), numbers(x, 5).double()),
    "weighed loss": lambda x: functional.nll_loss(
        _rows(x).log_softmax(1), numbers(x, 24) % 5, 1 + numbers(x, 5).double(), reduction="sum", ignore_index=2
    ),
    "loss of each": lambda x: functional.cross_entropy(_rows(x), numbers(x, 24) % 5, reduction="none"),
    "mean loss": lambda x: functional.cross_entropy(_rows(x), numbers(x, 24) % 5),
    "norms of a list": lambda x: torch.stack(torch._foreach_norm([_rows(x), _rows(x) * 2])),
    "columns flat, and their sum": lambda x: x.flatten(1, 2).sum(1),
    "columns flat, and times a matrix": lambda x: x.flatten(1, 2) @ numbers(x, 30, 2).double(),
    "columns flat, and back": lambda x: x.flatten(1, 2).unflatten(1, (6, 5)).sum(1),
    "all flat, and back": lambda x: x.flatten().view(4, 6, 5) * 2,
    "all flat, and softmax": lambda x: x.flatten().softmax(0),
}

SOME = ("sum over rows", "softmax of rows", "sum of the transpose", "back", "a row", "columns by index", "linear")
"""Those that ranks run who share both dimensions, which takes each of them much longer."""
