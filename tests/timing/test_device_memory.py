"""What is given back between programs, and which of torch's counters is read, on a machine without GPUs."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf.timing import device_memory


def test_pinned_memory_is_what_torch_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"active_bytes.peak": 22 << 30, "allocated_bytes.peak": 1 << 20}
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats)
    assert device_memory.pinned_peak() == 1 << 20


def test_before_the_first_pinned_block_torch_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "host_memory_stats", dict)
    assert device_memory.pinned_peak() == 0


def test_all_that_is_cached_is_given_back_once_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: happened.append("synchronize"))
    monkeypatch.setattr(device_memory, "free_cublas_workspaces", lambda: happened.append("cublas"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: happened.append("device"))
    monkeypatch.setattr(device_memory, "free_pinned_memory", lambda: happened.append("pinned"))
    device_memory.release_memory(torch.device("cpu"))
    assert not happened
    device_memory.release_memory(torch.device("cuda"))
    assert happened[0] == "synchronize"
    assert set(happened[1:]) == {"cublas", "device", "pinned"}
