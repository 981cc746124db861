"""Tensors that a run held, by step, kind and name, in order of computation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch

from pytest_gpuperf.features.parity.products import EXACT, Products

# Modules that others wrap around a model; a parameter has its plain name without them.
_WRAPPERS = re.compile(r"(^|\.)(module|" + "_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module" + r")(?=\.|$)")


class Kind(StrEnum):
    """What a recorded tensor is."""

    START = "start"
    INPUT = "input"
    OUTPUT = "output"
    OUTPUT_GRADIENT = "output gradient"
    RESULT = "result"
    """The whole model's output, where nothing was differentiated."""
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    STATE = "state"
    VALUE = "value"

    @property
    def is_activation(self) -> bool:
        """Whether it only helps to find the first wrong tensor: a partial output that is reduced later is no fault."""
        return self in (Kind.INPUT, Kind.OUTPUT, Kind.OUTPUT_GRADIENT)


@dataclass(frozen=True, slots=True)
class Key:
    """Names a tensor of a run."""

    step: int
    """1 is the first step of the optimizer; 0 is before it."""
    kind: Kind
    name: str
    auto: bool = False
    """Whether an optimizer's hook recorded it, and the user named no such tensor."""

    @property
    def is_judged(self) -> bool:
        """Whether it decides about right and wrong."""
        return not self.auto and not self.kind.is_activation

    def __str__(self) -> str:
        if self.kind is Kind.VALUE:
            return self.name
        if self.kind is Kind.START:
            return f"parameter {self.name} at the start"
        return f"step {self.step}, {self.kind} of {self.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """How a DTensor is spread over its mesh."""

    sizes: tuple[int, ...]
    axes: tuple[str, ...]
    coordinate: tuple[int, ...]
    """This rank's place in the mesh."""
    placements: tuple[str, ...]
    """One per axis: ``shard 0``, ``replicated`` or ``partial``."""
    rightmost_first: bool
    """Whether the axis on the right was cut first, as by FSDP over tensor parallelism."""


@dataclass(frozen=True, slots=True)
class Record:
    """A tensor of a rank: its own part, on the CPU."""

    key: Key
    tensor: torch.Tensor
    placement: Placement | None = None
    calls: int = 1
    """How often it was recorded; later calls (microbatches) are appended along dimension 0."""
    at: int = 0
    """Its place in the order of computation; equal numbers keep the order of recording."""


@dataclass(repr=False)
class Trace:
    """What a run held."""

    records: dict[Key, Record] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    """Names that reports use for parameters of optimizers, by their numbers."""
    meshes: tuple[tuple[tuple[str, int], ...], ...] = ()
    """Meshes that the program made with ``ctx.mesh``: names and sizes of their axes."""
    products: Products = EXACT

    def add(self, record: Record) -> None:
        """Adds a record; appends along dimension 0 if there is one of the same key."""
        old = self.records.get(record.key)
        if old is None:
            self.records[record.key] = record
            return
        first, second = (t if t.dim() else t[None] for t in (old.tensor, record.tensor))
        joined = torch.cat([first, second]) if first.shape[1:] == second.shape[1:] else old.tensor
        self.records[record.key] = replace(old, tensor=joined, calls=old.calls + 1)

    def after(self, step: int) -> Trace:
        """What the run held from the end of a step on; all of it for step 0.

        The parameters and optimizer states at that step's end are in it.
        """
        if not step:
            return self
        ends = (Kind.PARAMETER, Kind.STATE)
        records = {
            key: record
            for key, record in self.records.items()
            if key.step > step or (key.step == step and key.kind in ends)
        }
        return Trace(records, self.titles, self.meshes, self.products)

    def title(self, key: Key) -> str:
        """A key in words, with the user's name of a parameter if it is known."""
        return str(replace(key, name=self.titles.get(key.name, key.name)))

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def __repr__(self) -> str:
        return f"Trace({len(self.records)} tensors)"

    def __len__(self) -> int:
        return len(self.records)


def strip_wrappers(name: str) -> str:
    """A module's or parameter's name without the wrappers of DDP, FSDP, compile and checkpointing."""
    return _WRAPPERS.sub("", name).strip(".")


def copy_local(tensor: torch.Tensor) -> tuple[torch.Tensor, Placement | None]:
    """Copies this rank's part of a tensor to the CPU; returns also how a DTensor is placed."""
    placement = None
    value: Any = tensor
    if hasattr(value, "placements") and hasattr(value, "to_local"):
        mesh = value.device_mesh
        texts = tuple(_describe_placement(one) for one in value.placements)
        placement = Placement(
            sizes=tuple(mesh.mesh.shape),
            axes=tuple(mesh.mesh_dim_names or (f"axis {i}" for i in range(mesh.ndim))),
            coordinate=tuple(mesh.get_coordinate() or ()),
            placements=texts,
            rightmost_first=any("Strided" in type(one).__name__ for one in value.placements),
        )
        value = value.to_local()
    if type(value) is not torch.Tensor and hasattr(value, "wait"):
        value = value.wait()
    plain = value.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return plain.to("cpu", copy=True), placement


def _describe_placement(placement: Any) -> str:
    if placement.is_partial():
        return "partial"
    if placement.is_replicate():
        return "replicated"
    return f"shard {placement.dim}"


def make_trace(result: object, where: str) -> Trace:
    """Makes a trace of what a reference or a program returned: a trace, a mapping of tensors, a tensor, or nothing.

    Args:
        result: what was returned; numbers count as tensors.
        where: who returned it, for messages.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(result, Trace):
        return result
    trace = Trace()
    for name, value in _name_keys(result, where).items():
        if isinstance(value, bool | int | float):
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{where} returned a {type(value).__name__} under {name!r}: parity compares tensors and numbers; "
                "leave it out, or make a tensor of it"
            )
        part, placement = copy_local(value)
        trace.add(Record(Key(0, Kind.VALUE, str(name)), part, placement))
    return trace


def _name_keys(result: object, where: str) -> Mapping[Any, Any]:
    if isinstance(result, Mapping):
        return result
    if isinstance(result, torch.Tensor):
        return {"result": result}
    if isinstance(result, tuple | list):
        return {f"result[{index}]": value for index, value in enumerate(result)}
    raise TypeError(
        f"{where} returned {'None' if result is None else f'a {type(result).__name__}'}: return tensors by name, as "
        '{"loss": loss}, or the trace of watch(); a rank that holds nothing returns {}'
    )
