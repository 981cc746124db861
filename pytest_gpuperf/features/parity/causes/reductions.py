"""Sums over ranks that are missing, done twice, or weighted wrongly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from pytest_gpuperf.features.parity.case import Case, compute_factor, format_ranks
from pytest_gpuperf.features.parity.causes.cause import Cause
from pytest_gpuperf.features.parity.records import Kind
from pytest_gpuperf.features.parity.splits import Split

_EXACT = 2e-2
"""Numbers have names only if rounding moves a tensor by less: with more, many numbers would do."""
_MOST_SUBSETS = 10


def find_partial_sums(case: Case) -> Cause | None:
    """The ranks hold addends, which nobody has added up."""
    for groups in case.groups:
        members = [[rank for rank in group if rank in case.got] for group in groups.ranks]
        if any(len(group) < 2 or len({case.got[rank].shape for rank in group}) > 1 for group in members):
            continue
        if any(case.parts[rank] != case.parts[group[0]] for group in members for rank in group):
            continue
        if all(_is_same(case, rank, group[0]) for group in members for rank in group):
            continue  # copies that agree are no parts, even if their sum happens to be right
        for word, divide in (("sum", False), ("mean", True)):
            if all(_adds_up(case, group, divide) for group in members):
                verb = "an all_reduce" if word == "sum" else "an all_reduce with the mean"
                declare = f'layouts={{"{case.key.name}": "partial({word})"}}'
                return Cause(
                    f"partial {word}",
                    f"each rank holds a part: their {word} over {groups.text} is right; {verb} over {groups.text} is "
                    f"missing (if ranks are meant to hold parts, declare it: {declare})",
                )
    return None


def _is_same(case: Case, rank: int, other: int) -> bool:
    return bool(((case.got[rank] - case.got[other]).abs() <= 4 * case.tau[rank]).all())


def _adds_up(case: Case, group: Sequence[int], divide: bool) -> bool:
    total = torch.stack([case.got[rank] for rank in group]).sum(0) / (len(group) if divide else 1)
    return all(case.fits(total, rank, room=2.0 * math.sqrt(len(group))) for rank in group)


def find_scaling(case: Case) -> Cause | None:
    """One factor on all ranks, which the numbers of ranks or microbatches explain."""
    if case.rough > _EXACT or (case.is_count and case.is_scalar):
        return None
    k = _find_common_factor(case)
    if k is None:
        return None
    if case.key.kind in (Kind.STATE, Kind.PARAMETER):
        return None  # the optimizer's own numbers are no numbers of ranks
    if abs(k + 1) < _EXACT and all(case.fits(-case.got[r], r) for r in case.got):
        return Cause("sign", "it has the wrong sign")
    numbers = list(case.numbers())
    if case.value is not None and any(way.squared for way in case.ways):
        # Of a norm, the squares were counted several times.
        numbers.sort(key=lambda number: "square root" not in number[1])
    for value, text in numbers:
        if all(case.fits(case.got[rank] / value, rank, room=2.0 * max(1.0, 1 / value)) for rank in case.got):
            return Cause("factor", f"times {k:.5g} = {text}: {_explain_factor(value, text)}")
    return None


def _explain_factor(value: float, text: str) -> str:
    if "square root" in text:
        return (
            "a sum of squares counts copies several times"
            if value > 1
            else "a sum of squares is divided as if of copies"
        )
    if value > 1:
        return "the mean is missing, or it is summed once too often (over ranks, or over as many microbatches)"
    return "the mean is taken once too often, or a sum is missing (over ranks, or over as many microbatches)"


def _find_common_factor(case: Case) -> float | None:
    found = [compute_factor(case.got[rank], case.want[rank]) for rank in sorted(case.got)]
    k = found[0]
    if not all(map(math.isfinite, found)) or k == 0 or abs(k - 1) < 1e-12:
        return None
    if any(not case.fits(case.got[rank] / k, rank, room=2.0 * max(1.0, 1 / abs(k))) for rank in case.got):
        return None
    return k


def find_wrong_weights(case: Case) -> Cause | None:
    """The terms of a sum have other weights: some are missing, some count twice, or shares weigh by the wrong count."""
    if case.rough > _EXACT or case.is_count:
        return None
    for way in case.ways:
        found = _find_weights(case, way)
        if found is not None:
            return _describe_weights(case, way, found)
    return None


def _find_weights(case: Case, way: Split) -> dict[int, list[float]] | None:
    """The weights on each wrong rank; None if no weights give what it holds."""
    if any(term.shape != case.whole.shape for term in way.terms):
        return None
    found = {}
    for rank in case.wrong:
        columns = torch.stack([case.parts[rank].of(term).flatten() for term in way.terms], 1)
        held, tau = case.got[rank].flatten(), case.tau[rank].flatten()
        if way.squared:
            held, tau = held.square(), 2 * held.abs() * tau
        # More numbers than weights must agree, so many that they cannot by chance.
        spare = len(held) - len(way.terms)
        enough = spare > 0 and spare * math.log10(max(case.rough, 1e-300)) < -10
        weights = _solve(columns, held, tau) if enough else _try_one_weight(case, columns, held, tau)
        if weights is None:
            return None
        found[rank] = weights
    return found


def _solve(columns: torch.Tensor, held: torch.Tensor, tau: torch.Tensor) -> list[float] | None:
    singular = torch.linalg.svdvals(columns)
    if not float(singular[-1]) > 1e-6 * float(singular[0]):
        return None  # other weights would do as well
    weights = torch.linalg.lstsq(columns, held[:, None]).solution.flatten()
    off = (columns @ weights - held).abs()
    # Each term brings its own rounding.
    room = 2.0 * (1 + float(weights.abs().max())) * math.sqrt(len(weights))
    if not bool((off <= room * tau).all()) or not bool(torch.isfinite(weights).all()):
        return None
    if float(off.norm()) > 0.01 * float((held - columns.sum(1)).norm()):
        return None  # the fit must leave next to nothing of the fault
    return [float(weight) for weight in weights]


def _try_one_weight(case: Case, columns: torch.Tensor, held: torch.Tensor, tau: torch.Tensor) -> list[float] | None:
    """Tries one weight, other than 1, on some of the terms: a tensor of few elements cannot be solved for more."""
    count = columns.shape[1]
    if count > _MOST_SUBSETS or not len(held):
        return None
    weights = [0.0, *(value for value, text in case.numbers() if "square" not in text)]
    room = 2.0 * tau + 1e-15 * columns.abs().sum(1)
    # By chance one of the trials may fit: the tolerance must be far smaller than what the trials differ by.
    trials = len(weights) * 2**count
    if float((room / held.abs().clamp(min=1e-300)).max()) * trials > 1e-2:
        return None
    total = columns.sum(1)
    for size in range(1, count + 1 if count == 1 else count):
        for chosen in itertools.combinations(range(count), size):
            part = columns[:, list(chosen)].sum(1)
            if not bool((part.abs() > 8 * room).any()):
                continue  # terms so small explain nothing
            for weight in weights:
                if bool(((total + (weight - 1) * part - held).abs() <= room).all()):
                    return [weight if index in chosen else 1.0 for index in range(count)]
    return None


def _describe_weights(case: Case, way: Split, found: dict[int, list[float]]) -> Cause | None:
    ranks = sorted(found)
    rows = [found[rank] for rank in ranks]
    mean = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    close = 1e-3
    if any(abs(a - b) > close * max(1.0, abs(b)) for row in rows for a, b in zip(row, mean, strict=True)):
        by_rank = "; ".join(f"{_show(row)} on rank {rank}" for rank, row in list(found.items())[:4])
        return Cause("weights", f"ranks weigh {way.text} differently: {by_rank}; all weights should be 1")
    missing = [index for index, weight in enumerate(mean) if abs(weight) < close]
    off = [index for index, weight in enumerate(mean) if abs(weight - 1) > close]
    if not off:
        return None
    shown = ", ".join(way.names[index] for index in off[:4])
    if missing == off:
        return Cause("missing terms", f"of {way.text}, these are missing: {shown}")
    values = {round(mean[index], 3) for index in off}
    if len(values) == 1 and len(off) < len(mean):
        weight = mean[off[0]]
        known = next((f" = {text}" for value, text in case.numbers() if abs(weight - value) < close * value), "")
        return Cause("weights", f"of {way.text}, these count {weight:.4g} times{known}: {shown}")
    text = f"{way.text} have the weights {_show(mean)}, which should all be 1"
    if min(mean) > close and len(mean) > 1:
        # With n_r tokens of N on R ranks, the mean of the ranks' means gives rank r the weight N / (R n_r).
        if abs(sum(1 / weight for weight in mean) / len(mean) - 1) < close:
            text += ": it is the mean of the shares' means; divide the sum over all by the number of all"
        elif abs(sum(mean) / len(mean) - 1) < close:
            text += ": shares count by something else than they should, such as sequences in place of tokens"
    return Cause("weights", text)


def _show(weights: Sequence[float]) -> str:
    return "[" + ", ".join("0" if abs(weight) < 1e-3 else f"{weight:.4g}" for weight in weights[:16]) + "]"


def find_constant(case: Case) -> Cause | None:
    """One number is added everywhere, and the number of ranks explains it."""
    if case.rough > _EXACT or case.is_count:
        return None
    offs = [case.got[rank] - case.want[rank] for rank in case.got]
    number = float(torch.cat([off.flatten() for off in offs]).mean()) if offs else 0.0
    if not number or any(not case.fits(case.got[rank] - number, rank) for rank in case.got):
        return None
    room = 2.0 * max(float(tau.max()) for tau in case.tau.values() if tau.numel())
    for groups in case.groups:
        value = math.log(groups.size) if groups.size > 1 else 0.0
        if value and abs(abs(number) - value) <= room and room < 1e-2:
            way = "once per rank" if number > 0 else "on one rank only"
            return Cause(
                "constant",
                f"off by {number:.6g} = {'-' if number < 0 else ''}log({groups.size}), of {groups.who}: "
                f"a normaliser (a sum of exponentials) is counted {way}",
            )
    return None


def find_same_rows(case: Case) -> Cause | None:
    """One vector was added to every row: a bias too often, or not at all."""
    offs = {rank: case.got[rank] - case.want[rank] for rank in case.wrong}
    found = _find_added_vector(case, offs)
    summed = "every row is"
    if found is None and not case.right and len({case.parts[rank] for rank in case.got}) == 1 and len(case.got) > 1:
        # Ranks hold addends that somebody adds up later, each with the vector in it.
        total = torch.stack(list(case.got.values())).sum(0)
        first = case.wrong[0]
        found = _find_added_vector(case, {first: total - case.want[first]})
        summed = "each rank holds a part, and every row of their sum is"
        if found is not None and not found[0]:
            return None
    if found is None:
        return None
    name, k = found
    if not name:
        return Cause("rows", "every row is off by the same vector: it is added to all of them too often, or never")
    if k == -1 and summed == "every row is":
        return Cause("bias", f"every row lacks {name}: it is added on no rank")
    for groups in case.groups:
        if k == groups.size - 1:
            return Cause(
                "bias",
                f"{summed} off by {k:g} times {name}: each of {groups.who} adds it; add it once, after the sum",
            )
    return Cause("bias", f"{summed} off by {k:g} times {name}")


def _find_added_vector(case: Case, offs: Mapping[int, torch.Tensor]) -> tuple[str, float] | None:
    """The vector that every row is off by, and how often; without a name if it is none that is known."""
    multiples: set[tuple[str, float]] = set()
    for rank, off in offs.items():
        if off.dim() < 2 or off.shape[-1] < 2 or off.numel() // off.shape[-1] < 2:
            return None
        rows, tau = off.reshape(-1, off.shape[-1]), case.tau[rank].reshape(-1, off.shape[-1])
        vector = rows.mean(0)
        if not bool(((rows - vector).abs() <= 2 * tau * math.sqrt(len(case.got))).all()):
            return None
        for name, known in case.vectors:
            if known.shape == vector.shape and float(known.norm()):
                k = compute_factor(vector, known)
                if abs(k) > 1e-6 and bool(((rows - k * known).abs() <= 3 * tau * (1 + abs(k))).all()):
                    multiples.add((name, round(k, 3)))
                    break
    return multiples.pop() if len(multiples) == 1 else ("", 0.0)


def find_added_tensor(case: Case) -> Cause | None:
    """Another tensor of the reference was added."""
    if case.rough > _EXACT or case.is_count:
        return None
    numbers = [(1.0, "once"), (-1.0, "it is missing"), *((n, text) for n, text in case.numbers() if n > 1)]
    for name, other in case.named:
        if other.shape != case.whole.shape or not float(other.norm()) or other.numel() < 4:
            continue
        for k, text in numbers:
            if all(_is_off_by(case, rank, k * case.parts[rank].of(other)) for rank in case.wrong):
                return Cause(
                    "another tensor", f"off by {k:g} times {name} ({text}): it was added, or left in the buffer"
                )
    return None


def _is_off_by(case: Case, rank: int, added: torch.Tensor) -> bool:
    """Whether a tensor explains the fault: within rounding, and all but a hundredth of it."""
    off = case.got[rank] - case.want[rank]
    rest = off - added
    return bool((rest.abs() <= 3 * case.tau[rank]).all()) and float(rest.norm()) <= 0.01 * float(off.norm())


def find_one_factor(case: Case) -> Cause | None:
    """One factor on all ranks, which no number of ranks explains."""
    if case.rough > _EXACT or case.evidence < 4 or case.is_count:
        return None
    k = _find_common_factor(case)
    if k is None:
        return None
    if case.key.kind is Kind.STATE:
        return Cause("optimizer", f"times {k:.6g} on all ranks: the optimizer has other settings, or another gradient")
    return Cause(
        "one factor",
        f"times {k:.6g} on all ranks, which no number of ranks explains: a norm, a count or a rate that it is "
        "multiplied with is wrong",
    )


def by_rank(case: Case) -> Cause | None:
    """Each rank has a factor of its own."""
    if case.rough > _EXACT or len(case.got) < 2 or case.evidence < 4 or case.is_count:
        return None
    factors = {}
    for rank in sorted(case.got):
        k = compute_factor(case.got[rank], case.want[rank])
        if not math.isfinite(k) or k == 0 or not case.fits(case.got[rank] / k, rank, room=2.0 * max(1.0, 1 / abs(k))):
            return None
        factors[rank] = k
    shown = ", ".join(f"{k:.5g} on rank {rank}" for rank, k in list(factors.items())[:8])
    return Cause("factor by rank", f"each rank has a factor of its own: {shown}; they should agree, and be 1")


def find_affine(case: Case) -> Cause | None:
    """Each rank shifts and scales by numbers of its own, as if it took statistics of its part."""
    if case.rough > _EXACT or case.evidence < 8 or len(case.got) < 2 or case.is_count:
        return None
    if case.count_values(case.whole) < 4:
        return None  # two numbers fit any two values
    found: dict[int, tuple[float, float]] = {}
    for rank in sorted(case.got):
        held, want = case.got[rank].flatten(), case.want[rank].flatten()
        kept = (want != 0) | (held != 0)  # what a mask leaves out is 0 on both sides
        if int(kept.sum()) < 4:
            return None
        columns = torch.stack([want[kept], torch.ones(int(kept.sum()), dtype=want.dtype)], 1)
        if not float(torch.linalg.svdvals(columns)[-1]) > 1e-9:
            return None
        scale, shift = (float(x) for x in torch.linalg.lstsq(columns, held[kept][:, None]).solution.flatten())
        off = (scale * want[kept] + shift - held[kept]).abs()
        if not bool((off <= 3 * (1 + abs(scale)) * case.tau[rank].flatten()[kept]).all()):
            return None
        found[rank] = scale, shift
    classes: dict[tuple[float, float], list[int]] = {}
    for rank, (scale, shift) in found.items():
        near = next(
            (
                key
                for key in classes
                if math.isclose(key[0], scale, rel_tol=1e-6) and math.isclose(key[1], shift, rel_tol=1e-6, abs_tol=1e-9)
            ),
            None,
        )
        classes.setdefault(near or (scale, shift), []).append(rank)
    together = "; ".join(format_ranks(ranks) for ranks in classes.values())
    if len(classes) == 1:
        return Cause(
            "statistics",
            "it is shifted and scaled by the same numbers on all ranks: its mean and spread are of other elements",
        )
    axis = next(
        (groups.text for groups in case.groups if sorted(map(list, groups.ranks)) == sorted(classes.values())), ""
    )
    over = f", the groups of {axis}" if axis else ""
    return Cause(
        "statistics",
        f"it is shifted and scaled by other numbers on each of: {together}{over}. Mean and spread are taken over these "
        "ranks only; reduce their sums over all ranks that share the data",
    )
