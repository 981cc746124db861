"""A wrong tensor, with all that may explain it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from pytest_gpuperf.features.parity.layout import Part
from pytest_gpuperf.features.parity.operations import Value
from pytest_gpuperf.features.parity.records import Key
from pytest_gpuperf.features.parity.splits import Split, iterate_splits

_FAINT = 16.0
"""Tolerances that a fault must exceed somewhere for its cause to be looked for."""

Tensors = Mapping[int, torch.Tensor]
"""By rank."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Ranks in groups, as an axis of a mesh makes them."""

    text: str
    ranks: tuple[tuple[int, ...], ...]

    @property
    def who(self) -> str:
        """A group's ranks, in words."""
        return f"the {self.size} ranks" + (f" of {self.text}" if len(self.ranks) > 1 else "")

    @property
    def size(self) -> int:
        """How many ranks a group has."""
        return len(self.ranks[0])


@dataclass(frozen=True, slots=True)
class Squares:
    """A gradient's sums of squares, as a norm of all gradients adds them up."""

    name: str
    whole: float
    own: Mapping[int, float]
    """The sum of squares of each rank's part, by rank."""
    is_split: bool
    """Whether ranks hold parts."""


@dataclass(frozen=True, repr=False)
class Case:
    """A wrong tensor as each rank has it and should have it, float64."""

    key: Key
    title: str
    got: Tensors
    want: Tensors
    tau: Tensors
    """The tolerance of each element."""
    parts: Mapping[int, Part]
    whole: torch.Tensor
    world: int
    groups: Sequence[Groups]
    """Axes of the mesh, then all ranks, then other regular groups."""
    microbatches: int = 1
    base: Tensors = field(default_factory=dict)
    """A parameter's value on each rank before the update."""
    earlier: Sequence[tuple[str, torch.Tensor]] = ()
    """The reference's tensor at earlier points, by what they are: whole tensors of the same shape."""
    later: Sequence[tuple[str, torch.Tensor]] = ()
    """An input's tensors of later steps, likewise."""
    squares: Sequence[Squares] = ()
    """Sums of squares of all gradients of the step, if the tensor is a gradient."""
    coarse: torch.dtype | None = None
    """The dtype that ranks hold, if it is coarser than the reference's."""
    named: Sequence[tuple[str, torch.Tensor]] = ()
    """Other tensors of the reference, by name."""
    vectors: Sequence[tuple[str, torch.Tensor]] = ()
    """Rows that the reference added to others, such as biases."""
    value: Value | None = None
    """The tensor among the reference's operations."""
    shares: Sequence[torch.Tensor] = ()
    """The reference's tensor on each rank's share of the batch."""
    drawn: Sequence[str] = ()
    """Operations of the reference that drew random numbers by what was computed."""

    def fits(self, held: torch.Tensor, rank: int, want: torch.Tensor | None = None, room: float = 2.0) -> bool:
        """Whether a tensor equals what the rank should hold, up to rounding."""
        want = self.want[rank] if want is None else want
        return held.shape == want.shape and bool((held - want).abs().le(room * self.tau[rank]).all())

    @cached_property
    def wrong(self) -> list[int]:
        """Ranks whose tensor is wrong."""
        found = [rank for rank in sorted(self.got) if not self.fits(self.got[rank], rank, room=1.0)]
        return found or sorted(self.got)

    @cached_property
    def right(self) -> list[int]:
        """Ranks whose tensor is right."""
        return [rank for rank in sorted(self.got) if rank not in self.wrong]

    @cached_property
    def is_faint(self) -> bool:
        """Whether the fault is hardly larger than what hypotheses are granted for rounding."""
        return all(
            self.got[rank].shape == self.want[rank].shape and self.fits(self.got[rank], rank, room=_FAINT)
            for rank in self.got
        )

    @property
    def is_scalar(self) -> bool:
        """Whether the whole tensor is one number."""
        return self.whole.numel() == 1

    @cached_property
    def is_count(self) -> bool:
        """Whether the whole tensor and all that ranks hold are whole numbers."""
        return all(bool((t == t.round()).all()) for t in (self.whole, *self.got.values()))

    def count_values(self, of: torch.Tensor) -> int:
        """How many values of a tensor are further apart than rounding: few are met in any order, as Adam's first steps.

        Args:
            of: the whole tensor, or what a rank holds.
        """
        room = max((float(tau.max()) for tau in self.tau.values() if tau.numel()), default=0.0)
        return 1 + int((of.flatten().sort().values.diff() > 2 * room).sum())

    @cached_property
    def rough(self) -> float:
        """How large the tolerance is, relative to the tensor (norms); 1 and more tells nothing apart."""
        size = max(float(self.whole.norm()), 1e-300)
        return max((float(tau.norm()) for tau in self.tau.values()), default=0.0) / size

    @cached_property
    def evidence(self) -> int:
        """How many elements of a wrong rank a hypothesis with few unknowns has to meet."""
        return self.got[self.wrong[0]].numel()

    @cached_property
    def ways(self) -> list[Split]:
        """Ways to take the reference's tensor apart."""
        found: list[Split] = []
        if len(self.shares) > 1:
            names = tuple(f"rank {rank}" for rank in range(len(self.shares)))
            found.append(Split("the gradients of the ranks' shares of the batch", names, tuple(self.shares)))
        if self.value is not None:
            counts = {
                self.world,
                *(group.size for group in self.groups),
                self.microbatches,
                self.world * self.microbatches,
                2,
                4,
            }
            # An operation of another kind than its name says explains nothing.
            with contextlib.suppress(RuntimeError, TypeError, IndexError, NotImplementedError):
                found += iterate_splits(self.value, sorted(count for count in counts if 1 < count <= 16))
        return found

    def numbers(self) -> Iterator[tuple[float, str]]:
        """Factors that a layout explains, by value; the most telling ones first."""
        plain = [(group.size, group.who) for group in self.groups if group.size > 1]
        # Sizes of one number are one factor: which axis it is remains open.
        named: dict[int, list[str]] = {}
        for size, text in plain:
            named.setdefault(size, []).append(text)
        if self.microbatches > 1:
            named.setdefault(self.microbatches, []).append(f"the {self.microbatches} microbatches")
            named.setdefault(self.microbatches * self.world, []).append(
                f"{self.microbatches * self.world}, microbatches times ranks"
            )
        shapes: tuple[tuple[Callable[[float], float], str], ...] = (
            (float, "{}"),
            (lambda n: 1 / n, "1 over {}"),
            (math.sqrt, "the square root of {}"),
            (lambda n: 1 / math.sqrt(n), "1 over the square root of {}"),
            (lambda n: n * n, "the square of {}"),
            (lambda n: 1 / (n * n), "1 over the square of {}"),
        )
        for shape, form in shapes:
            for size, texts in named.items():
                yield shape(size), form.format(" or ".join(dict.fromkeys(texts[:2])))


def compute_factor(held: torch.Tensor, want: torch.Tensor) -> float:
    """The k for which ``held`` is nearest to ``k want``; nan if there is none."""
    square = float((want * want).sum())
    return float((held * want).sum()) / square if square else math.nan


def format_ranks(ranks: Sequence[int], world: int = 0) -> str:
    """Ranks in words: ``rank 2``, ``ranks 0 and 2``, ``all ranks``."""
    if world and len(ranks) == world and world > 1:
        return "all ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"{len(ranks)} ranks, {ranks[0]} the first"
    return "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
