"""Long sums that are added up in another order are right, and a small fault in them is seen all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.parity.in_process import parity

ROWS = 2048
Named = dict[str, torch.Tensor]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(net: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], pieces: int) -> Named:
    """Gradients of all rows, in as many pieces."""
    for part in draw(1, ROWS, 16).abs().chunk(pieces):
        nn.functional.softplus(call(part)).sum().backward()
    return {name: one.grad for name, one in net.named_parameters() if one.grad is not None}


def norm(pieces: int) -> Named:
    net = nn.LayerNorm(16)
    return gradients(net, net, pieces)


def convolution(pieces: int) -> Named:
    torch.manual_seed(0)
    net = nn.Conv1d(16, 8, 3, padding=1)
    return gradients(net, lambda x: net(x.reshape(-1, 16, 16).transpose(1, 2)), pieces)


def embedding(pieces: int) -> Named:
    torch.manual_seed(0)
    net = nn.Embedding(4, 8)
    return gradients(net, lambda x: net((100 * x[:, 0]).long() % 4) * x[:, :8], pieces)


def product(pieces: int) -> Named:
    x, weight = draw(1, 16, 4 * ROWS).chunk(pieces, 1), draw(2, 4, 4 * ROWS).chunk(pieces, 1)
    return {"y": sum((a @ b.T for a, b in zip(x, weight, strict=True)), torch.zeros(16, 4))}


@pytest.mark.parametrize("sums", [norm, convolution, embedding, product])
def test_another_order_of_additions_is_right(sums: Callable[[int], Named]) -> None:
    report = parity(2).report(lambda: sums(1), lambda ctx: sums(2))
    assert report.ok, report
    assert report.slack < 1e-4
    wrong = parity(2).report(lambda: sums(1), lambda ctx: {name: one * 1.001 for name, one in sums(2).items()})
    assert not wrong.ok
