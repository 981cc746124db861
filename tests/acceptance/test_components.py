"""Every figure, test and finding speaks for the component that it should."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from pytest_gpuperf.features.acceptance.components import (
    MACHINE,
    explain,
    find_component,
    find_subject,
    is_number,
    is_soak,
)
from pytest_gpuperf.features.doctor.diagnosis import diagnose
from pytest_gpuperf.features.doctor.finding import Severity
from tests.acceptance.collected import node_ids
from tests.acceptance.examples import SOAK, node_id, ran
from tests.doctor.machines import NAMES, machine
from tests.whole_run import ROOT

PARTS = {component.name for component in MACHINE}
STEPS = {
    "activations",
    "compression",
    "context parallel",
    "data parallel",
    "expert parallel",
    "fault tolerance",
    "hybrid",
    "llm step",
    "megatron",
    "overlap",
    "pipeline parallel",
    "sequence parallel",
    "serving",
    "sharded data parallel",
    "stragglers",
    "tensor parallel",
    "zero infinity",
}
NEW = (
    (node_id("host", "cores[2ranks]"), "share"),
    (node_id("memory_hierarchy", "tiers[2ranks]"), "host"),
    (node_id("network", "bandwidth[2ranks]"), "slowest"),
    (node_id("multi_node", "all_reduce[2ranks]"), "busbw"),
)
"""Metrics of the machine's components that the record of two GPUs of one host does not have."""


def every_metric() -> list[tuple[str, str]]:
    stored = json.loads((ROOT / "baselines" / "2x-nvidia-h200-nv18.json").read_text())
    return [*((test, name) for test, entry in stored["tests"].items() for name in entry["metrics"]), *NEW]


def severities_by_check() -> dict[str, set[str]]:
    """The checks in the doctor's source: the severities with which each reports findings."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in (ROOT / "pytest_gpuperf" / "features" / "doctor" / "checks").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                severity = node.func.id.removeprefix("make_")
                if severity in ("critical", "warning", "unknown", "info", "passed"):
                    assert isinstance(node.args[0], ast.Constant), f"{file.name}:{node.lineno} names no check"
                    found[str(node.args[0].value)].add(severity)
    return found


def test_every_suite_with_perf_tests_is_a_part_of_the_machine_or_a_step() -> None:
    components = {find_component(test) for test in node_ids(perf=True)}
    assert components - PARTS == STEPS
    assert {find_subject(test) for test in node_ids(perf=True)} <= {path.name for path in (ROOT / "suites").iterdir()}


def test_every_component_has_a_metric_for_each_of_its_expressions() -> None:
    told = [f"{find_subject(test)}::{test.rpartition('::')[2]} {name}" for test, name in every_metric()]
    unused = [
        pattern
        for component in MACHINE
        for pattern in component.figures
        if not any(re.match(pattern, one) and component_of_told(one) == component.name for one in told)
    ]
    assert unused == []


def component_of_told(told: str) -> str:
    test, _, name = told.rpartition(" ")
    subject, _, function = test.partition("::")
    return find_component(f"suites/{subject}/test_performance.py::{function}", name)


def test_every_metric_of_the_record_has_a_component() -> None:
    assert {find_component(test, name) for test, name in every_metric()} - PARTS <= STEPS


def test_every_check_of_a_component_is_one_of_the_doctor() -> None:
    named = {check for component in MACHINE for check in component.checks}
    assert named - set(severities_by_check()) == set()


def test_every_bad_finding_of_the_doctor_belongs_to_one_component() -> None:
    named = [check for component in MACHINE for check in component.checks]
    bad = {check for check, severities in severities_by_check().items() if severities & {"critical", "warning"}}
    assert bad - set(named) == set()
    assert len(named) == len(set(named))
    assert all(set(component.decisive) <= set(component.checks) for component in MACHINE)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_with_a_machine_belongs_to_a_component(name: str) -> None:
    named = {check for component in MACHINE for check in component.checks}
    found = {one.check for one in diagnose(machine(name)) if one.severity in (Severity.CRITICAL, Severity.WARNING)}
    assert found <= named


@pytest.mark.parametrize(
    ("metric", "component"),
    [
        ("copied", "GPU memory"),
        ("read", "GPU memory"),
        ("triad", "GPU memory"),
        ("read/host", "GPU memory"),
        ("to_gpu", "PCIe"),
        ("from_gpu_pageable", "PCIe"),
        ("both_ways", "PCIe"),
        ("to_peer", "links between GPUs"),
        ("host", "host"),
        ("", "GPU memory"),
    ],
)
def test_the_tiers_of_memory_speak_for_what_they_cross(metric: str, component: str) -> None:
    assert find_component(node_id("memory_hierarchy", "tiers[2ranks]"), metric) == component


@pytest.mark.parametrize(
    ("metric", "component"), [("own", "GPU memory"), ("host", "host"), ("peer", "links between GPUs")]
)
def test_latencies_of_loads_speak_for_the_memory_that_they_read(metric: str, component: str) -> None:
    assert find_component(node_id("symmetric_memory", "latency_of_loads[2ranks]"), metric) == component


def test_a_test_outside_the_suites_is_its_own_subject() -> None:
    assert find_subject("tests/test_mine.py::test_it") == "tests/test_mine.py::test_it"
    assert find_subject(node_id("llm_step", "step")) == "llm_step"


def test_no_finding_explains_a_step() -> None:
    assert explain("llm step").checks == ()
    assert "nvlink" in explain("links between GPUs").checks


def test_files_say_which_tests_are_of_correctness_and_which_are_soaks() -> None:
    assert not is_number(ran(node_id("collectives", "curve[2ranks]")))
    assert is_number(ran(node_id("collectives", "sums", "test_correctness.py")))
    assert is_number(ran(SOAK))
    assert is_soak(ran(SOAK))
    assert not is_soak(ran(node_id("collectives", "sums", "test_correctness.py")))


def test_only_the_suites_files_of_performance_have_perf_tests() -> None:
    """The acceptance of a cluster's hosts is another thing: it needs a cluster."""
    cluster = "suites/multi_node/test_hosts.py"
    assert {Path(test.partition("::")[0]).name for test in node_ids(perf=True) if not test.startswith(cluster)} == {
        "test_performance.py"
    }
    assert [test for test in node_ids(perf=False) if test.partition("::")[0].endswith("test_performance.py")] == []
