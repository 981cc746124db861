"""What arrives, and which of the host's ports the tests take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.network.programs import Port, Route, routed, why_none
from suites.shared.bits import wrong_bits

WORLD = pytest.mark.ranks(2, nodes=1, device="cuda")
"""The marker of a module or class of tests that have a port; each parameter has a closer one, with its variables."""


def arrived(ctx: Context, received: torch.Tensor, steps: int, nbytes: int) -> None:
    """The bits of the other rank; they are wiped, so that a later step must send them again."""
    assert received.numel() == nbytes, f"rank {ctx.rank}: {received.numel()} bytes, not {nbytes}"
    wrong = wrong_bits(received, stream=(ctx.rank - 1) % ctx.world_size)
    assert not wrong, f"rank {ctx.rank}: {wrong} of {nbytes} bytes are wrong"
    received.zero_()


def each_port(found: Sequence[Port]) -> pytest.MarkDecorator:
    """A parameter for each port that NCCL can use; one that is skipped if there is none."""
    values = [
        pytest.param(
            port,
            marks=pytest.mark.ranks(*WORLD.args, **WORLD.kwargs, env=dict(port.way.environ), nccl_log=True),
            id=str(port),
        )
        for port in found
        if port.usable
    ]
    if not values:
        values = [pytest.param(None, marks=pytest.mark.skip(reason=why_none(found)), id="no device")]
    return pytest.mark.parametrize("port", values)


def require(ranks: Ranks, port: Port) -> list[Route]:
    """Return what NCCL's logs say; the test is skipped if NCCL sends otherwise than through this port."""
    routes = ranks.run(routed)
    port.way.require([route.log for route in routes])
    for rank, route in enumerate(routes):
        if route.used != (str(port),):
            used = ", ".join(route.used) or "no port that its log names"
            pytest.skip(f"NCCL uses {used} on rank {rank}, expected {port} alone")
    return routes
