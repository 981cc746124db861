"""What NCCL chose, as texts by name that a record keeps and a later run compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpuperf.hardware.nccl_log import NcclLog

ASKED = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives whose choices are kept, as torch.distributed names them."""
SIZES = (2**10, 2**20, 2**26)
"""Bytes of one rank's call, as NCCL counts them: latency, the middle, and bandwidth."""


def describe_choices(logs: Sequence[NcclLog]) -> Mapping[str, str]:
    """Return what the ranks of a run say NCCL chose.

    ``"all_reduce 67108864": "RING, SIMPLE, 24 channels"``: algorithm, protocol and channels of a collective of so many
    bytes of one rank's call. ``"transport"``: how the pairs of ranks are connected. ``"channels"``: those that
    communicators have for collectives and for sends.

    Args:
        logs: Of all ranks, rank 0 first; each was asked after collectives of ASKED at SIZES, and sends of all pairs.

    Returns:
        Texts by name; nothing if rank 0's log is of a version that nobody has read yet, or there is no log.
    """
    if not logs or not logs[0].known:
        return {}
    first, found = logs[0], {}
    for op in ASKED:
        for nbytes in SIZES:
            if (choice := first.find(op, nbytes)) is not None:
                found[f"{op} {nbytes}"] = f"{choice.algorithm}, {choice.protocol}, {_count(choice.channels)}"
    if first.coll_channels and first.p2p_channels:
        found["channels"] = f"{first.coll_channels[-1]} for collectives, {first.p2p_channels[-1]} for sends"
    if transports := _describe_transports(logs):
        found["transport"] = transports
    return found


def _count(channels: int) -> str:
    return f"{channels} channel{'' if channels == 1 else 's'}"


def _describe_transports(logs: Sequence[NcclLog]) -> str:
    """One transport if all pairs have it; else each with its number of pairs."""
    pairs: dict[tuple[int, int], set[str]] = {}
    for log in logs:
        for one in log.connections:
            pairs.setdefault((one.sender, one.receiver), set()).add(one.transport)
    counted = Counter(" and ".join(sorted(transports)) for transports in pairs.values())
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{transport} ({count} of {len(pairs)} pairs)" for transport, count in sorted(counted.items()))
