"""What is given back between programs, and which of torch's counters is read, on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pytest_gpuperf.figures.readings import RankReading
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing import device_memory, metering
from pytest_gpuperf.timing import trial as trial_module
from pytest_gpuperf.timing.metering import meter
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.trial import RankTrial, trial

ALONE = cast(Any, SimpleNamespace(device=torch.device("cpu"), world_size=1))


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


def test_a_programs_peak_is_without_what_others_hold() -> None:
    assert device_memory.own_peak(None, 0, 0) is None
    assert device_memory.own_peak(100, 30, 40) == 70, "the program has left 10 more"
    assert device_memory.own_peak(100, 30, 20) == 80, "10 of the others' may have gone before the peak"


def test_tensors_hold_what_the_allocator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: {"cuda:1": 4096}[str(device)])
    assert device_memory.held(torch.device("cuda", 1)) == 4096
    assert device_memory.held(torch.device("cpu")) == 0


def held_by_others(nbytes: int) -> Iterator[int]:
    """What tensors hold before the program, and after it."""
    yield nbytes
    yield nbytes + 1


def test_a_configurations_peak_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    others = held_by_others(30)
    found = RankTrial(RankSamples(seconds=(1.0,), clock="host", cuda_graph=False, steps_per_sample=1), 100, 0, ())
    monkeypatch.setattr(trial_module, "slowest", lambda seconds, device: list(seconds))
    monkeypatch.setattr(trial_module, "held", lambda device: next(others))
    monkeypatch.setattr(trial_module, "_timed", lambda *given: found)
    assert trial(ALONE, lambda ctx: None, {}, Sampling(), None).peak == 70


def test_a_metered_programs_peak_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    others, done = held_by_others(30), list[str]()
    found = RankReading(steps=1, seconds=1.0, joules=None, sent=None, received=None, peak_bytes=100)
    monkeypatch.setattr(metering, "_meet", lambda *, cuda: done.append("met"))

    def held(device: torch.device) -> int:
        done.append("looked")
        return next(others)

    monkeypatch.setattr(metering, "held", held)
    monkeypatch.setattr(metering, "_metered", lambda *given: found)
    assert meter(ALONE, lambda ctx: None, {}, Sampling(), ()).peak_bytes == 70
    assert done == ["met", "looked", "looked"], "NCCL lets go of tensors in a collective"
