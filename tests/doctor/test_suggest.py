"""Settings for NCCL: none if it sees all by itself; else variables that exist, with reason and source."""

from typing import Any

import pytest

from pytest_gpuperf.features.doctor import names
from pytest_gpuperf.features.doctor.lines import format_suggestions
from pytest_gpuperf.features.doctor.suggest import suggest
from tests.doctor.machines import NAMES, machine


@pytest.mark.parametrize("name", NAMES)
def test_a_suggested_variable_exists_and_has_reason_and_source(name: str) -> None:
    for one in suggest(machine(name)):
        assert one.name in names.KNOWN
        assert one.reason
        assert one.source


@pytest.mark.parametrize("name", ["dgx-h100", "gb200-nvl72", "dgx-1v", "rtx4090", "pod-one-gpu"])
def test_ncccls_own_choice_is_often_the_best(name: str) -> None:
    facts = machine(name)
    assert suggest(facts) == ()
    (line,) = format_suggestions(facts, ())
    assert line.startswith("none: ")


def test_direct_access_across_a_host_bridge_is_worth_a_try() -> None:
    facts = machine("l4-phb")
    lines = format_suggestions(facts, suggest(facts))
    assert lines[0] == "export NCCL_P2P_LEVEL=PHB"
    assert "6 pairs of GPUs reach one another directly across the CPU's host bridge" in lines[1]
    assert lines[3] == "    try it: it may also cost speed; measure with and without it"


def test_what_is_set_and_costs_speed_is_unset() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["variables"] = {
            "NCCL_MAX_NCHANNELS": "12",
            "NCCL_P2P_DISABEL": "1",
            "NCCL_MIN_NRINGS": "8",
            "NCCL_NVLS_ENABLE": "2",
        }

    assert [one.command for one in suggest(machine("dgx-h100", change))] == [
        "unset NCCL_MAX_NCHANNELS",
        "unset NCCL_MIN_NRINGS",
        "unset NCCL_P2P_DISABEL",
    ]


def test_slow_ports_and_virtual_interfaces_are_left_out() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["network"]["ports"][7]["gbit"] = 100.0
        facts["network"]["interfaces"] += [{"name": "cni0", "up": True}, {"name": "docker0", "up": True}]

    found = {one.name: one for one in suggest(machine("dgx-h100", change))}
    assert found["NCCL_IB_HCA"].value == "^=mlx5_7"
    assert found["NCCL_SOCKET_IFNAME"].value == "=eno1"
    assert "cni0: bridges or tunnels" in found["NCCL_SOCKET_IFNAME"].reason
    assert "docker0" not in found["NCCL_SOCKET_IFNAME"].reason
