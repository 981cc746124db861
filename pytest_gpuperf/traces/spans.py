"""Spans of time: their union, their difference, and their length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]
"""Start and end, in one unit of time."""


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans that cover the same time, sorted and apart from one another; empty ones are dropped."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def subtract_spans(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the part of the spans that the others leave uncovered; both are unions."""
    found: list[Span] = []
    first = 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = first
        while start < end and at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                found.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            found.append((start, end))
    return found


def compute_length(spans: Iterable[Span]) -> float:
    """Return the sum of the spans' lengths."""
    return sum(end - start for start, end in spans)
