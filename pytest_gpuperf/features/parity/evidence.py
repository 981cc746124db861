"""Collects what may explain a wrong tensor: other steps, other tensors, the reference's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pytest_gpuperf.features.parity.case import Case, Groups, Squares
from pytest_gpuperf.features.parity.layout import Part
from pytest_gpuperf.features.parity.operations import Value, iterate_ancestors
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace
from pytest_gpuperf.features.parity.tolerance import Tolerance, Tolerances, compute_unit, make_real

_COPIES = frozenset("_to_copy alias clone copy_ detach view".split())  # noqa: SIM905
_MOST_NAMED = 64
"""Other tensors that a wrong one is compared with."""


@dataclass(frozen=True, repr=False)
class Question:
    """All that a check compares, and what the user said about it."""

    reference: Trace
    traces: Sequence[Trace]
    tolerances: Tolerances
    mesh: Mapping[str, int] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    microbatches: int = 1
    values: Mapping[Key, Value] = field(default_factory=dict)
    """Where the reference's tensors are among its operations."""
    vectors: Sequence[tuple[str, torch.Tensor]] = ()
    drawn: Sequence[str] = ()
    """Operations of the reference that drew random numbers by what was computed."""
    shares: Sequence[Trace] = ()
    """The reference's traces on each rank's share of the batch."""


class Evidence:
    """Makes the cases of wrong tensors.

    Args:
        question: all that is compared.
        groups: of ranks, in which a reduction may be missing.
    """

    def __init__(self, question: Question, groups: Sequence[Groups]) -> None:
        self._ask = question
        self._groups = groups
        self._squared: dict[tuple[int, bool], list[Squares]] = {}
        self.known: dict[tuple[bool, str], dict[int, Part]] = {}
        """Parts of parameters, by whether an optimizer's hook recorded them, and by name."""

    def case(
        self,
        record: Record,
        got: Mapping[int, torch.Tensor],
        parts: Mapping[int, Part],
        whole: torch.Tensor,
        tolerance: Tolerance,
    ) -> Case:
        """The case of a tensor.

        Args:
            record: of the reference.
            got: what ranks hold, float64.
            parts: which part each should hold.
            whole: the reference's tensor, float64.
            tolerance: of the whole.
        """
        key, reference = record.key, self._ask.reference
        value = self._ask.values.get(key)
        shares = [trace.records[key] for trace in self._ask.shares if key in trace.records]
        return Case(
            key=key,
            title=reference.title(key),
            got=got,
            want={rank: parts[rank].of(whole) for rank in got},
            tau={rank: parts[rank].of(tolerance.bound) for rank in got},
            parts=parts,
            whole=whole,
            world=len(self._ask.traces),
            groups=self._groups,
            microbatches=self._ask.microbatches,
            base=self._find_base(key, got),
            earlier=self._list_earlier(key, whole),
            later=self._list_later(key, whole),
            squares=self._list_squares(key),
            coarse=self._find_coarse_dtype(record),
            named=self._name_tensors(key),
            vectors=self._ask.vectors,
            value=value,
            shares=self._scale_shares(shares, whole),
            drawn=self._ask.drawn,
        )

    @staticmethod
    def _scale_shares(shares: Sequence[Record], whole: torch.Tensor) -> list[torch.Tensor]:
        """Gradients of the shares, scaled so that they add up to the whole if that is a plain sum or mean."""
        tensors = [make_real(one.tensor) for one in shares]
        if len(tensors) < 2 or any(one.shape != whole.shape for one in tensors):
            return []
        columns = torch.stack([one.flatten() for one in tensors], 1)
        if columns.shape[0] <= columns.shape[1]:
            return []
        weights = torch.linalg.lstsq(columns, whole.flatten()[:, None]).solution.flatten()
        return [one * weight for one, weight in zip(tensors, weights.tolist(), strict=True)]

    def _find_base(self, key: Key, got: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        if key.kind is not Kind.PARAMETER:
            return {}
        old = self._make_old_key(key)
        found = {rank: self._ask.traces[rank].records.get(old) for rank in got}
        return {rank: make_real(one.tensor) for rank, one in found.items() if one is not None}

    @staticmethod
    def _make_old_key(key: Key) -> Key:
        if key.step == 1:
            return Key(0, Kind.START, key.name, key.auto)
        return Key(key.step - 1, key.kind, key.name, key.auto)

    def _list_earlier(self, key: Key, whole: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """The reference's tensor of earlier steps; of a value that is an optimizer's parameter, that parameter's."""
        records, found = self._ask.reference.records, []
        name, auto = key.name, key.auto
        if key.kind is Kind.VALUE:
            titles = {title: number for number, title in self._ask.reference.titles.items()}
            if key.name not in titles:
                return []
            name, auto, last = titles[key.name], True, 1 << 30
            kind = Kind.PARAMETER
        else:
            last, kind = key.step, key.kind
        steps = sorted({one.step for one in records if one.kind is kind and one.name == name and one.auto is auto})
        for step in reversed([step for step in steps if step < last]):
            old = records[Key(step, kind, name, auto)]
            found.append((f"that of step {step}", make_real(old.tensor)))
        if kind is Kind.PARAMETER and (old_start := records.get(Key(0, Kind.START, name, auto))) is not None:
            found.append(("that of the start", make_real(old_start.tensor)))
        return [(text, one) for text, one in found if one.shape == whole.shape and not torch.equal(one, whole)]

    def _list_later(self, key: Key, whole: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """An input's tensors of later steps: data may have been skipped."""
        if key.kind is not Kind.INPUT:
            return []
        found = [
            (f"that of step {record.key.step}", make_real(record.tensor))
            for record in self._ask.reference
            if record.key.kind is key.kind and record.key.name == key.name and record.key.step > key.step
        ]
        return [(text, one) for text, one in found if one.shape == whole.shape and not torch.equal(one, whole)]

    def _list_squares(self, key: Key) -> list[Squares]:
        """The squares of all gradients of the step; none if some gradient's parts are unknown."""
        if key.kind is not Kind.GRADIENT:
            return []
        step = key.step, key.auto
        if step not in self._squared:
            self._squared[step] = []
            for record in self._ask.reference:
                if record.key.kind is not key.kind or (record.key.step, record.key.auto) != step:
                    continue
                parts = self.known.get((key.auto, record.key.name))
                if parts is None:
                    self._squared[step] = []
                    break
                square = make_real(record.tensor).square()
                own = {rank: float(part.of(square).sum()) for rank, part in parts.items()}
                split = any(part.index is not None for part in parts.values())
                title = self._ask.reference.titles.get(record.key.name, record.key.name)
                self._squared[step].append(Squares(title, float(square.sum()), own, split))
        return self._squared[step]

    def _find_coarse_dtype(self, record: Record) -> torch.dtype | None:
        held = [trace.records[record.key].tensor.dtype for trace in self._ask.traces if record.key in trace.records]
        coarse = [dtype for dtype in held if compute_unit(dtype) > compute_unit(record.tensor.dtype) > 0]
        return coarse[0] if coarse else None

    def _name_tensors(self, key: Key) -> list[tuple[str, torch.Tensor]]:
        found: list[tuple[str, torch.Tensor]] = []
        for other, record in self._ask.reference.records.items():
            near = other.step in (key.step, key.step - 1) and other.auto is key.auto and not other.kind.is_activation
            if other != key and near and record.tensor.numel() <= 1 << 20:
                found.append((self._ask.reference.title(other), make_real(record.tensor)))
                if len(found) == _MOST_NAMED:
                    break
        return found


def compute_margin(value: Value | None, undecided: torch.Tensor) -> float | None:
    """How far apart the two best candidates of undecided choices are at most, relative to the better one.

    Args:
        value: the choices among the reference's operations.
        undecided: which of them rounding decides.

    Returns:
        None if the choices are no largest elements of a known tensor.
    """
    while value is not None and value.operation is not None and value.operation.name in _COPIES:
        value = value.operation.inputs[-1] if value.operation.inputs else None
    operation = value.operation if value is not None else None
    if operation is None or operation.name not in ("argmax", "max", "topk") or not isinstance(operation.args[0], Value):
        return None
    scores, count = operation.args[0].tensor.double(), 1
    numbers = [one for one in operation.args[1:] if type(one) is int]
    if operation.name == "topk":
        count, numbers = numbers[0], numbers[1:]
    dim = numbers[0] if numbers else -1
    if count >= scores.shape[dim]:
        return None
    best = scores.topk(count + 1, dim).values.movedim(dim, -1)
    gaps = ((best[..., :-1] - best[..., 1:]) / best[..., :-1].abs().clamp(min=1e-300)).movedim(-1, dim)
    if operation.name != "topk":
        gaps = gaps.select(dim, 0)
    undecided = undecided.reshape(gaps.shape) if undecided.numel() == gaps.numel() else torch.ones_like(gaps).bool()
    return float(gaps[undecided].max())


def list_vectors(reference: Trace, values: Sequence[Value]) -> list[tuple[str, torch.Tensor]]:
    """Vectors that may be added to rows: parameters of one dimension by name, and others by where they were added."""
    named = [
        (f"parameter {record.key.name} at the start", record.tensor.double())
        for record in reference
        if record.key.kind is Kind.START and not record.key.auto and record.tensor.dim() == 1
    ]
    found: dict[int, tuple[str, torch.Tensor]] = {}
    seen: set[int] = set()
    for value in values:
        for one in iterate_ancestors(value, seen):
            operation = one.operation
            if operation is None or operation.name not in ("addmm", "add", "add_"):
                continue
            for taken in operation.inputs:
                if taken.tensor.dim() == 1 and taken.tensor.is_floating_point() and id(taken) not in found:
                    line = f" in {operation.line}" if operation.line else ""
                    found[id(taken)] = (f"the vector of {len(taken.tensor)} that is added{line}", taken.tensor.double())
    return named + list(found.values())
