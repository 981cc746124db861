"""Values of an earlier time: not updated, not gathered again, lost at a resume."""

from __future__ import annotations

import math

import torch

from pytest_gpuperf.features.parity.case import Case, compute_factor, format_ranks
from pytest_gpuperf.features.parity.causes.cause import Cause
from pytest_gpuperf.features.parity.records import Kind


def find_wrong_step_count(case: Case) -> Cause | None:
    """The optimizer's count of steps is wrong."""
    if case.coarse is not None:
        return None  # it may be rounded
    if case.key.kind is Kind.STATE and case.key.name.endswith(".step"):
        rank = case.wrong[0]
        held, want = float(case.got[rank]), float(case.want[rank])
        why = "its state was lost at a resume" if held < want else "its state is another's, or it steps twice"
        return Cause("state lost", f"the optimizer counts {held:g} steps where it should count {want:g}: {why}")
    return None


def start(case: Case) -> Cause | None:
    """Parameters differ before the first step."""
    if case.key.kind is not Kind.START:
        return None
    return Cause(
        "start",
        f"it differs before the first step, on {format_ranks(case.wrong, len(case.got))}: load the same weights on "
        "both sides, or seed the initialisation (torch.manual_seed) in the function that both call",
    )


def find_unchanged(case: Case) -> Cause | None:
    """A parameter was not updated at all on some ranks."""
    bad = [
        rank
        for rank in case.wrong
        if rank in case.base
        and case.base[rank].shape == case.got[rank].shape
        and torch.equal(case.base[rank], case.got[rank])
    ]
    if not bad or any(torch.equal(case.base[rank], case.want[rank]) for rank in bad):
        return None
    return Cause("stale", f"not updated: equal to what it was before the step, on {format_ranks(bad, len(case.got))}")


def find_earlier_value(case: Case) -> Cause | None:
    """The value of an earlier step, in whole or in blocks; of an input also that of a later one."""
    if case.is_scalar or len(torch.unique(case.whole)) < 3:
        return None
    again = ("stale", "not updated since, or not fetched again")
    if case.key.kind is Kind.INPUT:
        again = ("state lost", "data come again, as if the state of a sampler or a loader was lost")
    ahead = ("position", "data were skipped: a loader, a sampler or a count of epochs is ahead")
    for (code, why), texts in ((again, case.earlier), (ahead, case.later)):
        for text, old in texts:
            if old.shape != case.whole.shape:
                continue
            was = {rank: case.parts[rank].of(old) for rank in case.wrong}
            if all(case.fits(case.got[rank], rank, was[rank], room=1.0) for rank in case.wrong):
                return Cause(code, f"on {format_ranks(case.wrong, len(case.got))} it is {text}: {why}")
    for text, old in case.earlier:
        if old.shape != case.whole.shape or not old.dim():
            continue
        count = case.world
        if case.whole.shape[0] % count or any(case.parts[rank].index is not None for rank in case.wrong):
            continue
        kept = {}
        for rank in case.wrong:
            held, then = case.got[rank].chunk(count), old.chunk(count)
            kept[rank] = [i for i in range(count) if torch.equal(held[i], then[i])]
        if all(len(found) >= count - 1 for found in kept.values()) and any(kept.values()):
            own = all(found == [i for i in range(count) if i != rank] for rank, found in kept.items())
            which = "all but its own block" if own else f"blocks {next(iter(kept.values()))} of {count}"
            return Cause(
                "stale", f"on each rank {which} is {text}, to the bit: it is not gathered again after the update"
            )
    return None


def find_frozen(case: Case) -> Cause | None:
    """A trajectory that does not move: each entry equals the first one."""
    if case.key.kind is not Kind.VALUE:
        return None
    rank = case.wrong[0]
    held, want, tau = case.got[rank], case.want[rank], case.tau[rank]
    if not held.dim() or held.shape[0] < 3 or not bool(((held[0] - want[0]).abs() <= tau[0]).all()):
        return None
    if bool(((held - held[:1]).abs() <= 2 * tau).all()) and bool(((want - want[:1]).abs() > 8 * tau).any()):
        return Cause(
            "stale",
            f"its first entry is right, and all {held.shape[0]} are equal: it is computed from a copy that is not made "
            "again after updates",
        )
    return None


def find_rescaled_update(case: Case) -> Cause | None:
    """The update of a parameter is scaled, or lacks weight decay."""
    if case.key.kind is not Kind.PARAMETER or not case.base:
        return None
    factors = []
    for rank in case.wrong:
        base = case.base.get(rank)
        if base is None or base.shape != case.want[rank].shape:
            return None
        update, right = case.got[rank] - base, case.want[rank] - base
        k = compute_factor(update, right)
        if not math.isfinite(k) or not bool(((update - k * right).abs() <= 2 * (1 + abs(k)) * case.tau[rank]).all()):
            return _find_decay(case)
        factors.append(k)
    if not factors or max(factors) - min(factors) > 1e-2 * max(map(abs, factors)):
        return _find_decay(case)
    k = factors[0]
    room = max(float(case.tau[r].norm()) / max(float((case.want[r] - case.base[r]).norm()), 1e-300) for r in case.wrong)
    if room > 0.1:
        return None
    known = next((f" = {text}" for value, text in case.numbers() if abs(k - value) <= 2 * room * value), "")
    return Cause(
        "update", f"the update is {k:.5g} times the right one{known}: another learning rate, count of steps or clip"
    )


def _find_decay(case: Case) -> Cause | None:
    factors = []
    for rank in case.wrong:
        base, off = case.base[rank], case.got[rank] - case.want[rank]
        k = compute_factor(off, base)
        rest = off - k * base
        if not math.isfinite(k) or not bool((rest.abs() <= 2 * case.tau[rank]).all()):
            return None
        if float(rest.norm()) > 0.05 * float(off.norm()):
            return None  # the decay must leave next to nothing of the fault
        factors.append(k)
    if not factors or max(factors) - min(factors) > 0.05 * max(map(abs, factors)):
        return None
    way = "left out" if factors[0] > 0 else "applied twice, or to a parameter that should have none"
    where = f" on {format_ranks(case.wrong)}" if case.right else ""
    return Cause("weight decay", f"off by {factors[0]:.4g} times the parameter itself{where}: weight decay is {way}")
