"""What the numbers themselves show: not finite, zeros, rounded, counted, padded, drawn apart."""

from __future__ import annotations

import torch

from pytest_gpuperf.features.parity.case import Case, format_ranks
from pytest_gpuperf.features.parity.causes.cause import Cause


def find_not_finite(case: Case) -> Cause | None:
    """Infinite or undefined numbers."""
    bad = [rank for rank in sorted(case.got) if not bool(torch.isfinite(case.got[rank]).all())]
    fine = bool(torch.isfinite(case.whole).all())
    return Cause("not finite", f"it is not finite on {format_ranks(bad, len(case.got))}") if bad and fine else None


def find_zeros(case: Case) -> Cause | None:
    """Nothing but zeros."""
    if any(bool(case.got[rank].any()) for rank in case.wrong):
        return None
    return Cause("zeros", f"it is all zeros on {format_ranks(case.wrong, len(case.got))}")


def find_rounding(case: Case) -> Cause | None:
    """Rounded through a coarser type."""
    if case.evidence < 1 or (case.is_count and not _has_large(case) and case.coarse is None):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(case.got[rank].to(dtype).double(), case.got[rank]) for rank in case.got):
            kept = case.coarse is dtype
            if not kept and all(torch.equal(case.want[r].to(dtype).double(), case.want[r]) for r in case.got):
                continue
            unit = torch.finfo(dtype).eps / 2
            units = 4 if kept else 1.01  # what is kept in a coarse type is rounded again and again
            once = all(
                bool(((case.got[r] - case.want[r]).abs() <= units * unit * case.want[r].abs() + case.tau[r]).all())
                for r in case.got
            )
            if not once and case.evidence < 4:
                continue
            name = str(dtype).removeprefix("torch.")
            more = "" if once else ", and not only at the end"
            return Cause(
                "rounded",
                f"every element is a number of {name}: it went through {name}{more}; keep it in its own type, or say "
                f"precision=torch.{name} if that is meant",
            )
    return None


def _has_large(case: Case) -> bool:
    return bool((case.whole.abs() > 256).any())  # smaller whole numbers are numbers of every type


def find_miscount(case: Case) -> Cause | None:
    """Whole numbers that are off."""
    if not case.is_count:
        return None
    rank = case.wrong[0]
    held, want = case.got[rank], case.want[rank]
    if case.is_scalar:
        return Cause(
            "count", f"it counts {float(held):g} where the reference counts {float(want):g} ({float(held - want):+g})"
        )
    offs = torch.unique(held - want)
    if len(offs) == 1 and not case.right:
        first = f"{float(held.flatten()[0]):g}, not {float(want.flatten()[0]):g}"
        return Cause("count", f"all {held.numel()} entries are off by {float(offs[0]):+g} (the first is {first})")
    return None


def find_padding(case: Case) -> Cause | None:
    """A zero of the padding where the right number is negative."""
    for rank in case.wrong:
        held, want, tau = case.got[rank], case.want[rank], case.tau[rank]
        if not held.dim() or case.is_count:
            return None
        off = (held - want).abs() > tau
        first = int(off.reshape(off.shape[0], -1).any(1).nonzero()[0])
        at = off[first]
        if bool((held[first][at] != 0).any()) or bool((want[first][at] > 0).any()):
            return None
    return Cause(
        "padding",
        "where it is wrong first it is exactly 0, and all right numbers are negative: an entry of the padding wins; "
        "mask the padding with -inf before the maximum",
    )


def find_drawn_apart(case: Case) -> Cause | None:
    """Copies that must agree do not, and a random draw is on the way."""
    copies: dict[str, list[int]] = {}
    for rank in sorted(case.got):
        copies.setdefault(case.parts[rank].text, []).append(rank)
    differing = [
        ranks
        for ranks in copies.values()
        if len(ranks) > 1 and any(not torch.equal(case.got[rank], case.got[ranks[0]]) for rank in ranks)
    ]
    if not case.drawn or not differing or not case.is_count:
        return None
    # Once one rank has gone astray, the others follow: the first wrong entry tells.
    entries = {rank: _find_first_wrong(case, rank) for rank in case.got}
    first = min(entries.values())
    right = [rank for rank in sorted(case.got) if entries[rank] > first]
    wrong = [rank for rank in sorted(case.got) if entries[rank] == first]
    if not right:
        return None
    at = f" at entry {first}" if case.whole.dim() else ""
    return Cause(
        "drawn apart",
        f"{format_ranks(right)} {'are' if len(right) > 1 else 'is'} right{at}, {format_ranks(wrong)} "
        f"{'differ' if len(wrong) > 1 else 'differs'}, and what is computed is drawn from ({', '.join(case.drawn)}): "
        "each rank draws its own; draw on one rank and broadcast, or seed all ranks alike",
    )


def _find_first_wrong(case: Case, rank: int) -> int:
    off = (case.got[rank] - case.want[rank]).abs() > case.tau[rank]
    at = (off.reshape(off.shape[0], -1).any(1) if off.dim() else off[None]).nonzero().flatten()
    return int(at[0]) if len(at) else 1 << 62
