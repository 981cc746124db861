"""The collectives that a rank issues, as it calls them: noted by kernels of c10d's own operations.

All callers go through the dispatcher: Python, DDP's C++, functional and compiled collectives, each on any thread. So a
kernel at BackendSelect, which lies above every backend's own, sees them all. Torch's flight recorder has neither the
reduction nor root nor splits, and takes 100 ms to read when it is full. A note takes the rank 60 to 80 us, most of them
after the backend has begun. Ranks that measure note nothing: no Python runs in what is timed. Runs in rank processes.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf.ranks.collectives import PAIRED, Collective
from pytest_gpuperf.ranks.delays import Delays
from pytest_gpuperf.ranks.messages import Tally
from pytest_gpuperf.ranks.stacks import is_library, shorten_path
from pytest_gpuperf.torch_internals import COLLECTIVES, find_kernel_below, find_reduction, group_ranks, read_signature

MOST = 10_000
"""Collectives of a group that are noted in a run; later ones are not compared."""

_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
_TYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_FEATURES = os.path.join(_PACKAGE, "features", "")

Tensors = Sequence[torch.Tensor]
Key = tuple[str, tuple[int, ...]]
"""A group: its name and its global ranks."""


@dataclass(frozen=True, slots=True)
class _Note:
    order: int
    """Its place among the collectives of all groups of the rank, counted from 0."""
    kind: str
    types: tuple[torch.dtype, ...]
    shapes: tuple[torch.Size, ...]
    elements: int
    """What must be the same on all ranks; 0 if that depends on the rank."""
    reduction: str
    root: int
    sends: tuple[int, ...]
    """Elements for each rank of the group, if a collective moves them between pairs."""
    receives: tuple[int, ...]
    place: tuple[str, int, str]
    """File, line and function of the program."""
    thread: str

    @property
    def common(self) -> tuple[object, ...]:
        return self.kind, tuple(map(str, self.types)), self.elements, self.reduction, self.root


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of c10d, and where its arguments are."""

    kind: str
    group: int
    root: int | None
    reduces: bool
    splits: tuple[int, int] | None
    """Where those of the input and of the output are."""
    inputs: int
    outputs: int

    @classmethod
    def of(cls, arguments: Sequence[tuple[str, str]], kind: str) -> _Operation:
        names, kinds = [name for name, _ in arguments], [type_ for _, type_ in arguments]
        tensors = [index for index, name in enumerate(kinds) if "Tensor" in name and "Optional" not in name]
        splits = None
        if "input_split_sizes" in names:
            splits = names.index("input_split_sizes"), names.index("output_split_sizes")
        return cls(
            kind=kind,
            group=names.index("process_group"),
            root=names.index("root_rank") if "root_rank" in names else None,
            reduces="reduce_op" in names,
            splits=splits,
            inputs=tensors[-1],
            outputs=tensors[0],
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A collective that the backend has not returned from."""

    order: int
    about: _Operation
    arguments: Sequence[Any]
    frame: FrameType | None
    """Called the operation; None on a thread of torch's backward pass."""
    thread: int


class _Series:
    """The collectives of a rank on one group."""

    def __init__(self, rank: int) -> None:
        """Has none; ``rank`` is this process's, in the group."""
        self.notes: list[_Note] = []
        self.digest = 0
        """Digest of what must be the same on all ranks."""
        self.balance = 0
        """What all ranks of the group add to 0 if each sends to each what that one expects."""
        self._rank = rank

    def add(self, note: _Note) -> None:
        index = len(self.notes)
        if index == MOST:
            return
        self.digest = zlib.crc32(repr(note.common).encode(), self.digest)
        self.balance += sum(n * _compute_weight(index, self._rank, other) for other, n in enumerate(note.sends))
        self.balance -= sum(n * _compute_weight(index, other, self._rank) for other, n in enumerate(note.receives))
        self.notes.append(note)


class Calls:
    """Notes the collectives of a run."""

    def __init__(self, rank: int) -> None:
        """Puts kernels in the way of all collectives of this process.

        Args:
            rank: this process's, in the world.
        """
        self._rank = rank
        self._main = threading.get_ident()
        self._series: dict[Key, _Series] = {}
        """By the group's name and members: a program may open groups of one name one after another."""
        self._underway: dict[int, _Call] = {}
        """By their order."""
        self._orders = itertools.count()
        self._delays: Delays | None = None
        self._delays_sends = False
        """Whether sends and receives are in the way, too."""
        self._libraries: dict[str, bool] = {}
        self._library = torch.library.Library("c10d", "IMPL")
        for name, kind in COLLECTIVES.items():
            operation: Any = getattr(torch.ops.c10d, name, None)
            if operation is not None:  # which of them exist depends on the version
                kernel = self._make_kernel(operation.default, _Operation.of(read_signature(operation.default), kind))
                self._library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def begin(self, delays: Delays | None = None) -> None:
        """Forgets what was noted: a run begins.

        Args:
            delays: of the run; None for none.
        """
        self._delays = delays
        if delays is not None and not self._delays_sends:
            self._delays_sends = True
            for name in _POINT_TO_POINT:
                operation = getattr(torch.ops.c10d, name).default
                self._library.impl(name, self._delay_kernel(operation), "BackendSelect", with_keyset=True)
        self._series, self._underway = {}, {}  # new ones: a thread of an earlier run may still hold the old
        self._orders = itertools.count()

    def tally(self) -> tuple[Tally, ...]:
        """What must be equal on all ranks, in short."""
        return tuple(
            Tally(name, members, len(series.notes), series.digest, series.balance)
            for (name, members), series in list(self._series.items())
        )

    @property
    def whole(self) -> bool:
        """Whether all collectives of the run were noted."""
        return all(len(series.notes) < MOST for series in list(self._series.values()))

    def list_issued(self) -> list[Collective]:
        """The collectives of the run that were noted, in the order of issue."""
        found = [one for call in list(self._underway.values()) if (one := self._read(call)) is not None]
        found += [(key, note) for key, series in list(self._series.items()) for note in list(series.notes)]
        by_order = {note.order: (key, note) for key, note in found}  # what has ended meanwhile was found twice
        issued = []
        numbers: Counter[Key] = Counter()
        for _, (key, note) in sorted(by_order.items()):
            numbers[key] += 1
            issued.append(_make_collective(key, numbers[key], note))
        return issued

    def delay(self) -> None:
        """Waits for as long as the run's delays say next."""
        if self._delays is not None:
            time.sleep(self._delays.next())

    def _delay_kernel(self, operation: Any) -> Callable[..., Any]:
        below = find_kernel_below(operation)

        def delay_and_run(keys: Any, *arguments: Any) -> Any:
            self.delay()
            return below(keys, *arguments)

        return delay_and_run

    def _make_kernel(self, operation: Any, about: _Operation) -> Callable[..., Any]:
        below = find_kernel_below(operation)

        def note_and_run(keys: Any, *arguments: Any) -> Any:
            __tracebackhide__ = True
            self.delay()
            order, underway, series = next(self._orders), self._underway, self._series
            call = underway[order] = _Call(order, about, arguments, sys._getframe().f_back, threading.get_ident())
            try:
                result = below(keys, *arguments)
                self._note(call, series)  # while the backend works; what raised was never issued
                return result
            finally:
                del underway[order]

        return note_and_run

    def _note(self, call: _Call, series: dict[Key, _Series]) -> None:
        found = self._read(call)
        if found is not None:
            (name, members), note = found
            series.setdefault((name, members), _Series(members.index(self._rank))).add(note)

    def _read(self, call: _Call) -> tuple[Key, _Note] | None:
        try:
            return self._read_arguments(call)
        except Exception:  # arguments that nobody foresaw are the backend's business
            return None

    def _read_arguments(self, call: _Call) -> tuple[Key, _Note] | None:
        about, arguments = call.about, call.arguments
        group = dist.ProcessGroup.unbox(arguments[about.group])
        members = group_ranks(group)
        rank = group.rank()
        if len(members) < 2 or members[rank] != self._rank:
            return None  # nobody else has it, or the program numbers its ranks in another way
        inputs, outputs = _list_tensors(arguments[about.inputs]), _list_tensors(arguments[about.outputs])
        root = -1 if about.root is None else arguments[about.root]
        measured = outputs if about.kind == "all_gather" else inputs
        sends, receives = _count_by_pair(about, arguments, inputs, outputs, group, root)
        shown = () if about.kind == "barrier" else inputs or outputs
        frame = call.frame
        while frame is not None and frame.f_code.co_filename.startswith(_FEATURES):
            frame = frame.f_back  # a feature's kernel that stands before this one
        thread, place = self._place(frame, call.thread)
        note = _Note(
            order=call.order,
            kind=about.kind,
            types=tuple(dict.fromkeys(tensor.dtype for tensor in shown)),
            shapes=tuple(tensor.shape for tensor in shown),
            elements=0 if about.kind in PAIRED or not shown else sum(tensor.numel() for tensor in measured),
            reduction=find_reduction(frame) if about.reduces else "",
            root=root,
            sends=sends,
            receives=receives,
            place=place,
            thread=thread,
        )
        return (group.group_name, members), note

    def _place(self, frame: FrameType | None, thread: int) -> tuple[str, tuple[str, int, str]]:
        """The name of the thread, empty for the main one and torch's own, and the line of the program."""
        own = self._own(frame)
        name = ""
        if thread != self._main:
            if own is None:  # a thread of torch's backward pass: the main thread waits for it
                own = self._own(sys._current_frames().get(self._main))
            else:
                name = next((one.name for one in threading.enumerate() if one.ident == thread), "")
        return name, ("", 0, "") if own is None else (own.f_code.co_filename, own.f_lineno, own.f_code.co_name)

    def _own(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None:
            file = frame.f_code.co_filename
            library = self._libraries.get(file)
            if library is None:
                library = self._libraries[file] = is_library(file) or file.startswith(_PACKAGE)
            if not library:
                return frame
            frame = frame.f_back
        return None


def _compute_weight(index: int, sender: int, receiver: int) -> int:
    return zlib.crc32(b"%d %d %d" % (index, sender, receiver))


def _list_tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    return [tensor for one in argument for tensor in _list_tensors(one)]


def _count_by_pair(
    about: _Operation, arguments: Sequence[Any], inputs: Tensors, outputs: Tensors, group: Any, root: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    size, rank = group.size(), group.rank()
    if about.splits is not None:
        ins, outs = (arguments[index] for index in about.splits)
        if not all(_divides(splits, tensor) for splits, tensor in ((ins, inputs[0]), (outs, outputs[0]))):
            return (), ()  # the backend refuses it
        return _split(inputs[0], ins, size), _split(outputs[0], outs, size)
    if about.kind not in PAIRED:
        return (), ()
    sent, got = tuple(map(torch.Tensor.numel, inputs)), tuple(map(torch.Tensor.numel, outputs))
    if about.kind == "all_to_all":
        return sent, got
    alone = [0] * size
    if about.kind == "gather":
        alone[root] = sum(sent)
        return tuple(alone), got if rank == root else ()
    alone[root] = sum(got)
    return sent if rank == root else (), tuple(alone)


def _divides(splits: Sequence[int], tensor: torch.Tensor) -> bool:
    return not splits or (tensor.dim() > 0 and sum(splits) == tensor.shape[0])


def _split(tensor: torch.Tensor, splits: Sequence[int], size: int) -> tuple[int, ...]:
    if not splits:
        return (tensor.numel() // size,) * size
    row = tensor.numel() // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
    return tuple(row * rows for rows in splits)


def _make_collective(key: Key, number: int, note: _Note) -> Collective:
    name, members = key
    types = [_TYPES.get(one, str(one)) for one in note.types]
    one = types[0] if len(types) == 1 else "/".join(types)
    file, line, function = note.place
    return Collective(
        group=name,
        number=number,
        operation=note.kind,
        tensors=" ".join(f"{one}{list(shape)}" for shape in note.shapes),
        done=False,
        members=members,
        types=one,
        elements=note.elements,
        reduction=note.reduction,
        root=note.root,
        sends=note.sends,
        receives=note.receives,
        place=f"{shorten_path(file)}:{line} in {function}" if file else "",
        thread=note.thread,
    )
