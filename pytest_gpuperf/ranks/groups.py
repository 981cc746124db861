"""The process group of a rank: opened for a test, closed after it. Runs in rank processes.

With NCCL a fresh communicator costs most of a second: about a third of it connects channels, and most of
the rest tears them down again. So the pool keeps one communicator of its own, which no program sees, and each test's
group is split from it (ncclCommSplit): a communicator of its own that shares the channels. The next test has the same
one if this test left the groups as it found them. A failure costs both, unless all ranks raised before they had met.

NCCL shares only if NCCL_COMM_SPLIT_SHARE_RESOURCES says so, which the pool sets where nothing is timed;
ProcessGroupNCCL.Options' own split_share changed nothing with torch 2.11 and NCCL 2.28.9.
"""

from __future__ import annotations

import gc
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf import torch_internals
from pytest_gpuperf.ranks import malloc
from pytest_gpuperf.ranks.caches import forget_meshes
from pytest_gpuperf.ranks.closing import Closing, shut_down
from pytest_gpuperf.ranks.context import Meshes
from pytest_gpuperf.ranks.messages import OpenGroup, Start
from pytest_gpuperf.ranks.spec import LOOPBACK, Opening

SHARE = "NCCL_COMM_SPLIT_SHARE_RESOURCES"


class Groups:
    """The process groups of one rank."""

    def __init__(self, start: Start, device: torch.device, store: dist.Store | None) -> None:
        self._start = start
        self._device = device
        self._store = store
        self._base: dist.ProcessGroup | None = None
        """What the tests' groups are split from; NCCL only."""
        self._lasting: frozenset[str] = frozenset()
        """The keys of the store that the base needs."""
        self._opened: tuple[object, ...] | None = None
        """The state of the groups when the test's was split from the base."""
        self.meshes: Meshes = {}
        """The meshes of the present default group."""
        self._closing = Closing()
        self._settled = False
        """Whether nothing was run since the memory of a test was given back."""
        self._spared = len(sys.modules)
        """Modules whose objects no collection looks at; the forkserver left out those that it has."""
        self._stale: list[str] = []
        """The keys of groups that no rank has any more once the next one opens."""

    def open(self, request: OpenGroup) -> None:
        """Makes a new default group in place of whatever groups there are; none if programs open their own."""
        self._delete_stale_keys()
        settled, self._settled = self._settled, False
        self._opened = None
        self.meshes.clear()
        forget_meshes(self._device)
        self._find_store(request)
        if self._start.opening is not Opening.GROUP:
            self._drop()
            self._stale = self._list_keys()  # of an earlier run of the same test; no rank has begun the next one
            self._delete_stale_keys()
            return
        if request.fresh or not self._has_base():
            self._drop()
            if not settled or self._device.type == "cuda":
                self._free()
            self._init(request)
            self._connect()
            if not self._can_split():
                return
            self._base = dist.group.WORLD
            self._lasting = frozenset(self._list_keys())
        self._close_all_but_the_base()
        self._split(request)
        self._connect()
        self._opened = self._read_state()

    def count_unchanged(self) -> int | None:
        """How many collectives the test's group has issued; None if the next test would not find what this one found.

        That is so after a program made a group, met others in the store, or set a timeout. It is so without a base as
        well: gloo's groups are fast to open.
        """
        try:
            if self.coalesce or self._read_state() != self._opened:
                return None
            return torch_internals.read_sequence_number(dist.group.WORLD)  # type: ignore[arg-type]
        except Exception:  # what a program made of torch's own state may raise anything
            return None

    def settle(self, *, keep: bool, rest: bool) -> None:
        """Closes what the test opened.

        Args:
            keep: whether the groups stay for the next test: those of a launch, or one that is unchanged on all ranks.
            rest: whether the pool's own communicator goes too; else it stays for the next test.
        """
        self.meshes.clear()
        if not keep:
            self._opened = None  # its references
            forget_meshes(self._device)
            if rest:
                self.close()
            elif self._has_base():
                self._close_all_but_the_base()
            elif self._device.type == "cpu":
                # Now, and not when the next one opens: each group of gloo has a thread that wakes every 10 ms, and
                # ranks of another world size may rest for long.
                self._drop()
        if not keep or self._base is None:
            # The other ranks may still be closing theirs, and none opens a new one yet.
            self._stale = [key for key in self._list_keys() if key not in self._lasting]
        self._free()
        self._spare_imports()
        self._settled = True

    def count(self) -> tuple[int, int]:
        """How many groups were made, as far as torch numbers them, and how many there are."""
        return torch_internals.count_groups(), len(torch_internals.open_groups())

    def read_sequence_numbers(self) -> dict[Any, int] | None:
        """How many operations each group has issued, as its backend counts them; None if that cannot be told."""
        try:
            return {group: torch_internals.read_sequence_number(group) for group in torch_internals.open_groups()}
        except Exception:  # a backend that a program brought, or what it made of torch's own state
            return None

    @property
    def coalesce(self) -> bool:
        """Whether operations are being gathered that are issued together later."""
        return torch_internals.is_coalescing()

    def close(self) -> None:
        """Closes every group and gives their memory back."""
        self._drop()
        self._closing.wait()
        self._free()

    def _drop(self) -> None:
        self._base = self._opened = None
        self._lasting = frozenset()
        if dist.is_initialized():
            groups = torch_internals.open_groups()
            if self._device.type == "cuda":
                shut_down(groups)
            dist.destroy_process_group()
            if self._device.type == "cpu":
                self._closing.let_go(groups)

    @property
    def store(self) -> dist.Store | None:
        """Rank 0's store, once the first group was opened."""
        return self._store

    def _find_store(self, request: OpenGroup) -> None:
        if self._store is None:
            place = self._start.place
            address = LOOPBACK if place is None else place.store
            self._store = dist.TCPStore(address, request.store_port, is_master=False)

    def _init(self, request: OpenGroup) -> None:
        dist.init_process_group(
            self._start.backend,
            store=dist.PrefixStore(request.name, self._store),  # type: ignore[arg-type]
            rank=self._start.rank,
            world_size=self._start.world_size,
            timeout=timedelta(seconds=request.collective_timeout),
            device_id=self._device if self._device.type == "cuda" else None,
        )
        if self._device.type == "cuda":
            # torch knows the ranks of the first NCCL group of a process only; whoever splits a later one, as meshes do,
            # has it read where nothing is (pytorch/pytorch#192109).
            backend = torch_internals.find_default_backend(self._device)
            backend.options.global_ranks_in_group = list(range(self._start.world_size))

    def _can_split(self) -> bool:
        if self._device.type != "cuda":
            return False
        return os.environ.get(SHARE) == "1"

    def _has_base(self) -> bool:
        # A program that called destroy_process_group() took it away.
        return torch_internals.is_open(self._base)

    def _split(self, request: OpenGroup) -> None:
        torch_internals.make_default(self._base)
        group = dist.split_group(
            self._base,
            [list(range(self._start.world_size))],
            timeout=timedelta(seconds=request.collective_timeout),
            group_desc="default_pg",
        )
        assert group is not None
        group.bound_device_id = self._device
        torch_internals.make_default(group)

    def _close_all_but_the_base(self) -> None:
        torch_internals.make_default(self._base)
        groups = [group for group in torch_internals.open_groups() if group is not self._base]
        shut_down(groups)
        for group in groups:
            dist.destroy_process_group(group)

    def _connect(self) -> None:
        # The first collective connects the ranks; here it is no part of anybody's deadline.
        dist.barrier()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _read_state(self) -> tuple[object, ...]:
        timeout = torch_internals.read_default_timeout(self._device)
        return (
            dist.group.WORLD,
            torch_internals.open_groups(),
            torch_internals.count_groups(),
            timeout,
            self._list_keys(),
        )

    def _list_keys(self) -> list[str]:
        # Rank 0 has the store, and tidies up for all.
        return self._store.list_keys() if self._start.rank == 0 and self._store is not None else []

    def _delete_stale_keys(self) -> None:
        for key in self._stale:
            assert self._store is not None
            self._store.delete_key(key)
        self._stale = []

    def _spare_imports(self) -> None:
        """Leaves what was imported out of later collections, in which it takes most of the time.

        DTensor, FSDP and torch._dynamo are 120,000 objects, 65 ms in each collection. Nothing of a test is left now.
        """
        if len(sys.modules) > self._spared:
            self._spared = len(sys.modules)
            gc.freeze()

    def _free(self) -> None:
        gc.collect()
        malloc.trim()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
