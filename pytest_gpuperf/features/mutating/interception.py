"""Every c10d operation of a program is seen, and the calls of one site are altered. Runs in rank processes.

The dispatcher's key BackendSelect lies below autograd and above the backends, and every caller of a process group comes
by: Python, DDP's and FSDP's C++, functional and compiled collectives, pipelining's sends. Nothing stays once the
library is gone: the kernels that note collectives for reports of hangs are called by ours, and come back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf.features.mutating import c10d_internals, places
from pytest_gpuperf.features.mutating.altering import KEEPS_OWN, alter, compute_own_result, swap
from pytest_gpuperf.features.mutating.digests import add_tensor
from pytest_gpuperf.features.mutating.faults import Calls, Family, Kind, Site
from pytest_gpuperf.features.mutating.operators import OPERATORS, REDUCTION, Operator, replace_inputs
from pytest_gpuperf.features.mutating.peers import Peers, find_other_ranks
from pytest_gpuperf.features.mutating.record import Record, is_captured

_ROOTED = (Family.BROADCAST, Family.SCATTER)  # one rank's tensors reach others
_OBJECTS = "object"  # in the names of what sends pickled objects


class Interception:
    """Sees the operations of one program."""

    def __init__(self, record: Record, of_objects: Callable[[], bool], trial: str) -> None:
        """Has seen nothing.

        Args:
            record: takes note of the calls.
            of_objects: whether an operator is called to exchange objects, which are seen by themselves.
            trial: names the program among all that the ranks run.
        """
        self.there: dict[str, Callable[..., Any] | None] = {}
        """The kernels that operators had before."""
        self._record = record
        self._of_objects = of_objects
        self._trial = trial
        self._peers: Peers | None = None
        self._sizes: dict[Site, list[int]] = {}
        self._previous: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        """What the call before came to, by types and shapes: a line may send one tensor after another."""
        self._held: list[Any] = []
        self._asking = threading.local()

    def install(self) -> AbstractContextManager[None]:
        """Sees what is called within."""
        return _install(self)

    def call(self, name: str, keyset: Any, args: tuple[Any, ...]) -> Any:
        """Makes one call of an operator, altered if it belongs to the fault's site."""
        if (told := getattr(self._asking, "told", None)) is not None:
            told.append(args[2])
            return args[0], c10d_internals.make_done(args[0])
        operator = OPERATORS[name]
        if is_captured() or not c10d_internals.is_of_values(keyset) or self._of_objects():
            return self._run(name, keyset, args)
        with self._record.lock:
            site = self._see(operator, args)
            faulty = self._record.is_faulty(site)
        if not faulty:
            return self._run(name, keyset, args)
        assert self._record.fault is not None
        with torch.no_grad():
            return self._alter(name, keyset, args, self._record.fault.kind)

    def _run(self, name: str, keyset: Any, args: Sequence[Any]) -> Any:
        """Makes a call as if nobody saw it: by the kernel that was there before, or the backend's own."""
        there = self.there.get(name)
        return c10d_internals.run_kernel(name, keyset, args) if there is None else there(keyset, *args)

    def _see(self, operator: Operator, args: Sequence[Any]) -> Site:
        group = c10d_internals.unbox_group(args[operator.group])
        frame = c10d_internals.find_caller_frame()
        file, line, operation, by_torch = places.find_place(frame, operator.name)
        site = Site(file, line, operation, places.describe_group(group), 0)
        inputs = operator.inputs(args)
        if by_torch:
            sizes, size = self._sizes.setdefault(site, []), sum(tensor.numel() for tensor in inputs)
            if size not in sizes:
                sizes.append(size)
            site = Site(file, line, operation, site.over, sizes.index(size) + 1)

        def make() -> Calls:
            family = Family.OTHER if _OBJECTS in operation else operator.family
            is_max = family is Family.REDUCE and places.is_maximum(frame)
            others = find_other_ranks(group)
            fits = family is Family.REDUCE or (family is Family.GATHER and len(others) == group.size())
            return Calls(family, 0, group.size(), False, is_max, fits and bool(others))

        calls = self._record.see(site, make)
        calls.floating |= any(tensor.is_floating_point() for tensor in inputs)
        if calls.group_size > 1 and _sends(operator, calls.family, args, group):
            for tensor in inputs:
                add_tensor(self._record.find_sent_digest(site), tensor)
        return site

    def _alter(self, name: str, keyset: Any, args: tuple[Any, ...], kind: Kind) -> Any:
        operator = OPERATORS[name]
        group = c10d_internals.unbox_group(args[operator.group])
        size, rank = group.size(), group.rank()
        if kind is Kind.GROUP:
            return self._run_over_others(name, keyset, args, group)
        self._record.applied += 1
        if operator.family is Family.SEND:
            return self._send(name, keyset, args, kind, [tensor.clone() for tensor in operator.inputs(args)])
        outputs = operator.outputs(args)
        if kind in (Kind.MAX, Kind.ROOT):
            changed = list(args)
            if kind is Kind.MAX:
                changed[REDUCTION[operator.in_place]] = self._make_max_reduction(group, outputs[0])
            else:
                changed[operator.group + 1] = (args[operator.group + 1] + 1) % size
            self._record.changed += 1
            return self._run(name, keyset, changed)
        if kind is Kind.LEFT_OUT:
            return self._run_without_last(name, keyset, args, rank == size - 1)
        needs_own = kind in KEEPS_OWN
        given = [tensor.clone() for tensor in operator.inputs(args)] if needs_own else []
        before = [tensor.clone() for tensor in outputs] if needs_own and operator.family in _ROOTED else []

        def leave_untouched(index: int) -> torch.Tensor:
            return before[index] if before else compute_own_result(operator, given, outputs[index], index, rank, size)

        def after() -> None:
            with torch.no_grad():
                right = [tensor.clone() for tensor in outputs]
                if kind is Kind.SWAPPED:
                    swap([tensor.data for tensor in outputs], size)
                else:
                    for index, (tensor, old) in enumerate(
                        zip(outputs, self._recall_previous(kind, right), strict=True)
                    ):
                        alter(tensor.data, kind, size, leave_untouched(index) if needs_own else tensor, old)
                self._record.changed += any(not torch.equal(*pair) for pair in zip(right, outputs, strict=True))

        return self._alter_when_done(self._run(name, keyset, args), after)

    def _run_over_others(self, name: str, keyset: Any, args: tuple[Any, ...], group: Any) -> Any:
        assert self._record.fault is not None
        operator, call = OPERATORS[name], self._record.sites[self._record.fault.site].count
        peers = self._peers = self._peers or Peers(self._trial)
        given, outputs = [tensor.clone() for tensor in operator.inputs(args)], operator.outputs(args)
        peers.give(call, given)

        def after() -> None:
            with torch.no_grad():
                others = peers.over(call, group, operator, given, outputs)
                if others is not None:
                    self._record.applied += 1
                    self._record.changed += any(not torch.equal(*pair) for pair in zip(others, outputs, strict=True))
                    for tensor, other in zip(outputs, others, strict=True):
                        tensor.data.copy_(other)

        return self._alter_when_done(self._run(name, keyset, args), after)

    def _send(self, name: str, keyset: Any, args: tuple[Any, ...], kind: Kind, sent: list[torch.Tensor]) -> Any:
        right = [tensor.clone() for tensor in sent]
        for tensor, old in zip(sent, self._recall_previous(kind, right), strict=True):
            alter(tensor, kind, 1, torch.zeros_like(tensor), old)
        self._held.append(sent)  # until the program ends: it may wait for its own tensors only
        self._record.changed += any(not torch.equal(*pair) for pair in zip(right, sent, strict=True))
        return self._run(name, keyset, [sent, *args[1:]])

    def _recall_previous(self, kind: Kind, right: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        """What the call before with such tensors came to, for a stale one; keeps what this call comes to."""
        if kind is not Kind.STALE:
            return [None] * len(right)
        key = tuple((tensor.dtype, tensor.shape) for tensor in right)
        before = self._previous.get(key)
        self._previous[key] = right
        return [None] * len(right) if before is None else before

    def _run_without_last(self, name: str, keyset: Any, args: tuple[Any, ...], is_last: bool) -> Any:
        operator = OPERATORS[name]
        if not is_last:
            return self._run(name, keyset, args)
        inputs = operator.inputs(args)
        self._record.changed += any(bool(tensor.any()) for tensor in inputs)
        if operator.in_place:
            for tensor in inputs:
                tensor.data.zero_()
            return self._run(name, keyset, args)
        zeros = [torch.zeros_like(tensor) for tensor in inputs]
        self._held.append(zeros)
        return self._run(name, keyset, replace_inputs(operator, args, zeros))

    def _alter_when_done(self, result: Any, alter_outputs: Callable[[], None]) -> Any:
        def noting() -> None:
            try:
                alter_outputs()
            except BaseException as error:
                self._record.error = error
                raise

        if isinstance(result, tuple | list):
            return (*result[:-1], c10d_internals.make_altered_work(result[-1], noting, self._held))
        return c10d_internals.make_altered_work(result, noting, self._held)

    def _make_max_reduction(self, group: Any, tensor: torch.Tensor) -> Any:
        """The boxed reduction that takes the maximum, which Python cannot make: a call is asked what it was given."""
        told: list[Any] = []
        self._asking.told = told
        try:
            group.allreduce([tensor], dist.ReduceOp.MAX)
        finally:
            self._asking.told = None
        return told[0]


@contextmanager
def _install(interception: Interception) -> Any:
    library = torch.library.Library("c10d", "IMPL")
    try:
        interception.there = {name: c10d_internals.find_kernel(name) for name in OPERATORS}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that a kernel is in another's place
            for name in OPERATORS:
                override = _override(interception, name)
                library.impl(name, override, "BackendSelect", with_keyset=True, allow_override=True)
        yield
    finally:
        c10d_internals.remove(library)


def _override(interception: Interception, name: str) -> Callable[..., Any]:
    def override(keyset: Any, *args: Any) -> Any:
        return interception.call(name, keyset, args)

    return override


def _sends(operator: Operator, family: Family, args: Sequence[Any], group: Any) -> bool:
    """Whether this rank's inputs have values: those of a broadcast are its root's, and others hold anything."""
    if family in _ROOTED:
        return bool(args[operator.group + 1] == group.rank())
    return family is not Family.OTHER
