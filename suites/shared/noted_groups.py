"""Which process group each call of a collective is made in: two groups of the same ranks give the same numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist


@contextmanager
def noted_groups(collective: str) -> Iterator[list[Any]]:
    """Within the block the group of each call of ``torch.distributed``'s collective, in order; runs on ranks."""
    called: list[Any] = []
    original = getattr(dist, collective)
    signature = inspect.signature(original)

    def noted(*args: Any, **kwargs: Any) -> Any:
        group = signature.bind(*args, **kwargs).arguments.get("group")
        called.append(dist.group.WORLD if group is None else group)
        return original(*args, **kwargs)

    with mock.patch.object(dist, collective, noted):
        yield called
