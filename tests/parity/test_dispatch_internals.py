"""What the modes over operations rely on in torch."""

from __future__ import annotations

from typing import Any

import torch

from pytest_gpuperf.features.parity.dispatch_internals import OperationsMode, map_nested


class _Names(OperationsMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def operate(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        self.names.append(name)
        return function(*args, **kwargs)


def test_the_mode_sees_operations_of_both_passes() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    with _Names() as seen:
        torch.nn.functional.linear(torch.ones(4, 2), weight).exp().sum().backward()
    assert {"mm", "exp", "sum", "mul"} <= set(seen.names)
    assert seen.names.count("mm") == 2


def test_the_mode_tells_views_from_copies() -> None:
    assert torch.ops.aten.t.default.is_view
    assert not torch.ops.aten.clone.default.is_view


def test_nested_tensors_are_mapped() -> None:
    one = torch.ones(2)
    assert map_nested(torch.Tensor, lambda tensor: tensor.sum().item(), [one, {"a": (one, 3)}]) == [2, {"a": (2, 3)}]
