"""What a pool of ranks is made of, and the environment that they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_RECORDED = "2000"  # entries: torch's own default from 2.11 on; 2.10 records nothing unasked
RANK = "{rank}"  # in a value that a test sets: the rank's number
GPU = "{gpu}"  # in a value that a test sets: the UUID of the rank's GPU, empty without GPUs
VISIBLE = "CUDA_VISIBLE_DEVICES"
_CURRENT_TEST = "PYTEST_CURRENT_TEST"  # set anew by pytest for each phase of each test: nothing of a rank's

ISOLATIONS = ("group", "file", "process")
"""Who shares a test's ranks, by the names that users write: any test, those of its file, or nobody."""


class Opening(Enum):
    """What ranks have when a program begins."""

    GROUP = "group"
    """A default process group, opened for the test."""
    NOTHING = "nothing"
    """No process group: the program opens its own."""
    LAUNCHER = "launcher"
    """No process group, and the environment variables that torchrun sets, from which the program opens its own."""


def launcher_environ(rank: int, world_size: int) -> dict[str, str]:
    """The variables that torchrun sets on one host, except ``MASTER_PORT``, which rank 0's store provides later.

    ``TORCHELASTIC_USE_AGENT_STORE`` makes ``init_method="env://"`` a client of that store, so that nobody binds a port.

    Args:
        rank: the rank's number.
        world_size: how many ranks there are, all on this host.
    """
    of_rank, of_world = str(rank), str(world_size)
    return {
        "RANK": of_rank,
        "LOCAL_RANK": of_rank,
        "ROLE_RANK": of_rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": of_world,
        "LOCAL_WORLD_SIZE": of_world,
        "ROLE_WORLD_SIZE": of_world,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "gpuperf",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


MASTER_PORT = "MASTER_PORT"
LAUNCHER_VARIABLES = frozenset({*launcher_environ(0, 1), MASTER_PORT})
"""The names of all variables that ``Opening.LAUNCHER`` sets."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What makes two tests share a pool."""

    world_size: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs, one for each rank; empty for gloo."""
    environ: tuple[tuple[str, str], ...] = ()
    """Variables that the test sets for its ranks; ``{rank}`` is the rank's number, ``{gpu}`` its GPU."""
    cores: tuple[frozenset[int], ...] = ()
    """That each rank's threads run on; empty: where the system puts them."""
    timed: bool = False
    """Whether its ranks measure: their communicators share nothing."""
    opening: Opening = Opening.GROUP
    owner: str = ""
    """The test file whose tests alone use the pool; empty if any test may."""

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
    return {**defaults, **inherited, **dict(spec.environ), VISIBLE: ",".join(spec.gpus)}


def environ_of(rank: int, spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """One rank's environment: what the test sets has the rank's number and GPU in it.

    Args:
        rank: its number.
        spec: of the pool.
        environ: of the pool's ranks, by ``rank_environ``.
    """
    gpu = spec.gpus[rank] if spec.gpus else ""
    own = {
        name: value.replace(RANK, str(rank)).replace(GPU, gpu)
        for name, value in spec.environ
        if RANK in value or GPU in value
    }
    launcher = launcher_environ(rank, spec.world_size) if spec.opening is Opening.LAUNCHER else {}
    return {**environ, **launcher, **own}
