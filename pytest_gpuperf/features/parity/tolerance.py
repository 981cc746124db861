"""How far each element may be off: derived from reference runs with random rounding, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace
from pytest_gpuperf.features.parity.rounding import AMPLITUDE

ALPHA = 1e-6
"""The chance that rounding alone makes an element of any tensor exceed its tolerance, if errors are sub-Gaussian."""
NORM = 1.5
"""How many times the spread's norm the norm of a difference may be."""
BLIND = 0.5
"""A tensor is not judged if rounding alone moves it by this share of its norm."""
_SHARE, _MOST_SHARE = 2.0**14, 0.1
"""Without runs that show rounding: how many unit roundoffs of the largest element are allowed; the most."""
_STEPS, _NEAR = 33, 3
"""Half octaves of size that are told apart, and how many on each side count as about the same size."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding may make of one tensor; whole tensors, float64."""

    bound: torch.Tensor
    """The largest difference, for each element; infinite where rounding decides a choice."""
    spread: torch.Tensor
    """The standard deviation that random rounding has, for each element."""
    norm: float
    """How many times the spread's norm a difference may have."""


def make_real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64; a complex one with another dimension of real and imaginary parts."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).double()
    return tensor.double()


def compute_unit(dtype: torch.dtype) -> float:
    """The unit roundoff of a dtype; 0 for whole numbers."""
    if dtype.is_complex or dtype.is_floating_point:
        return float(torch.finfo(dtype).eps) / 2
    return 0.0


def find_coarser_unit(reference: Trace, traces: Sequence[Trace], kinds: Sequence[Kind]) -> float | None:
    """The unit roundoff of what the program computes with, if that is coarser than the reference's; else None.

    Only inputs, outputs and parameters at the start count: a gradient or a state in a coarse type may be the fault.
    """
    mine = max((compute_unit(r.tensor.dtype) for r in reference if r.key.kind in kinds), default=0.0)
    theirs = max((compute_unit(r.tensor.dtype) for t in traces for r in t if r.key.kind in kinds), default=0.0)
    return theirs if theirs > mine else None


class Tolerances:
    """Derives the tolerance of each tensor of a reference.

    Args:
        reference: the run that is compared with.
        runs: more of it, with random rounding.
        unit: the program's unit roundoff where it is coarser.
        stored: the unit roundoff in which the program stores parameters, where it is coarser.
        carried: whether each step goes on from the one before.
    """

    def __init__(
        self,
        reference: Trace,
        runs: Sequence[Trace],
        unit: float | None = None,
        stored: float | None = None,
        *,
        carried: bool = True,
    ) -> None:
        self._reference = reference
        self._runs = runs
        self._unit = unit or 0.0
        self._stored = stored or 0.0
        self._carried = carried
        count = max(1, sum(record.tensor.numel() for record in reference))
        self._tail = math.sqrt(2 * math.log(2 * count / ALPHA))
        self._doubt: dict[tuple[bool, str], torch.Tensor] = {}
        self._travel: dict[tuple[bool, str], torch.Tensor] = {}

    def of(self, record: Record) -> Tolerance:
        """The tolerance of a record of the reference; ask in the order of the records, since updates add up."""
        key = record.key
        base = make_real(record.tensor)
        seen = [run.records[key].tensor for run in self._runs if key in run.records]
        # A run of another shape, as when ties route otherwise, tells nothing.
        moved = [make_real(one) - base for one in seen if one.shape == record.tensor.shape]
        if not record.tensor.is_floating_point() and not record.tensor.is_complex():
            undecided = torch.zeros_like(base, dtype=torch.bool)
            for one in moved:
                undecided |= one != 0
            bound = torch.zeros_like(base).masked_fill(undecided, math.inf)
            return Tolerance(bound, torch.zeros_like(base), NORM)
        spread = torch.stack(moved).square().mean(0).sqrt() if moved else torch.zeros_like(base)
        spread = torch.nan_to_num(spread, nan=0.0, posinf=0.0)
        unit = compute_unit(record.tensor.dtype)
        if key.kind is not Kind.STATE and key.kind is not Kind.PARAMETER:
            unit = max(unit, self._unit)
        if key.kind in (Kind.START, Kind.PARAMETER, Kind.STATE):
            unit = max(unit, self._stored)
        finite = torch.nan_to_num(base.abs(), nan=0.0, posinf=0.0)
        level = torch.maximum(_compute_levels(spread), _compute_by_size(spread, finite))
        # Few draws of few elements may come out small by chance.
        scarce = 1 + 3 / math.sqrt(max(1, len(moved)) * max(1, spread.numel()))
        bound = scarce * self._tail / AMPLITUDE * math.sqrt(2) * torch.maximum(spread, level) + 2 * unit * finite
        for one in moved:  # what a run showed needs no distribution; signs in Adam move few elements far
            bound = torch.maximum(bound, torch.nan_to_num(one.abs(), nan=0.0, posinf=0.0))
        spread = (spread.square() + (2 * unit * finite).square()).sqrt()
        bound, spread = self._widen_by_signs(key, base, bound, spread)
        return Tolerance(bound, spread, NORM * scarce)

    def _widen_by_signs(
        self, key: Key, base: torch.Tensor, bound: torch.Tensor, spread: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adam divides by the gradient's size: where rounding decides the gradient's sign, it decides the update's."""
        who = key.auto, key.name
        if key.kind is Kind.GRADIENT:
            doubt = (bound / base.abs().clamp(min=1e-300)).clamp(max=1)
            old = self._doubt.get(who) if self._carried else None
            self._doubt[who] = doubt if old is None or old.shape != doubt.shape else torch.maximum(old, doubt)
        if key.kind is not Kind.PARAMETER or who not in self._doubt or not self._divides(key):
            return bound, spread
        before = (
            Key(0, Kind.START, key.name, key.auto) if key.step == 1 else Key(key.step - 1, key.kind, key.name, key.auto)
        )
        old_record = self._reference.records.get(before)
        if old_record is None or self._doubt[who].shape != base.shape:
            return bound, spread
        largest = (base - make_real(old_record.tensor)).abs().max() if base.numel() else base.sum()
        travel = 2 * largest * self._doubt[who]
        if self._carried:
            travel = self._travel[who] = travel + self._travel.get(who, torch.zeros_like(base))
        return bound + travel, (spread.square() + (travel / 4).square()).sqrt()

    def _divides(self, key: Key) -> bool:
        return Key(key.step, Kind.STATE, f"{key.name}.exp_avg_sq") in self._reference.records


class Fixed(Tolerances):
    """Tolerances without runs that show what rounding does: a share of each tensor's largest element, by its type.

    Args:
        reference: the run that is compared with.
        unit: the program's unit roundoff where it is coarser.
        stored: the unit roundoff in which the program stores parameters, where it is coarser.
    """

    def __init__(self, reference: Trace, unit: float | None = None, stored: float | None = None) -> None:
        super().__init__(reference, [], unit, stored)
        self._coarser = max(unit or 0.0, stored or 0.0)
        self.share = max((self._share(record) for record in reference), default=0.0)
        """The largest share of all tensors."""

    def of(self, record: Record) -> Tolerance:
        """The tolerance of a record of the reference; ask in the order of the records, since updates add up."""
        base = make_real(record.tensor)
        share = self._share(record)
        finite = torch.nan_to_num(base.abs(), nan=0.0, posinf=0.0)
        largest = float(finite.max()) if finite.numel() else 0.0
        spread = torch.full_like(base, share * float(finite.square().mean().sqrt()) if finite.numel() else 0.0)
        bound = torch.full_like(base, share * largest)
        bound, spread = self._widen_by_signs(record.key, base, bound, spread)
        return Tolerance(bound, spread, NORM)

    def _share(self, record: Record) -> float:
        unit = compute_unit(record.tensor.dtype)
        return min(_MOST_SHARE, _SHARE * max(unit, self._coarser)) if unit else 0.0


def _compute_levels(spread: torch.Tensor) -> torch.Tensor:
    """What an element moves by, as its row, its column and the whole tensor have it.

    Six runs tell little of one element: some come out still by chance. Rows and columns move alike.
    """
    if not spread.numel():
        return spread
    square = spread.square()
    mean = square.mean()
    level = mean.expand_as(square)
    if spread.dim() > 1 and float(mean):
        separable = torch.ones_like(square)
        for dim in range(spread.dim()):
            others = [other for other in range(spread.dim()) if other != dim]
            along = square.mean(others, keepdim=True)
            level = torch.maximum(level, along.expand_as(square))
            separable = separable * along / mean
        level = torch.maximum(level, separable * mean)
    return level.sqrt()


def _compute_by_size(spread: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """What an element moves by, as others of about its size do, relative to their size.

    Squares of gradients need it: the largest of them move most, and are few in their rows and columns.
    """
    largest = float(size.max()) if size.numel() else 0.0
    if not largest:
        return torch.zeros_like(spread)
    # Half octaves below the largest element; what is smaller by 2**16 moves as all do.
    steps = (2 * torch.log2(largest / size.clamp(min=largest * 2.0**-16))).long().flatten()
    ratio = (spread / size.clamp(min=largest * 2.0**-16)).square().flatten()
    sums, counts = torch.bincount(steps, ratio, _STEPS), torch.bincount(steps, minlength=_STEPS).double()
    near = torch.ones(1, 1, 2 * _NEAR + 1, dtype=torch.float64)
    sums, counts = (torch.nn.functional.conv1d(one[None, None], near, padding=_NEAR)[0, 0] for one in (sums, counts))
    level = (sums / counts.clamp(min=1)).sqrt()
    return level[steps].reshape(spread.shape) * size
