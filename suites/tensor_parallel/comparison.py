"""What ranks hold, beside what the whole layer gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from suites.tensor_parallel.inputs import EXACT
from suites.tensor_parallel.sharding import Parameters, shard

Results = list[dict[str, torch.Tensor]]


def linear(leaves: dict[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    """The formula of the layer whose parameters have this prefix."""
    return functional.linear(leaves["input"], leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"))


def reference(
    layer: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    parameters: Parameters,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The whole layer's output and gradients, by another way than the programs': no module, no ``.grad``."""
    leaves = {name: value.clone().requires_grad_() for name, value in {"input": x, **parameters}.items()}
    output = layer(leaves)
    gradients = torch.autograd.grad(output, list(leaves.values()), grad)
    return {"output": output} | {f"{name} gradient": g for name, g in zip(leaves, gradients, strict=True)}


def per_rank(whole: dict[str, torch.Tensor], degree: int, dims: dict[str, int]) -> Results:
    """What each rank should hold: its shard along the dimension given for a name, and all of the others."""
    results: Results = [{} for _ in range(degree)]
    for name, tensor in whole.items():
        parts = shard(tensor, degree, dims[name]) if name in dims else [tensor] * degree
        for result, part in zip(results, parts, strict=True):
            result[name] = part
    return results


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    """One tensor is as expected."""
    # torch.testing takes a millisecond even where all is well: it is asked where there is something to tell.
    if got.shape != expected.shape or not torch.allclose(got, expected, rtol=0, atol=atol):
        torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")


def assert_same(got: Results, expected: Results, atol: float = EXACT) -> None:
    """Every rank has what is expected of it, and nothing else."""
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert list(have) == list(want), f"rank {rank} has {list(have)}, not {list(want)}"
        for name, tensor in want.items():
            assert_close(have[name], tensor, atol, f"rank {rank}, {name}")
