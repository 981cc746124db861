"""What a pool of ranks is made of, and the environment that they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_RECORDED = "2000"  # entries: torch's own default from 2.11 on; 2.10 records nothing unasked
RANK = "{rank}"  # in a value that a test sets: the rank's number
_CURRENT_TEST = "PYTEST_CURRENT_TEST"  # set anew by pytest for each phase of each test: nothing of a rank's


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What makes two tests share a pool."""

    world_size: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs, one for each rank; empty for gloo."""
    environ: tuple[tuple[str, str], ...] = ()
    """Variables that the test sets for its ranks, beside those of the run; ``{rank}`` is the rank's number."""
    cores: tuple[frozenset[int], ...] = ()
    """That each rank's threads run on; empty: where the system puts them."""
    timed: bool = False
    """Whether its ranks measure: their communicators share nothing."""

    @property
    def backend(self) -> str:
        """``nccl`` on GPUs, ``gloo`` without."""
        return "nccl" if self.gpus else "gloo"


def rank_environ(spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the pool's ranks: the controller's, the test's, its own GPUs, loopback for the sockets.

    What the user set stays: the socket interfaces, the flight recorder's size, and that NCCL's groups may share
    channels, are only defaults.
    """
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": _RECORDED}
    if spec.gpus and not spec.timed:
        defaults["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1"  # a group for each test, without a set of channels for each
    inherited = {name: value for name, value in environ.items() if name != _CURRENT_TEST}
    return {**defaults, **inherited, **dict(spec.environ), "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}


def environ_of(rank: int, spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """One rank's environment: what the test sets has the rank's number in it.

    Args:
        rank: its number.
        spec: of the pool.
        environ: of the pool's ranks, by ``rank_environ``.
    """
    own = {name: value.replace(RANK, str(rank)) for name, value in spec.environ if RANK in value}
    return {**environ, **own}
