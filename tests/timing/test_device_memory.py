"""What is given back between programs, and which of torch's counters is read, on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pytest_gpuperf.figures.readings import RankReading
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing import device_memory, metering
from pytest_gpuperf.timing import trial as trial_module
from pytest_gpuperf.timing.device_memory import SMALL
from pytest_gpuperf.timing.metering import meter
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.trial import RankTrial, trial

ALONE = cast(Any, SimpleNamespace(device=torch.device("cpu"), world_size=1))


def test_pinned_memory_is_what_torch_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"active_bytes.peak": 22 << 30, "allocated_bytes.peak": 1 << 20}
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats)
    assert device_memory.read_pinned_peak() == 1 << 20


def test_before_the_first_pinned_block_torch_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "host_memory_stats", dict)
    assert device_memory.read_pinned_peak() == 0


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


@pytest.mark.parametrize(
    ("before", "after", "own"),
    [(2 * SMALL, 3 * SMALL, 8 * SMALL), (2 * SMALL, SMALL, 9 * SMALL), (SMALL - 1, SMALL, 10 * SMALL)],
    ids=["it left some, too", "some may have gone before the peak", "too little to matter"],
)
def test_a_programs_peak_is_without_what_others_hold(
    monkeypatch: pytest.MonkeyPatch, before: int, after: int, own: int
) -> None:
    done: list[str] = []

    def held(device: torch.device) -> int:
        done.append("looked")
        return after

    monkeypatch.setattr(device_memory, "release_memory", lambda device: done.append("released"))
    monkeypatch.setattr(device_memory, "count_held_bytes", held)
    assert device_memory.own_peak(10 * SMALL, before, torch.device("cpu")) == own
    assert done == (["released", "looked"] if before >= SMALL else [])


def test_without_a_device_there_is_no_peak() -> None:
    assert device_memory.own_peak(None, 2 * SMALL, torch.device("cpu")) is None


def test_tensors_hold_what_the_allocator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: {"cuda:1": 4096}[str(device)])
    assert device_memory.count_held_bytes(torch.device("cuda", 1)) == 4096
    assert device_memory.count_held_bytes(torch.device("cpu")) == 0


class Held:
    """What tensors hold; notes when somebody looks."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def __call__(self, device: torch.device) -> int:
        self._done.append("looked")
        return 3 * SMALL


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order."""
    happened: list[str] = []
    for module in (device_memory, trial_module, metering):
        monkeypatch.setattr(module, "count_held_bytes", Held(happened))
        monkeypatch.setattr(module, "release_memory", lambda device: happened.append("released"))
    return happened


def test_a_configurations_peak_is_its_own(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    samples = RankSamples(seconds=(1.0,), clock="host", cuda_graph=False, steps_per_sample=1)

    def met(seconds: Sequence[float], device: torch.device) -> list[float]:
        done.append("met")
        return list(seconds)

    def timed(*given: object) -> RankTrial:
        done.append("ran")
        return RankTrial(samples, 10 * SMALL, 0, ())

    monkeypatch.setattr(trial_module, "reduce_to_slowest", met)
    monkeypatch.setattr(trial_module, "_time", timed)
    assert trial(ALONE, lambda ctx: None, {}, Sampling(), None).peak == 7 * SMALL
    # NCCL lets go of an earlier program's tensors in a collective.
    assert done == ["released", "met", "looked", "ran", "released", "looked"]


def test_a_metered_programs_peak_is_its_own(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    def metered(*given: object) -> RankReading:
        done.append("ran")
        return RankReading(steps=1, seconds=1.0, joules=None, sent=None, received=None, peak_bytes=10 * SMALL)

    monkeypatch.setattr(metering, "_meet", lambda *, cuda: done.append("met"))
    monkeypatch.setattr(metering, "_meter", metered)
    assert meter(ALONE, lambda ctx: None, {}, Sampling(), ()).peak_bytes == 7 * SMALL
    assert done == ["released", "met", "looked", "ran", "released", "looked"]
