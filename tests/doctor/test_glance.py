"""The doctor's line in the header of a run."""

import time

from pytest_gpuperf.doctor.facts import Facts
from pytest_gpuperf.doctor.glance import glance
from tests.doctor.machines import machine


def test_a_machine_that_is_well() -> None:
    assert glance(lambda: machine("dgx-h100"), seconds=10) == "doctor: nothing critical, no warnings"


def test_the_worst_finding_and_how_many_more() -> None:
    line = glance(lambda: machine("pod-one-gpu"), seconds=10)
    assert line.startswith("doctor: critical: memory that may be locked is limited to 64 KiB")
    assert line.endswith("; 3 more: python -m pytest_gpuperf doctor")


def test_one_finding_alone() -> None:
    line = glance(lambda: machine("a100-mig"), seconds=10)
    assert line == "doctor: critical: GPU 0: split into MIG slices (7 in all); see python -m pytest_gpuperf doctor"


def test_a_slow_library_holds_nobody_up() -> None:
    def slow() -> Facts:
        time.sleep(1)
        return Facts()

    assert glance(slow, seconds=0.01) == "doctor: not done within 10 ms; see python -m pytest_gpuperf doctor"


def test_a_failing_reader_fails_no_run() -> None:
    def failing() -> Facts:
        raise ValueError("no")

    assert glance(failing, seconds=10) == "doctor: failed with ValueError; see python -m pytest_gpuperf doctor"
