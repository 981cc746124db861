"""How a set of GPUs is linked."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from pytest_gpuperf.hardware.datasheets import PCIE_LANE
from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.linkage import Linkage, linkage
from pytest_gpuperf.hardware.nvml import Nvml
from tests.hardware.fake_nvml import SWITCH, Device, FakeNvml, gpu_of

BUSES = [f"00000000:0{letter}:00.0" for letter in "abcd"]


def linked(devices: Sequence[Device], levels: Mapping[frozenset[str], int] | None = None) -> Linkage:
    nvml = FakeNvml(devices, levels)
    found = linkage([gpu_of(device) for device in devices], Nvml(nvml))
    assert nvml.opened == nvml.closed
    return found


def switched(uuid: str, links: int, compute_capability: tuple[int, int] = (9, 0)) -> Device:
    return Device(uuid, compute_capability=compute_capability, links=dict.fromkeys(range(links), SWITCH))


def bridged(*peers: Mapping[int, int], compute_capability: tuple[int, int] = (8, 0)) -> list[Device]:
    """GPUs with so many direct links to their peers, by index."""
    devices = []
    for index, counts in enumerate(peers):
        ends = [BUSES[peer] for peer, count in counts.items() for _ in range(count)]
        devices.append(Device(f"GPU-{index}", "A100", compute_capability, BUSES[index], dict(enumerate(ends))))
    return devices


def levels_of(devices: Sequence[Device], *levels: int) -> dict[frozenset[str], int]:
    pairs = combinations([device.uuid for device in devices], 2)
    return {frozenset(pair): level for pair, level in zip(pairs, levels, strict=True)}


def test_one_gpu_has_no_links() -> None:
    assert linked([switched("GPU-a", 18)]) == Linkage("none", "", None)


@pytest.mark.parametrize(
    ("compute_capability", "links", "rate"),
    [((7, 0), 6, 150e9), ((8, 0), 12, 300e9), ((9, 0), 18, 450e9), ((10, 0), 18, 900e9), ((99, 0), 18, None)],
)
def test_switched_gpus_have_all_their_links(
    compute_capability: tuple[int, int], links: int, rate: float | None
) -> None:
    devices = [switched(f"GPU-{index}", links, compute_capability) for index in range(3)]
    assert linked(devices) == Linkage("nvlink", f"nv{links}", rate)


def test_the_gpu_with_the_fewest_links_names_a_switched_machine() -> None:
    assert linked([switched("GPU-a", 18), switched("GPU-b", 17)]) == Linkage("nvlink", "nv17", 425e9)


def test_a_bridged_pair() -> None:
    assert linked(bridged({1: 4}, {0: 4})) == Linkage("nvlink", "nv4", 100e9)


def test_a_directly_linked_machine_is_named_by_its_worst_pair_and_rated_by_all_links_of_a_gpu() -> None:
    devices = bridged({1: 4, 2: 4}, {0: 4, 2: 2}, {0: 4, 1: 2})
    assert linked(devices) == Linkage("nvlink", "nv2", 6 * 25e9)


def test_links_to_gpus_outside_the_set_do_not_count() -> None:
    assert linked(bridged({1: 2, 3: 2}, {0: 2, 3: 2})) == Linkage("nvlink", "nv2", 2 * 25e9)


def test_pairs_of_bridged_pairs_are_linked_by_pcie_without_one_line_rate() -> None:
    devices = bridged({1: 12}, {0: 12}, {3: 12}, {2: 12})
    assert linked(devices, levels_of(devices, 20, 50, 50, 50, 50, 20)) == Linkage("pcie", "sys", None)


@pytest.mark.parametrize(
    ("level", "label"),
    [(0, "pix"), (10, "pix"), (20, "pxb"), (30, "phb"), (40, "node"), (50, "sys")],
)
def test_pcie_is_named_by_the_worst_pair(level: int, label: str) -> None:
    devices = [Device(f"GPU-{index}") for index in range(3)]
    found = linked(devices, levels_of(devices, 0, level, 0))
    assert (found.kind, found.label) == ("pcie", label)
    assert found.bytes_per_second == pytest.approx(16 * 32e9 / 8 * 128 / 130)


def test_the_slowest_slot_rates_a_pcie_machine() -> None:
    devices = [Device("GPU-a", pcie=(4, 16)), Device("GPU-b", pcie=(3, 8)), Device("GPU-c", pcie=(5, 16))]
    found = linked(devices, levels_of(devices, 50, 50, 50))
    assert found.bytes_per_second == pytest.approx(8 * 0.9846e9, rel=1e-4)


@pytest.mark.parametrize("pcie", [None, (9, 16), (5, 0)])
def test_an_unknown_slot_has_no_rate(pcie: tuple[int, int] | None) -> None:
    devices = [Device("GPU-a"), Device("GPU-b", pcie=pcie)]
    assert linked(devices, levels_of(devices, 30)) == Linkage("pcie", "phb", None)


def test_a_hidden_topology_counts_as_the_farthest() -> None:
    assert linked([Device("GPU-a"), Device("GPU-b")], levels=None).label == "sys"


def test_nvml_that_went_away_is_said() -> None:
    gone = FakeNvml(init_error=FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED)
    gpus = [gpu_of(Device("GPU-a")), gpu_of(Device("GPU-b"))]
    with pytest.raises(
        HardwareError, match=r"NVML is not there to say how 2 GPUs are linked, expected .*nvidia-smi runs"
    ):
        linkage(gpus, Nvml(gone))


def test_pcie_lanes_have_the_rates_of_the_standard() -> None:
    megabytes = {generation: round(rate / 1e6) for generation, rate in PCIE_LANE.items()}
    assert megabytes == {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7375}
