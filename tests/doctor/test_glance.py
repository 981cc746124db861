"""The doctor's line of a run."""

import threading

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.glance import Glance
from tests.doctor.machines import machine


def line_of(name: str) -> str:
    return Glance(lambda: machine(name)).header(seconds=10)


def test_a_machine_that_is_well() -> None:
    assert line_of("dgx-h100") == "doctor: nothing critical, no warnings"


def test_the_worst_finding_and_how_many_more() -> None:
    line = line_of("pod-one-gpu")
    assert line.startswith("doctor: critical: memory that may be locked is limited to 64 KiB")
    assert line.endswith("; 3 more: python -m pytest_gpuperf doctor")


def test_one_finding_alone() -> None:
    assert line_of("a100-mig") == (
        "doctor: critical: GPU 0: split into MIG slices (7 in all); see python -m pytest_gpuperf doctor"
    )


class Slow:
    """A library that opens when the test lets it."""

    def __init__(self, name: str) -> None:
        self.opened = threading.Event()
        self.glance = Glance(self._look)
        self._name = name

    def _look(self) -> Facts:
        self.opened.wait(10)
        return machine(self._name)

    def late(self) -> str:
        self.opened.set()
        self.glance._thread.join(10)
        return self.glance.late()


def test_a_slow_library_holds_nobody_up_and_what_it_finds_is_told_at_the_end() -> None:
    slow = Slow("a100-mig")
    assert slow.glance.header(seconds=0.01) == ""
    assert slow.glance.late() == ""  # also of a run that ends earlier
    assert slow.late().startswith("doctor: critical: GPU 0: split into MIG slices")


def test_at_the_end_only_what_matters_is_told() -> None:
    slow = Slow("dgx-h100")
    assert slow.glance.header(seconds=0.01) == ""
    assert slow.late() == ""


def test_what_the_header_has_told_is_not_told_again() -> None:
    glance = Glance(lambda: machine("a100-mig"))
    assert glance.header(seconds=10)
    assert glance.late() == ""


def test_a_failing_reader_fails_no_run() -> None:
    def failing() -> Facts:
        raise ValueError("no")

    assert Glance(failing).header(seconds=10) == "doctor: failed with ValueError; see python -m pytest_gpuperf doctor"
