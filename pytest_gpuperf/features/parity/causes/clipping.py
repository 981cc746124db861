"""Gradients that are clipped by a wrong norm: its squares are counted otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_gpuperf.features.parity.case import Case, Squares, compute_factor, format_ranks
from pytest_gpuperf.features.parity.causes.cause import Cause
from pytest_gpuperf.features.parity.operations import Value, iterate_ancestors
from pytest_gpuperf.features.parity.records import Kind

_SCALES = frozenset("mul mul_ div div_ _foreach_mul _foreach_mul_ _foreach_div _foreach_div_".split())  # noqa: SIM905
_NORMS = frozenset("linalg_vector_norm norm sqrt sqrt_ _foreach_norm".split())  # noqa: SIM905
_COPIES = frozenset("_to_copy alias clone copy_ detach".split())  # noqa: SIM905
_CHANCE = 1e-2
"""Trials times the share of numbers that each accepts: above it, one may fit by chance."""


def find_clipping(case: Case) -> Cause | None:
    """One factor on all gradients, since the norm that they are clipped by is wrong.

    A factor before the clipping would leave no trace, because clipped gradients have the norm that they are clipped to.
    """
    if case.key.kind is not Kind.GRADIENT or not case.squares or not _is_clipped(case.value):
        return None
    factors = {rank: compute_factor(case.got[rank], case.want[rank]) for rank in sorted(case.got)}
    if any(
        not k > 0 or not case.fits(case.got[rank] / k, rank, room=2 * max(1.0, 1 / k)) for rank, k in factors.items()
    ):
        return None
    total = sum(one.whole for one in case.squares)
    room = 2.5 * case.rough + 1e-12  # of the norm's square
    used = {rank: total / k**2 for rank, k in factors.items()}
    if all(abs(square / total - 1) <= 2 * room for square in used.values()):
        return None
    own = {rank: sum(one.own.get(rank, 0.0) for one in case.squares) for rank in used}
    if all(math.isclose(used[rank], own[rank], rel_tol=room) for rank in used) and room < _CHANCE:
        return Cause("clip", "each rank clips by the norm of its own parts: add up the squares over the ranks first")
    k = next(iter(factors.values()))
    if any(not math.isclose(square, total / k**2, rel_tol=room) for square in used.values()):
        return None
    ways = list(_iterate_ways(case))
    if len(ways) * room > _CHANCE:
        return None
    texts = [text for square, text in ways if math.isclose(square, total / k**2, rel_tol=room)]
    if not texts:
        return None
    return Cause(
        "clip",
        f"times {k:.5g}: the norm that gradients are clipped by is wrong: " + ", or ".join(dict.fromkeys(texts[:3])),
    )


def _is_clipped(value: Value | None) -> bool:
    """Whether the reference multiplied the gradient by a number, other than 1, that comes from a norm."""
    while value is not None and value.operation is not None and value.operation.name in _COPIES:
        value = value.operation.inputs[-1] if value.operation.inputs else None
    operation = value.operation if value is not None else None
    if operation is None or operation.name not in _SCALES:
        return False
    numbers = [one for one in operation.inputs if one.tensor.numel() == 1 and float(one.tensor) != 1]
    return any(
        made.operation is not None and made.operation.name in _NORMS
        for number in numbers
        for made in iterate_ancestors(number, set())
    )


def _iterate_ways(case: Case) -> Iterator[tuple[float, str]]:
    """Squares of norms in which some parameters count otherwise, the most usual first."""
    sizes = sorted({group.size for group in case.groups if group.size > 1})
    split = [one for one in case.squares if one.is_split]
    copied = [one for one in case.squares if not one.is_split]
    for size in sizes:
        yield _compute_total(case, case.squares, size), f"every square is counted {size} times, as if copies were parts"
    for some, what in ((split, "parameters that ranks hold parts of"), (copied, "parameters that all ranks hold")):
        if some and len(some) < len(case.squares):
            yield from _count_norms(case, some, what, sizes)
    for one in case.squares:
        yield from _count_norms(case, [one], one.name, sizes)


def _count_norms(case: Case, some: Sequence[Squares], what: str, sizes: Sequence[int]) -> Iterator[tuple[float, str]]:
    parts = some[0].is_split
    for size in sizes:
        yield _compute_total(case, some, size), f"squares of {what} are counted {size} times"
        if parts:
            yield (
                _compute_total(case, some, 1 / size),
                f"squares of {what} are averaged over {size} ranks; they must be summed",
            )
    yield _compute_total(case, some, 0), f"squares of {what} are left out"
    for rank in sorted(case.got) if parts else []:
        inside = sum(one.own.get(rank, 0.0) for one in some)
        yield _compute_total(case, some, 0) + inside, f"of {what}, only the part of {format_ranks([rank])} is counted"


def _compute_total(case: Case, some: Sequence[Squares], times: float) -> float:
    return sum(one.whole * (times if one in some else 1) for one in case.squares)
