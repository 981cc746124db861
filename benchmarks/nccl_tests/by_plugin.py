"""The plugin's arm: a real run of pytest for each turn, with the programs of suites/collectives.

But for the latency of send/recv, see ring of plugin_module.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

from benchmarks.nccl_tests.output import nccl_version
from benchmarks.nccl_tests.plan import SHARED_DEFAULTS, ArmError, Figure, Plan, Point, Turn
from benchmarks.pytest_command import pytest_command
from pytest_gpuperf import __version__

MODULE = Path(__file__).with_name("plugin_module.py")
ROOT = Path(__file__).parents[2]
TIMEOUT = 1800.0  # seconds for a turn


def turn(plan: Plan, *arguments: str) -> Turn:
    """Measures everything once.

    Args:
        plan: what.
        arguments: for pytest: ``--gpus``.

    Raises:
        ArmError: pytest measured less than was asked for.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(MODULE, folder / "test_sweeps.py")
        (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\ngpuperf_timeout = 300\n")
        report = folder / "report.xml"
        try:
            done = subprocess.run(
                pytest_command("-p", "no:cacheprovider", *arguments, f"--junitxml={report}", "test_sweeps.py"),
                cwd=folder,
                env={**SHARED_DEFAULTS, **os.environ, "PYTHONPATH": _path(), "AGAINST_NCCL_TESTS_PLAN": dump(plan)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
                check=False,  # tests fail for want of a baseline; what they measured is in the report all the same
            )
        except subprocess.TimeoutExpired as error:
            raise ArmError(f"the plugin's run of pytest did not end within {TIMEOUT:g} s: ask for less") from error
        if not report.exists():
            raise ArmError(f"the plugin's run of pytest ended without a report:\n{done.stdout}")
        return read(report, plan)


def read(report: Path, plan: Plan) -> Turn:
    """What a JUnit report of the tests says.

    Args:
        report: the XML file.
        plan: what it must hold.

    Raises:
        ArmError: It holds less; has the words of the test that failed.
    """
    figures: dict[Point, Figure] = {}
    nccl: set[int | None] = set()
    failures = []
    for case in ElementTree.parse(report).iter("testcase"):
        properties = [(found.attrib["name"], found.attrib["value"]) for found in case.iter("property")]
        for name, value in properties:
            if name == "point":
                found = json.loads(value)
                figures[Point(**found["point"])] = Figure(**found["figure"])
            elif name == "nccl":
                nccl.add(json.loads(value))
        if not any(name == "nccl" for name, _ in properties):
            words = [f"{child.get('message') or ''}\n{child.text or ''}" for child in case if child.tag != "properties"]
            failures.append(f"{case.get('name')}: {' '.join(words).strip()}")
    missing = [point for _, point in plan.points if point not in figures]
    if missing or failures:
        told = failures[0] if failures else "no test of it was in the report"
        raise ArmError(f"the plugin did not measure all of the plan, first {missing[:1]} is missing: {told}")
    codes = {code for code in nccl if code is not None}
    return Turn(
        figures, ", ".join(nccl_version(code) for code in sorted(codes)) or "none", f"pytest-gpuperf {__version__}"
    )


def dump(plan: Plan) -> str:
    """The plan as the tests read it."""
    sweeps = [{**asdict(sweep), "sizes": sweep.sizes} for sweep in plan.sweeps]
    return json.dumps({"ops": plan.ops, "ranks": plan.ranks, "sweeps": sweeps})


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
