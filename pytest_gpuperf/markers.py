"""The markers ``ranks`` and ``perf``: what they take, and clear words for what they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

MARKERS = (
    "ranks(*world_sizes, timeout=None, device=None): run the test once for each world size, its programs on so "
    "many ranks; timeout is in seconds and for each run; device='cuda' or 'cpu' binds the test to one kind",
    "perf: a performance test; it measures one launch and is judged against this hardware's baseline",
)
_KEYWORDS = ("timeout", "device")
_DEVICES = ("cuda", "cpu")


@dataclass(frozen=True, slots=True)
class RanksMarker:
    """A checked ``ranks`` marker."""

    world_sizes: tuple[int, ...]
    timeout: float | None
    """Seconds; None for the configured default."""
    device: str | None
    """``cuda`` or ``cpu`` where the test is bound to one; None for what the run uses."""


def parse_ranks(mark: pytest.Mark, nodeid: str) -> RanksMarker:
    """The marker's meaning.

    Raises:
        ValueError: an argument that cannot be meant; names the test.
    """
    where = f"{nodeid}: marker ranks"
    unknown = sorted(set(mark.kwargs) - set(_KEYWORDS))
    if unknown:
        raise ValueError(f"{where} has no keyword {unknown[0]!r}; it takes world sizes, and {' and '.join(_KEYWORDS)}")
    if not mark.args:
        raise ValueError(f"{where} names no world size; write for example @pytest.mark.ranks(2, 4)")
    for size in mark.args:
        if type(size) is not int or size < 1:
            raise ValueError(f"{where} takes world sizes of 1 or more as integers, got {size!r}")
    if len(set(mark.args)) != len(mark.args):
        raise ValueError(f"{where} names a world size twice: {', '.join(map(str, mark.args))}")
    return RanksMarker(
        mark.args, _timeout(mark.kwargs.get("timeout"), where), _device(mark.kwargs.get("device"), where)
    )


def ranks_marker(node: pytest.Item | pytest.Function, nodeid: str) -> RanksMarker | None:
    """The closest ``ranks`` marker of the node, checked; None if there is none."""
    mark = node.get_closest_marker("ranks")
    return None if mark is None else parse_ranks(mark, nodeid)


def _timeout(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{where} takes a timeout in seconds above 0, got {value!r}")
    return float(value)


def _device(value: Any, where: str) -> str | None:
    if value is not None and value not in _DEVICES:
        raise ValueError(f"{where} takes device='cuda' or device='cpu', got {value!r}")
    return value  # type: ignore[no-any-return]
