"""Sums of symmetric memory, ``torch.ops.symm_mem``: each call is seen, and its result altered. Runs in rank processes.

Python calls them, they are done in the order of their stream, and return what they came to. Copies between ranks'
buffers are not seen: to torch they are copies like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pytest_gpuperf.features.mutating import c10d_internals, places
from pytest_gpuperf.features.mutating.altering import alter
from pytest_gpuperf.features.mutating.digests import add_tensor
from pytest_gpuperf.features.mutating.faults import Calls, Family, Kind, Site
from pytest_gpuperf.features.mutating.record import Record, is_captured

_SPACE = "symm_mem"
SUMS: Mapping[str, int] = {
    "one_shot_all_reduce": 0,
    "one_shot_all_reduce_out": 0,
    "one_shot_all_reduce_copy": 1,
    "one_shot_all_reduce_copy_out": 1,
    "two_shot_all_reduce_": 0,
    "two_shot_all_reduce_out": 0,
    "multimem_all_reduce_": 0,
    "multimem_one_shot_all_reduce": 0,
    "multimem_one_shot_all_reduce_out": 0,
}
"""Which argument of an operator is its input. The next one says how it reduces; the one after it names the group."""


class SymmetricSums:
    """Sees the sums of one program."""

    def __init__(self, record: Record) -> None:
        """Has seen nothing.

        Args:
            record: takes note of the calls.
        """
        self._record = record
        self._previous: dict[tuple[Any, ...], torch.Tensor] = {}

    @contextmanager
    def install(self) -> Iterator[None]:
        """Sees what is called within, if the program can have symmetric memory."""
        if not c10d_internals.may_have_symmetric_memory():
            yield
            return
        library = torch.library.Library(_SPACE, "IMPL")
        try:
            for name in SUMS:
                if hasattr(torch.ops.symm_mem, name):  # the oldest torch has fewer
                    library.impl(name, self._override(name), "BackendSelect", with_keyset=True)
            yield
        finally:
            c10d_internals.remove(library)

    def _override(self, name: str) -> Callable[..., Any]:
        def override(keyset: Any, *args: Any) -> torch.Tensor:
            def run() -> torch.Tensor:
                result: torch.Tensor = c10d_internals.run_kernel(name, keyset, args, _SPACE)
                return result

            if is_captured() or not c10d_internals.is_of_values(keyset):
                return run()
            given, group = args[SUMS[name]], c10d_internals.group_named(args[SUMS[name] + 2])
            with self._record.lock:
                site = self._see(name, given, group)
                faulty = self._record.is_faulty(site)
            if not faulty:
                return run()
            assert self._record.fault is not None
            with torch.no_grad():
                return self._alter(run, given, group, self._record.fault.kind)

        return override

    def _see(self, name: str, given: torch.Tensor, group: Any) -> Site:
        file, line, _, _ = places.find_place(c10d_internals.find_caller_frame(), name)
        site = Site(file, line, name, places.describe_group(group), 0)
        # It only adds: no operator takes the maximum.
        self._record.see(site, lambda: Calls(Family.REDUCE, 0, group.size(), given.is_floating_point(), is_max=True))
        add_tensor(self._record.find_sent_digest(site), given)
        return site

    def _alter(self, run: Callable[[], torch.Tensor], given: torch.Tensor, group: Any, kind: Kind) -> torch.Tensor:
        self._record.applied += 1
        own = given.clone()
        if kind is Kind.LEFT_OUT:
            return self._run_without_last(run, given, own, group)
        result = run()
        right = result.clone()
        previous = None
        if kind is Kind.STALE:
            key = result.dtype, result.shape
            previous, self._previous[key] = self._previous.get(key), right
        alter(result, kind, group.size(), own.view_as(result), previous)
        self._record.changed += not torch.equal(result, right)
        return result

    def _run_without_last(
        self, run: Callable[[], torch.Tensor], given: torch.Tensor, own: torch.Tensor, group: Any
    ) -> torch.Tensor:
        if group.rank() < group.size() - 1:
            return run()
        given.zero_()
        self._record.changed += bool(own.any())
        result = run()
        if result.data_ptr() != given.data_ptr():
            given.copy_(own)  # the others have read it by now
        return result
