"""The GPUs of a run, and what is said where there are not enough of them."""

import pytest

from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.nvml import Nvml
from tests.fake_gpus import gpu, use
from tests.hardware.fake_devices import FakeDevices
from tests.hardware.fake_nvml import SWITCH, Device, FakeNvml

LINKS = dict.fromkeys(range(18), SWITCH)


@pytest.mark.parametrize(
    ("environ", "hint"), [({}, ""), ({"CUDA_VISIBLE_DEVICES": "0,1"}, " through CUDA_VISIBLE_DEVICES")]
)
def test_too_few_gpus_are_an_error_of_the_hardware(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], hint: str
) -> None:
    use(monkeypatch, FakeDevices([gpu(0), gpu(1)]))
    with pytest.raises(HardwareError) as caught:
        Machine.of(3, environ)
    assert str(caught.value) == f"--gpus 3: 2 GPUs are visible{hint}"


def test_a_run_without_gpus_asks_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(init_error=FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    use(monkeypatch, Nvml(nvml))
    assert Machine.of(0, {}) == Machine((), None, False)
    with pytest.raises(HardwareError, match=r"^NVML did not start"):
        Machine.of(None, {})


def test_a_machine_hands_on_the_library_that_described_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(FakeNvml([Device(f"GPU-{index}", links=LINKS) for index in range(3)]))
    use(monkeypatch, nvml)
    machine = Machine.of(2, {"CUDA_VISIBLE_DEVICES": "2,0"})
    assert machine.gpu_uuids == ("GPU-2", "GPU-0")
    assert machine.everything == ("GPU-0", "GPU-1", "GPU-2")
    assert (machine.key, machine.driver) == ("2x-nvidia-h200-nv18", "570.86")
    assert machine.devices is nvml


def test_a_neighbour_in_mig_mode_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Nvml(FakeNvml([Device("GPU-0", links=LINKS), Device("GPU-1", mig=True)])))
    assert Machine.of(1, {"CUDA_VISIBLE_DEVICES": "0"}).everything == ("GPU-0",)


def test_the_slowest_gpu_says_how_fast_memories_are(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Device("GPU-1", links=LINKS, pcie=(4, 16), memory_bus=5120)
    use(monkeypatch, Nvml(FakeNvml([Device("GPU-0", links=LINKS), slow])))
    machine = Machine.of(2, {})
    assert machine.host_rate == pytest.approx(16 * 1.969e9, rel=1e-3)
    assert machine.memory_rate == pytest.approx(5120 / 8 * 2 * 3201e6)
    assert Machine.of(1, {}).memory_rate == pytest.approx(6144 / 8 * 2 * 3201e6)


@pytest.mark.parametrize(
    ("nodes", "allowed", "near"),
    [
        (([0, 1], [2, 3]), {0, 1, 2, 3}, ({0, 1}, {2, 3})),
        (([0, 1], [0, 1]), {0, 1, 2, 3}, ({0, 1}, {0, 1})),  # all GPUs at one of two nodes
        (([0, 1, 2, 3], [0, 1, 2, 3]), {0, 1, 2, 3}, ()),  # one node
        (([0, 1], [2, 3]), {1, 2}, ({1}, {2})),  # a container with some cores
        (([0, 1], [2, 3]), {0, 1}, ()),  # no core is near the second one
        (([0, 1], None), {0, 1, 2, 3}, ()),  # it does not tell
    ],
)
def test_cores_near_each_gpu(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[list[int], list[int] | None], allowed: set[int], near: tuple[set[int]]
) -> None:
    devices = [Device(f"GPU-{index}", links=LINKS, cores=cores) for index, cores in enumerate(nodes)]
    use(monkeypatch, Nvml(FakeNvml(devices)))
    machine = Machine.of(2, {})
    assert machine.find_cores_near(machine.gpu_uuids, frozenset(allowed)) == tuple(map(frozenset, near))


def test_what_one_gpu_does_not_tell_is_unknown_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    dumb = Device("GPU-1", links=LINKS, pcie=None, memory_bus=None)
    use(monkeypatch, Nvml(FakeNvml([Device("GPU-0", links=LINKS), dumb])))
    assert (Machine.of(2, {}).host_rate, Machine.of(2, {}).memory_rate) == (None, None)
    assert (Machine.of(0, {}).host_rate, Machine.of(0, {}).memory_rate) == (None, None)
