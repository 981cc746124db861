"""Asks the hypotheses in their order, the most specific first."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_gpuperf.features.parity.case import Case, ranks_text
from pytest_gpuperf.features.parity.causes import clipping, content, places, reductions, stale
from pytest_gpuperf.features.parity.causes.cause import Cause

HYPOTHESES: tuple[tuple[str, Callable[[Case], Cause | None]], ...] = (
    ("a count of steps", stale.counted),
    ("numbers that are not finite", content.not_finite),
    ("another mask", places.masked),
    ("zeros", content.zeros),
    ("a missing update", stale.unchanged),
    ("a missing reduction", reductions.partial),
    ("parts of other ranks", places.permuted),
    ("other parameters at the start", stale.start),
    ("a value of another step", stale.earlier),
    ("a value that does not move", stale.frozen),
    ("blocks in another order", places.blocks),
    ("vectors at another place", places.misplaced),
    ("another norm in the clipping", clipping.clipped),
    ("a factor of ranks or microbatches", reductions.scaled),
    ("another factor", reductions.one_factor),
    ("a constant", reductions.constant),
    ("a bias", reductions.same_rows),
    ("a scaled update or weight decay", stale.rescaled_update),
    ("other weights of its terms", reductions.weighted),
    ("keys that count otherwise", places.keys),
    ("another tensor added to it", reductions.combined),
    ("rounding to 16 bits", content.rounded),
    ("statistics of a part", reductions.affine),
    ("factors by rank", reductions.by_rank),
    ("padding", content.padded),
    ("draws of its own on each rank", content.apart),
    ("a wrong count", content.miscounted),
)


def find(case: Case) -> Cause | None:
    """The first hypothesis that the tensor agrees with; None if it agrees with none.

    A fault that is hardly larger than rounding has no cause: too many hypotheses would do.
    """
    if case.is_faint:
        return None
    for _, hypothesis in HYPOTHESES:
        try:
            cause = hypothesis(case)
        except (RuntimeError, IndexError, ZeroDivisionError, torch.linalg.LinAlgError):
            continue  # shapes that the hypothesis is not about
        if cause is not None:
            return cause
    return None


def try_hypotheses() -> str:
    """All hypotheses in words."""
    return ", ".join(text for text, _ in HYPOTHESES)


def where(case: Case) -> list[str]:
    """Where the tensor is wrong: ranks, places, since when. These are facts, and no causes."""
    facts = []
    if case.right:
        facts.append(
            f"{ranks_text(case.right)} {'is' if len(case.right) == 1 else 'are'} right, {ranks_text(case.wrong)} wrong"
        )
    copies: dict[str, list[int]] = {}
    for rank in sorted(case.got):
        copies.setdefault(case.parts[rank].text, []).append(rank)
    for ranks in copies.values():
        if len(ranks) > 1 and any(not torch.equal(case.got[rank], case.got[ranks[0]]) for rank in ranks):
            facts.append(f"{ranks_text(ranks)} must hold the same, and differ")
            break
    if case.drawn:
        facts.append(
            f"the reference draws random numbers ({', '.join(case.drawn)}), which ranks may draw otherwise: set "
            "dropout's rate to 0 for this test"
        )
    rank = case.wrong[0]
    off = (case.got[rank] - case.want[rank]).abs() > case.tau[rank]
    for dim in range(off.dim() if off.numel() > 3 else 0):
        at = off.transpose(0, dim).reshape(off.shape[dim], -1).any(1).nonzero().flatten().tolist()
        n = off.shape[dim]
        if at and len(at) < n:
            if at == list(range(at[0], n)):
                facts.append(f"right up to {at[0] - 1} along dimension {dim}, wrong from {at[0]} of {n} on")
            elif at == list(range(at[0], at[-1] + 1)):
                facts.append(f"wrong only at {at[0]} to {at[-1]} of {n} along dimension {dim}")
            elif len(at) <= n // 2:
                facts.append(f"wrong only at {at[:6]} of {n} along dimension {dim}")
            break
    return facts
