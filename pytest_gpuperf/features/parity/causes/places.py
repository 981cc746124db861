"""Right numbers in the wrong place: on another rank, in another order, of another tensor, under another mask."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pytest_gpuperf.features.parity.case import Case, format_ranks
from pytest_gpuperf.features.parity.causes.cause import Cause

_MOST_ROWS = 4096
_FEW = 3  # values; two, such as a step to either side, are met in any order


def find_permuted_parts(case: Case) -> Cause | None:
    """Ranks hold each other's parts."""
    ranks = sorted(case.got)
    if len(set(case.parts.values())) < 2:
        return None
    holds: dict[int, int] = {}
    for rank in ranks:
        room = case.tau[rank]
        same = [
            other
            for other in ranks
            if case.want[other].shape == case.got[rank].shape
            and bool(((case.got[rank] - case.want[other]).abs() <= 2 * torch.maximum(room, case.tau[other])).all())
        ]
        if not same:
            return None
        holds[rank] = rank if rank in same else same[0]
    wrong = [rank for rank in ranks if holds[rank] != rank]
    if not wrong or all(float(case.got[rank].norm()) == 0 for rank in wrong):
        return None
    owners = {holds[rank] for rank in ranks}
    if len(owners) == 1:
        owner = owners.pop()
        return Cause(
            "order", f"all ranks hold the part of rank {owner}: it was broadcast, saved or drawn as if of one replica"
        )
    pairs = [(a, b) for a in wrong for b in wrong if a < b and holds[a] == b and holds[b] == a]
    if len(pairs) * 2 == len(wrong):
        text = " and ".join(f"ranks {a} and {b}" for a, b in pairs)
        swapped = f"{text} hold each other's parts"
        return Cause(
            "order", swapped + (": as if the axes of the mesh were swapped" if _are_axes_swapped(holds) else "")
        )
    shifts = {(holds[rank] - rank) % len(ranks) for rank in ranks}
    if len(shifts) == 1 and ranks == list(range(len(ranks))):
        return Cause("order", f"each rank holds the part of the rank {shifts.pop()} further on")
    shown = ", ".join(f"rank {rank} that of {holds[rank]}" for rank in wrong[:6])
    unheld = [rank for rank in ranks if rank not in owners]
    lost = f"; the parts of {format_ranks(unheld)} are held by nobody" if unheld else ""
    return Cause("order", f"ranks hold other ranks' parts: {shown}{lost}")


def _are_axes_swapped(holds: Mapping[int, int]) -> bool:
    """Whether ranks that should lie in rows of some length lie in columns of it."""
    world = len(holds)
    return any(
        world % length == 0 and all(holds[rank] == rank % length * (world // length) + rank // length for rank in holds)
        for length in range(2, world // 2 + 1)
    )


def find_moved_blocks(case: Case) -> Cause | None:
    """The tensor is cut into blocks that come in another order, or overlap."""
    rank = case.wrong[0]
    held, want, tau = case.got[rank], case.want[rank], case.tau[rank]
    if min(case.count_values(want), case.count_values(held)) < _FEW:
        return None  # equal entries are in any order
    if (lost := _find_lost_position(held, want, tau, case)) is not None:
        return lost
    sizes = {2, 3, 4, 6, 8, case.world, 2 * case.world, *(g.size for g in case.groups), case.microbatches}
    for dim in range(held.dim()):
        n = held.shape[dim]
        for count in sorted({*sizes, *([n] if n <= 64 else [])}):
            if count < 2 or n % count:
                continue
            order = _order(held, want, tau, dim, count)
            if order is None or order == list(range(count)):
                continue
            return _describe_order(order, dim, n)
    return _find_interleaved(case, rank)


def _order(held: torch.Tensor, want: torch.Tensor, tau: torch.Tensor, dim: int, count: int) -> list[int] | None:
    mine, theirs, room = held.chunk(count, dim), want.chunk(count, dim), tau.chunk(count, dim)
    order = []
    for index, block in enumerate(mine):
        same = [
            other
            for other, wanted in enumerate(theirs)
            if bool(((block - wanted).abs() <= 2 * torch.maximum(room[index], room[other])).all())
        ]
        if not same:
            return None
        order.append(index if index in same else same[0])
    return order


def _describe_order(order: list[int], dim: int, n: int) -> Cause:
    count = len(order)
    what = "entries" if count == n else "blocks"
    shown = f"{order[:12]}" + (", ..." if count > 12 else "")
    if len(set(order)) == count:
        return Cause("order", f"its {count} {what} along dimension {dim} come in the order {shown}")
    lost = [index for index in range(count) if index not in order]
    return Cause(
        "overlap",
        f"its {count} {what} along dimension {dim} are those numbered {shown}: some twice, and {lost[:6]} missing, as "
        "if they were overwritten before they were read, or cut at the wrong place",
    )


def _find_lost_position(held: torch.Tensor, want: torch.Tensor, tau: torch.Tensor, case: Case) -> Cause | None:
    """From one entry on, what comes is what should come some entries later or at the start: a position was lost."""
    count = held.shape[0] if held.dim() else 0
    if not 3 < count <= 4096:
        return None
    off = ((held - want).abs() > tau).reshape(count, -1).any(1).nonzero().flatten()
    first = int(off[0]) if len(off) else 0
    enough = 3 if case.is_count else 2

    def same(begin: int, other: int, length: int) -> bool:
        mine, theirs, room = held[begin : begin + length], want[other : other + length], tau[begin : begin + length]
        telling = len(torch.unique(theirs)) >= enough
        return length >= enough and telling and bool(((mine - theirs).abs() <= 2 * room).all())

    if not first:
        return None
    if same(first, 0, count - first):
        return Cause(
            "state lost",
            f"from entry {first} on it repeats itself from entry 0: a generator, a loader or a counter began anew",
        )
    for ahead in range(1, count - first):
        if same(first, first + ahead, count - first - ahead):
            return Cause(
                "position",
                f"from entry {first} on it holds what should come {ahead} entries later: a position or a schedule is "
                f"ahead by {ahead}, as if it was restored twice",
            )
    return None


def _find_interleaved(case: Case, rank: int) -> Cause | None:
    held, want = case.got[rank], case.want[rank]
    for dim in range(held.dim()):
        n = held.shape[dim]
        for count in range(2, n // 2 + 1):
            if n % count:
                continue
            dealt = want.unflatten(dim, (count, n // count)).transpose(dim, dim + 1).flatten(dim, dim + 1)
            if case.fits(held, rank, dealt):
                return Cause(
                    "order",
                    f"dimension {dim} is interleaved: {count} blocks of {n // count} became {n // count} of {count}",
                )
    if want.dim() == 2 and want.shape[0] == want.shape[1] and case.fits(held, rank, want.T):
        return Cause("transposed", "it is transposed")
    return None


def find_misplaced(case: Case) -> Cause | None:
    """Vectors along the last dimension are right, and lie elsewhere; or are another tensor's."""
    if case.key.kind.is_activation:
        return None  # an embedding's output is made of another tensor's rows, whatever the tokens
    if not case.is_count and 4 * case.count_values(case.whole) < int((case.whole != 0).sum()):
        return None  # vectors of few values are met by chance
    moved = []
    sources: list[tuple[str, torch.Tensor]] = [("", case.whole), *((n, t) for n, t in case.named if t.dim() >= 2)]
    for rank in case.wrong:
        held, want, tau = case.got[rank], case.want[rank], case.tau[rank]
        if held.dim() < 2 or held.shape[-1] < 2 or held.numel() // held.shape[-1] > _MOST_ROWS:
            return None
        rows, right, room = (t.reshape(-1, t.shape[-1]) for t in (held, want, tau))
        wrong = ((rows - right).abs() > 2 * room).any(1).nonzero().flatten().tolist()
        found = {}
        for row in wrong:
            for name, source in sources:
                if source.shape[-1] != held.shape[-1] or source.numel() // source.shape[-1] > _MOST_ROWS:
                    continue
                of = source.reshape(-1, source.shape[-1])
                same = ((of - rows[row]).abs() <= 2 * room[row]).all(1).nonzero().flatten().tolist()
                if same and float(rows[row].norm()) > float(room[row].norm()):
                    found[row] = (name, same[0])
                    break
            else:
                return None
        if found:
            moved.append((rank, len(rows), found))
    if not moved:
        return None
    rank, count, found = moved[0]
    names = {name for name, _ in found.values()}
    row, (name, other) = next(iter(found.items()))
    if names == {""}:
        return Cause(
            "order",
            f"on rank {rank}, {len(found)} of its {count} vectors along the last dimension are right ones at the wrong "
            f"place: place {row} holds that of place {other} of the whole; an offset or a slot is computed wrongly",
        )
    rows_text = f"rows {min(found)} to {max(found)}" if len(found) > 1 else f"row {row}"
    others = ", ".join(sorted(one for one in names if one))
    return Cause(
        "order",
        f"{rows_text} on rank {rank} are those of {others} (from row {other} on): fused or stacked tensors were cut "
        "as one block; cut each of them apart, then join",
    )


def find_wrong_mask(case: Case) -> Cause | None:
    """What is kept is right, and a mask keeps the wrong elements: zeros stand elsewhere."""
    ranks = sorted(case.got)
    if all(bool((case.want[rank] != 0).all()) for rank in ranks):
        return None
    kept_twice = 0
    for rank in case.wrong:
        held, want = case.got[rank], case.want[rank]
        both = (held != 0) & (want != 0)
        kept_twice += int(both.sum())
        if int(((held != 0) != (want != 0)).sum()) < 2:
            return None  # one element is no mask
        if bool(((held - want).abs() > 2 * case.tau[rank])[both].any()) or bool(((held != 0) == (want != 0)).all()):
            return None
    if kept_twice < 4:
        return None  # nothing shows that what is kept is right
    borrowed = []
    for rank in case.wrong:
        kept = case.got[rank] != 0
        other = next(
            (
                o
                for o in ranks
                if o != rank and kept.shape == case.want[o].shape and torch.equal(kept, case.want[o] != 0)
            ),
            None,
        )
        if other is not None and bool(kept.any() | (case.want[other] == 0).all()):
            borrowed.append((rank, other))
    where = format_ranks(case.wrong, len(case.got))
    if case.drawn:
        return Cause(
            "random mask",
            f"on {where} a mask keeps other elements, and masks are drawn ({', '.join(case.drawn)}): ranks draw others "
            "than one device; set the rate to 0 for this test, or draw the mask by global positions",
        )
    text = f"on {where} a mask keeps the wrong elements; what is kept on both sides is right"
    if len(borrowed) == len(case.wrong):
        text += ": " + ", ".join(f"rank {rank} has the mask of rank {other}" for rank, other in borrowed[:4])
    return Cause("mask", text)


def find_wrong_keys(case: Case) -> Cause | None:
    """Attention over a part of the keys, or over some of them several times."""
    found = {}
    for rank in case.wrong:
        weights = _find_key_weights(case, rank)
        if weights is None:
            return None
        found[rank] = weights
    rank, weights = next(iter(found.items()))
    usual = max(set(weights), key=weights.count)
    missing = [index for index, weight in enumerate(weights) if weight == 0]
    if missing:
        return Cause(
            "keys",
            f"on rank {rank} attention leaves out keys {_span(missing)} of {len(weights)}: their ranks are not in the "
            "group, or the ring ends too early",
        )
    many = [index for index, weight in enumerate(weights) if weight != min(usual, *weights)]
    if not many:
        return None
    times = weights[many[0]] / min(weights)
    known = next((f" = {text}" for value, text in case.numbers() if abs(times - value) < 1e-3), "")
    return Cause(
        "keys",
        f"on rank {rank} attention counts keys {_span(many)} of {len(weights)} {times:.4g} times{known}; each must "
        "count once",
    )


def _span(indices: list[int]) -> str:
    if len(indices) > 1 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return str(indices[:8])


def _find_key_weights(case: Case, rank: int) -> list[float] | None:
    from pytest_gpuperf.features.parity.causes.attention import find_key_weights

    return find_key_weights(case, rank)


def find_wrong_shape(case: Case) -> Cause | None:
    """Another shape than any layout gives: entries that are there twice, or too few."""
    for rank in sorted(case.got):
        held, want = case.got[rank], case.whole
        if held.dim() != want.dim() or not held.dim() or held.shape[1:] != want.shape[1:]:
            continue
        n, m = held.shape[0], want.shape[0]
        if n > m and torch.equal(held[:m], want) and n - m <= m and torch.equal(held[m:], want[: n - m]):
            return Cause(
                "duplicates",
                f"it has {n} entries, not {m}: the last {n - m} repeat the first, as a sampler pads the last round to "
                "the number of ranks; cut them off",
            )
        if n < m and torch.equal(held, want[:n]):
            return Cause(
                "missing entries", f"it has {n} entries, not {m}: the last {m - n} are missing, as with drop_last"
            )
    return None
