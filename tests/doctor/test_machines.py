"""What the doctor finds on nine kinds of machines: what hurts is named, and nothing else."""

import json

import pytest

from pytest_gpuperf.features.doctor.diagnosis import blocks, diagnose
from pytest_gpuperf.features.doctor.finding import Severity
from pytest_gpuperf.features.doctor.topology_table import format_table
from pytest_gpuperf.hardware.topology import label_pairs
from tests.doctor.machines import FOLDER, NAMES, machine

FOUND = {
    "a100-mig": {("critical", "mig")},
    "a100-pcie": set(),
    "dgx-1v": set(),
    "dgx-h100": set(),
    "gb200-nvl72": set(),
    "l4-phb": set(),
    "pod-one-gpu": {
        ("critical", "memlock"),
        ("warning", "shared memory"),
        ("warning", "pod placement"),
        ("warning", "cores"),
    },
    "rtx4090": {
        ("warning", "pcie width"),
        ("warning", "persistence"),
        ("warning", "open files"),
        ("warning", "governor"),
    },
    "vm-h200": {("warning", "variables")},
}
BAD = (Severity.CRITICAL, Severity.WARNING)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_has_the_faults_that_it_has_and_no_other(name: str) -> None:
    findings = diagnose(machine(name))
    assert {(one.severity.value, one.check) for one in findings if one.severity in BAD} == FOUND[name]
    assert blocks(findings) is any(severity == "critical" for severity, _ in FOUND[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_says_where_its_facts_are_from(name: str) -> None:
    source = json.loads((FOLDER / f"{name}.json").read_text())["source"]
    assert source.startswith(("Made after ", "Captured on "))


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_says_why_it_matters_and_what_to_do(name: str) -> None:
    for finding in diagnose(machine(name)):
        assert finding.what
        if finding.severity in (*BAD, Severity.UNKNOWN):
            assert finding.why
            assert finding.action


def test_the_worst_comes_first() -> None:
    ranks = [finding.severity.rank for finding in diagnose(machine("pod-one-gpu"))]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-h100", {"NV18"}),
        ("vm-h200", {"NV18"}),
        ("gb200-nvl72", {"NV18"}),
        ("a100-pcie", {"NV12", "SYS"}),
        ("l4-phb", {"PHB"}),
        ("dgx-1v", {"NV1", "NV2", "SYS"}),
    ],
)
def test_the_topology_is_in_the_words_of_nvidia_smi(name: str, words: set[str]) -> None:
    assert set(label_pairs(machine(name).inspection).values()) == words


def test_the_table_of_a_box_with_bridges() -> None:
    facts = machine("a100-pcie")
    assert format_table(facts.inspection, facts.system.nodes) == [
        "      GPU0  GPU1  GPU2  GPU3  CPU cores  NUMA",
        "GPU0  X     NV12  SYS   SYS   0-31       0",
        "GPU1  NV12  X     SYS   SYS   0-31       0",
        "GPU2  SYS   SYS   X     NV12  32-63      1",
        "GPU3  SYS   SYS   NV12  X     32-63      1",
    ]


def test_a_machine_that_hides_its_topology_has_question_marks() -> None:
    facts = machine("l4-phb", lambda facts: [pair.update(distance="") for pair in facts["inspection"]["pairs"]])
    assert "GPU0  X     ?     ?     ?     0-95       0" in format_table(facts.inspection, facts.system.nodes)
