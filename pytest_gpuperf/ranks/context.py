"""What a program is told about the rank it runs on. Lives in rank processes."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pytest_gpuperf.ranks.spec import Place
from pytest_gpuperf.torch_internals import find_default_store, is_open

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Store
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_gpuperf.hardware.nccl_log import NcclLog
    from pytest_gpuperf.ranks.module_state import ModuleState

Meshes: TypeAlias = "dict[tuple[tuple[int, ...], tuple[str, ...] | None], DeviceMesh]"
"""A test's device meshes, by shape and names."""


@dataclass(frozen=True, slots=True)
class Context:
    """A rank's place in its world, handed to every program as the first argument."""

    rank: int
    """This rank, 0 to world_size - 1."""
    world_size: int
    """Number of ranks in the process group."""
    backend: str
    """``nccl`` or ``gloo``."""
    device: torch.device
    """``cuda:<local_rank>`` with nccl, ``cpu`` with gloo."""
    seed: int
    """Differs by rank and by test, and is the same in every run of the test."""
    _place: Place | None = field(default=None, repr=False)
    """In a cluster; None if all ranks are on one machine."""
    _meshes: Meshes = field(default_factory=dict, repr=False, compare=False)
    """Those that runs of the test with the same process group have made."""
    _control: Store | None = field(default=None, repr=False, compare=False)
    _modules: ModuleState | None = field(default=None, repr=False, compare=False)

    @property
    def control(self) -> Store:
        """The store of the ranks themselves, which no process group uses; its keys go with the test."""
        assert self._control is not None
        return self._control

    def note_modules(self) -> None:
        """Takes the state of the modules imported by now for the one that the test found.

        A harness calls it when it has imported a test's module, and before the test runs.
        """
        if self._modules is not None:
            self._modules.note()

    @property
    def local_rank(self) -> int:
        """The rank's number on its node; the same as ``rank`` without ``--cluster``."""
        return self.rank if self._place is None else self._place.local_rank

    @property
    def node(self) -> int:
        """The number of the rank's node, 0 to num_nodes - 1; 0 without ``--cluster``."""
        return 0 if self._place is None else self._place.node

    @property
    def node_name(self) -> str:
        """The name of the rank's node, as reports have it; the host's name without ``--cluster``."""
        name = "" if self._place is None else self._place.node_name
        return name or platform.node()

    @property
    def num_nodes(self) -> int:
        """Number of nodes that hold the world's ranks; 1 without ``--cluster``."""
        return 1 if self._place is None else self._place.nodes

    @property
    def group(self) -> ProcessGroup:
        """The default process group, over all ranks of the world."""
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise RuntimeError(
                f"rank {self.rank} has no process group: the program destroyed it, or has yet to open one, since "
                "launcher_env=True leaves that to the program"
            )
        return group

    @property
    def store(self) -> Store:
        """The default group's key-value store; each test has one of its own."""
        self.group  # noqa: B018  # tells in its own words that there is none
        return find_default_store()

    def nccl_log(self) -> NcclLog:
        """What NCCL's own log of this rank says so far: transports, algorithms, protocols, channels; empty with gloo.

        Raises:
            RuntimeError: the test's marker has no ``nccl_log=True``, and the run sets no ``NCCL_DEBUG_FILE`` either.
        """
        from pytest_gpuperf.ranks.nccl_debug import read_log

        return read_log()

    def barrier(self) -> None:
        """Waits until every rank of the world has come here."""
        import torch.distributed as dist

        dist.barrier(self.group)

    def mesh(self, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
        """A device mesh over all ranks of the world: ``ctx.mesh((2, 4), ("dp", "tp"))``.

        Runs of a test share it: a mesh has process groups of its own, which cost more than most examples do.

        Args:
            shape: sizes of the mesh's dimensions; their product is the world size.
            names: names of the dimensions.

        Raises:
            ValueError: the shape does not hold just the ranks of the world, or has another number of names.
        """
        from torch.distributed.device_mesh import init_device_mesh

        if math.prod(shape) != self.world_size or any(size < 1 for size in shape):
            raise ValueError(
                f"a mesh of {' x '.join(map(str, shape)) or 'no dimensions'} has {math.prod(shape)} places for "
                f"{self.world_size} ranks: the sizes must multiply to the world size"
            )
        if names is not None and len(names) != len(shape):
            raise ValueError(f"a mesh of {len(shape)} dimensions needs as many names, got {names!r}")
        mesh = self._meshes.get((shape, names))
        if mesh is None or not _has_its_groups(mesh):
            mesh = self._meshes[shape, names] = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        return mesh

    @property
    def meshes(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Names and sizes of the axes of each mesh with names that this test has made with ``mesh``."""
        return tuple(tuple(zip(names, shape, strict=True)) for shape, names in self._meshes if names is not None)

    def generator(self) -> torch.Generator:
        """A new generator on the rank's device, seeded with ``seed``: equal draws at each call."""
        import torch

        generator = torch.Generator(device=self.device)
        generator.manual_seed(self.seed)
        return generator


def _has_its_groups(mesh: DeviceMesh) -> bool:
    # A program may have destroyed one of them, and each torch tells so in its own way.
    try:
        groups = mesh.get_all_groups()
    except RuntimeError:
        return False
    return all(map(is_open, groups))
