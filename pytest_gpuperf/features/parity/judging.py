"""Compares what ranks hold with the reference, tensor by tensor, and finds the first that is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from pytest_gpuperf.features.parity.case import Case, Groups, compute_factor
from pytest_gpuperf.features.parity.causes import reductions
from pytest_gpuperf.features.parity.causes.cause import Cause
from pytest_gpuperf.features.parity.causes.find import find, list_facts
from pytest_gpuperf.features.parity.causes.places import find_wrong_mask, find_wrong_shape
from pytest_gpuperf.features.parity.evidence import Evidence, Question, compute_margin
from pytest_gpuperf.features.parity.inferring import infer
from pytest_gpuperf.features.parity.layout import WHOLE, Layout, LayoutError, Part, cut_as_declared
from pytest_gpuperf.features.parity.records import Key, Kind, Record
from pytest_gpuperf.features.parity.tolerance import BLIND, Tolerance, make_real

_TINY = 1e-300
_MOST_CASES = 24
"""Wrong tensors whose causes are looked for: what follows from the first ones tells little more."""


@dataclass(frozen=True, repr=False)
class Judged:
    """One tensor's comparison."""

    key: Key
    title: str
    ok: bool
    off: float
    """Norm of the difference, relative to the reference's; the largest of all ranks."""
    slack: float
    """The smallest relative fault (norm) that is seen."""
    strain: float = 0.0
    """The larger of its two statistics, relative to their limits; above 1 it is wrong."""
    note: str = ""
    """Why it was not judged, or what is wrong with its shape."""
    prove: Callable[[], Case] | None = None
    """Makes the case of a wrong tensor, which takes time."""

    @cached_property
    def case(self) -> Case | None:
        """What may explain it; None if it is right, or one of many that are wrong."""
        return self.prove() if self.prove is not None else None

    def __repr__(self) -> str:
        return f"Judged({self.title}, ok={self.ok})"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a comparison found."""

    judged: Sequence[Judged]
    first: Judged | None = None
    """The first wrong tensor in order of computation."""
    cause: Cause | None = None
    explained: Judged | None = None
    """The wrong tensor that the cause explains: the first, or a later one if nothing explains the first."""
    facts: Sequence[str] = ()
    undecided: Sequence[Judged] = ()
    """Tensors that were not judged."""
    parts: Mapping[Key, Mapping[int, Part]] = field(default_factory=dict)
    """Which part of a parameter or an optimizer state each rank holds."""

    def __repr__(self) -> str:
        return f"Verdict(ok={self.ok}, first={self.first!r}, cause={self.cause!r})"

    @property
    def ok(self) -> bool:
        """Whether nothing that counts is wrong."""
        return self.first is None

    @property
    def wrong(self) -> list[Judged]:
        """Wrong tensors that count."""
        return [one for one in self.judged if not one.ok and one.key.is_judged]


def judge(question: Question) -> Verdict:
    """Judges each tensor of the reference that ranks hold.

    Raises:
        LayoutError: a declared layout cannot be read, or names nothing; or the mesh has another number of ranks.
    """
    return _Judge(question).verdict()


def list_groups(mesh: Mapping[str, int], meshes: Sequence[Mapping[str, int]], world: int) -> list[Groups]:
    """Groups of ranks in which a reduction may be missing: axes of meshes, all ranks, and other regular groups."""
    found: dict[tuple[tuple[int, ...], ...], str] = {}
    for one in [mesh, *meshes]:
        if one and math.prod(one.values()) == world:
            grid = torch.arange(world).reshape(tuple(one.values()))
            for dim, name in enumerate(one):
                if one[name] > 1:
                    ranks = tuple(map(tuple, grid.movedim(dim, -1).reshape(-1, one[name]).tolist()))
                    found.setdefault(ranks, f"axis {name}" if one[name] < world else "all ranks")
    if world > 1:
        found.setdefault((tuple(range(world)),), "all ranks")
    for size in range(2, world):
        if world % size == 0:
            near = tuple(tuple(range(begin, begin + size)) for begin in range(0, world, size))
            far = tuple(tuple(range(begin, world, world // size)) for begin in range(world // size))
            found.setdefault(near, f"neighbours in groups of {size}")
            found.setdefault(far, f"ranks {world // size} apart")
    return [Groups(text, ranks) for ranks, text in found.items()]


class _Judge:
    def __init__(self, question: Question) -> None:
        self._ask = question
        self._world = len(question.traces)
        self._mesh = dict(question.mesh)
        if self._mesh and (math.prod(self._mesh.values()) != self._world or min(self._mesh.values()) < 1):
            axes = ", ".join(f"{name}={size}" for name, size in self._mesh.items())
            raise LayoutError(f"mesh {axes}: the run has {self._world} ranks: give sizes whose product that is")
        meshes = [dict(mesh) for trace in question.traces[:1] for mesh in trace.meshes]
        if not self._mesh and meshes:
            self._mesh = meshes[0]
        self._groups = list_groups(self._mesh, meshes, self._world)
        self._evidence = Evidence(question, self._groups)
        self._known = self._evidence.known
        self._astray: set[str] = set()
        self._loss: float | None = None
        self._kinds = {record.key.kind for trace in question.traces for record in trace}
        self._used: set[str] = set()
        self._cases = 0
        self._parts: dict[Key, Mapping[int, Part]] = {}
        self._order: tuple[int, ...] = ()

    def verdict(self) -> Verdict:
        return replace(self._judge_findings(), parts=self._parts)

    def _judge_findings(self) -> Verdict:
        judged = [one for record in self._ask.reference if (one := self._judge(record)) is not None]
        unused = [name for name in self._ask.layouts if name not in self._used]
        if unused:
            names = sorted({record.key.name for record in self._ask.reference if not record.key.auto})
            raise LayoutError(
                f"layouts= names {', '.join(map(repr, unused))}, and the reference holds {', '.join(names[:20])}"
            )
        undecided = [one for one in judged if one.ok and one.note and one.key.is_judged]
        wrong = [one for one in judged if not one.ok]
        blamed = [one for one in wrong if one.key.is_judged]
        if not blamed:
            return Verdict(judged, undecided=undecided)
        first = self._find_first(judged, blamed)
        after = [one for one in wrong if one is not first and (one.key.is_judged or one.key.auto)]
        for one in [first, *after][:_MOST_CASES]:
            cause = self._find_cause(one)
            if cause is not None:
                return Verdict(judged, first, cause, one, self._list_facts(first), undecided)
        return Verdict(judged, first, None, None, self._list_facts(first), undecided)

    @staticmethod
    def _list_facts(first: Judged) -> list[str]:
        return list_facts(first.case) if first.case is not None and not first.note else []

    @staticmethod
    def _find_cause(judged: Judged) -> Cause | None:
        if judged.case is None:
            return None
        if judged.note:
            return find_wrong_shape(judged.case)
        return find(judged.case)

    def _find_first(self, judged: Sequence[Judged], blamed: Sequence[Judged]) -> Judged:
        """The first wrong tensor; a partial activation only if the next tensor is wrong because of it."""
        candidate: Judged | None = None
        for one in judged:
            if one.key.kind is Kind.OUTPUT_GRADIENT and not one.ok:
                # Its factor depends on the loss, so it is no evidence by itself; zeros elsewhere are.
                candidate = one if one.case is not None and find_wrong_mask(one.case) is not None else None
                continue
            if one.ok:
                if not one.key.kind.is_activation:
                    candidate = None
                continue
            if not one.key.kind.is_activation:
                return candidate or one
            if one.case is not None and reductions.find_partial_sums(one.case) is not None:
                candidate = one
                continue
            return candidate or one
        return blamed[0]

    def _judge(self, record: Record) -> Judged | None:
        key = record.key
        if key.auto and key.name in self._astray:
            return None
        held = {rank: trace.records[key] for rank, trace in enumerate(self._ask.traces) if key in trace.records}
        title = self._ask.reference.title(key)
        if not held:
            if key.is_judged and key.kind in self._kinds:
                return Judged(key, title, False, math.inf, math.inf, math.inf, "no rank holds it")
            return None
        whole = make_real(record.tensor)
        got = {rank: make_real(one.tensor) for rank, one in held.items()}
        tolerance = self._ask.tolerances.of(record)
        layout = self._find_layout(record, held, got, whole)
        if layout is None:
            if not key.is_judged:
                return None
            shapes = ", ".join(map(str, sorted({tuple(one.shape) for one in got.values()})))
            note = f"ranks hold {shapes}, which no layout of {tuple(whole.shape)} gives"
            prove = partial(self._evidence.case, record, got, dict.fromkeys(got, WHOLE), whole, tolerance)
            return Judged(key, title, False, math.inf, math.inf, math.inf, note, prove)
        if key.kind is Kind.START:
            self._known[key.auto, key.name] = layout.parts
        elif key.kind in (Kind.PARAMETER, Kind.STATE):
            self._parts[key] = layout.parts
        return self._compare(record, title, got, layout, whole, tolerance)

    def _find_layout(
        self, record: Record, held: Mapping[int, Record], got: dict[int, torch.Tensor], whole: torch.Tensor
    ) -> Layout | None:
        """Each rank's part; adds up in ``got`` what is declared, or known, to be partial."""
        key = record.key
        text = self._read_declaration(key)
        if text is not None and text.startswith("partial"):
            if any(one.shape != whole.shape for one in got.values()):
                return None
            total = torch.stack(list(got.values())).sum(0) / (len(got) if "mean" in text else 1)
            got.update(dict.fromkeys(got, total))
            return Layout(dict.fromkeys(got, WHOLE), "declared")
        if text is not None:
            parts = {rank: cut_as_declared(text, rank, self._mesh, self._world, whole.shape) for rank in got}
            if any(part.of(whole).shape != got[rank].shape for rank, part in parts.items()):
                return None
            return Layout(parts, "declared")
        self._add_up(held, got)
        owner = key.name.rpartition(".")[0] if key.kind is Kind.STATE else key.name
        known = None
        if key.kind in (Kind.GRADIENT, Kind.PARAMETER, Kind.STATE):
            known = self._known.get((key.auto, owner))
        elif key.kind is Kind.VALUE:
            titles = {title: name for name, title in self._ask.reference.titles.items()}
            known = self._known.get((True, titles.get(key.name, "")))
        held = {rank: replace(one, tensor=got[rank]) for rank, one in held.items()}
        # The order of a batch's shares is free; that of a parameter's shards is not.
        free = key.kind.is_activation or key.kind is Kind.RESULT
        layout = infer(held, whole, known, free=free, order=self._order if free else ())
        if layout is not None and layout.order and layout.source == "content":
            self._order = layout.order
        return layout

    @staticmethod
    def _add_up(held: Mapping[int, Record], got: dict[int, torch.Tensor]) -> None:
        """Adds up DTensors that are partial over axes of their mesh."""
        if not any(one.placement is not None and "partial" in one.placement.placements for one in held.values()):
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, one in held.items():
            if one.placement is None:
                return
            place = zip(one.placement.coordinate, one.placement.placements, strict=True)
            groups.setdefault(tuple(at for at, text in place if text != "partial"), []).append(rank)
        for ranks in groups.values():
            total = torch.stack([got[rank] for rank in ranks]).sum(0)
            got.update(dict.fromkeys(ranks, total))

    def _read_declaration(self, key: Key) -> str | None:
        if key.auto:
            return None
        for name, text in self._ask.layouts.items():
            if name == key.name or ("*" in name and re.fullmatch(re.escape(name).replace(r"\*", ".*"), key.name)):
                self._used.add(name)
                return text
        return None

    def _compare(
        self,
        record: Record,
        title: str,
        got: dict[int, torch.Tensor],
        layout: Layout,
        whole: torch.Tensor,
        tolerance: Tolerance,
    ) -> Judged | None:
        key = record.key
        bound, spread = tolerance.bound, tolerance.spread
        if key.kind is Kind.OUTPUT_GRADIENT:
            # The loss that is differentiated may be a rank's own mean: its factor is found once, at the last output.
            if self._loss is None:
                self._loss = _compute_usual_factor([(got[rank], layout.parts[rank].of(whole)) for rank in got])
            whole, bound, spread = whole * self._loss, bound * abs(self._loss), spread * abs(self._loss)
        worst = norm = off = slack = 0.0
        for rank, part in layout.parts.items():
            want, tau = part.of(whole), part.of(bound)
            difference = (got[rank] - want).abs()
            same = (got[rank] == want) | (got[rank].isnan() & want.isnan())
            difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf).masked_fill(
                same | tau.isinf(), 0.0
            )
            if not difference.numel():
                continue
            size, room = float(want.norm()), tolerance.norm * float(part.of(spread).norm())
            worst = max(worst, float((difference / (tau + _TINY)).max()))
            distance = float(difference.norm())
            norm = max(norm, distance / (room + _TINY))
            off = max(off, distance / (size + _TINY))
            slack = max(slack, room / (size + _TINY) if size else 0.0)
        ok = worst <= 1 and norm <= 1
        note = ""
        if bool(bound.isinf().any()):
            share = int(bound.isinf().sum())
            margin = compute_margin(self._ask.values.get(key), bound.isinf())
            within = f", within {margin:.1g} of each other" if margin is not None else ""
            note = f"{share} of {bound.numel()} choices are near ties{within}: rounding alone decides them"
        elif slack > BLIND and off < 10 * max(1.0, slack):
            ok, note = True, f"rounding alone may change it by {slack:.0%}"
        if key.kind is Kind.START and key.auto and not ok:
            self._astray.add(key.name)  # the program's optimizers number other parameters
            return None
        prove = None
        if not ok and not self._has_enough(key):
            prove = partial(self._evidence.case, record, got, layout.parts, whole, tolerance)
        return Judged(key, title, ok, off, slack, max(worst, norm), note if ok else "", prove)

    def _has_enough(self, key: Key) -> bool:
        """Whether so many tensors are wrong that nobody looks for this one's cause; activations place the first."""
        self._cases += not key.kind.is_activation
        return not key.kind.is_activation and self._cases > _MOST_CASES


def _compute_usual_factor(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The factor between what most elements are and should be; 1 if there is none. Masks leave it what it is."""
    held, want = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    large = (want.abs() > 1e-3 * want.abs().max()) & (held != 0) if want.numel() else want.bool()
    if not bool(large.any()):
        return 1.0
    ratios = held[large] / want[large]
    usual = ratios.median()
    near = (ratios - usual).abs() <= 0.1 * usual.abs()
    found = compute_factor(held[large][near], want[large][near])
    return found if math.isfinite(found) and found else 1.0
