"""Asks the hypotheses in their order, the most specific first."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_gpuperf.features.parity.case import Case, format_ranks
from pytest_gpuperf.features.parity.causes import clipping, content, places, reductions, stale
from pytest_gpuperf.features.parity.causes.cause import Cause

HYPOTHESES: tuple[tuple[str, Callable[[Case], Cause | None]], ...] = (
    ("a count of steps", stale.find_wrong_step_count),
    ("numbers that are not finite", content.find_not_finite),
    ("another mask", places.find_wrong_mask),
    ("zeros", content.find_zeros),
    ("a missing update", stale.find_unchanged),
    ("a missing reduction", reductions.find_partial_sums),
    ("parts of other ranks", places.find_permuted_parts),
    ("other parameters at the start", stale.start),
    ("a value of another step", stale.find_earlier_value),
    ("a value that does not move", stale.find_frozen),
    ("blocks in another order", places.find_moved_blocks),
    ("vectors at another place", places.find_misplaced),
    ("another norm in the clipping", clipping.find_clipping),
    ("a factor of ranks or microbatches", reductions.find_scaling),
    ("another factor", reductions.find_one_factor),
    ("a constant", reductions.find_constant),
    ("a bias", reductions.find_same_rows),
    ("a scaled update or weight decay", stale.find_rescaled_update),
    ("other weights of its terms", reductions.find_wrong_weights),
    ("keys that count otherwise", places.find_wrong_keys),
    ("another tensor added to it", reductions.find_added_tensor),
    ("rounding to 16 bits", content.find_rounding),
    ("statistics of a part", reductions.find_affine),
    ("factors by rank", reductions.by_rank),
    ("padding", content.find_padding),
    ("random numbers that differ between ranks", content.find_drawn_apart),
    ("a wrong count", content.find_miscount),
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


def list_facts(case: Case) -> list[str]:
    """Where the tensor is wrong: ranks, places, since when. These are facts, and no causes."""
    facts = []
    if case.right:
        facts.append(
            f"{format_ranks(case.right)} {'is' if len(case.right) == 1 else 'are'} right, "
            f"{format_ranks(case.wrong)} wrong"
        )
    copies: dict[str, list[int]] = {}
    for rank in sorted(case.got):
        copies.setdefault(case.parts[rank].text, []).append(rank)
    for ranks in copies.values():
        if len(ranks) > 1 and any(not torch.equal(case.got[rank], case.got[ranks[0]]) for rank in ranks):
            facts.append(f"{format_ranks(ranks)} must hold the same, and differ")
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
