"""What a record keeps of how GPUs are set up."""

from dataclasses import replace

import pytest

from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection, PcieFacts
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.setup import describe_setup
from tests.fake_gpus import machine_of
from tests.hardware.fake_devices import FakeDevices

GPU = GpuFacts(
    "GPU-0",
    pcie=PcieFacts(generation=1, lanes=16, generation_of_slot=5),
    cores=(0, 1),
    ecc=True,
    mig=False,
    persistence=True,
    sm_set_hertz=1.98e9,
)


NODES = {"0": (0, 1), "1": (2, 3)}


def test_what_all_gpus_have_is_told_once() -> None:
    seen = Inspection(gpus=(GPU, replace(GPU, uuid="GPU-1")))
    assert describe_setup(seen, {"GPU-0", "GPU-1"}, NODES) == {
        "application clock": "1980 MHz",
        "ecc": "on",
        "gpu numa nodes": "0",
        "mig": "off",
        "pcie": "gen 5 x16",
        "persistence": "on",
    }


def test_gpus_that_differ_are_told_apart_and_others_are_left_out() -> None:
    narrow = replace(GPU, uuid="GPU-1", cores=(2,), pcie=PcieFacts(lanes=8, generation_of_slot=5))
    seen = Inspection(gpus=(GPU, narrow, replace(GPU, uuid="GPU-2", ecc=False)))
    told = describe_setup(seen, {"GPU-0", "GPU-1"}, NODES)
    assert (told["pcie"], told["gpu numa nodes"], told["ecc"]) == ("gen 5 x16, gen 5 x8", "0, 1", "on")


def test_what_a_gpu_does_not_tell_is_missing() -> None:
    assert describe_setup(Inspection(gpus=(GPU, GpuFacts("GPU-1"))), {"GPU-0", "GPU-1"}, NODES) == {}
    assert (
        describe_setup(Inspection(gpus=(replace(GPU, cores=(1, 2)),)), {"GPU-0"}, NODES).get("gpu numa nodes") is None
    )
    assert describe_setup(Inspection(present=False), {"GPU-0"}, NODES) == {}


def test_a_machine_tells_the_setup_of_the_gpus_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Inspection(gpus=tuple(GpuFacts(f"GPU-{index}", ecc=index < 2) for index in range(4)))
    monkeypatch.setattr(FakeDevices, "inspect", lambda self: told)
    assert machine_of(2).setup == {"ecc": "on"}
    assert machine_of(3).setup == {"ecc": "on, on, off"}
    assert Machine((), None, False).setup == {}
