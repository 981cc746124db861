"""Which worker of xdist gets which tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from pytest_gpuperf.scheduling import is_wide, scheduler

NARROW = [f"test_a.py::test_x[2ranks-{n}]" for n in range(6)]
WIDE = [f"test_a.py::test_x[{n}-4ranks]" for n in range(4)]


class Worker:
    """A worker as far as a scheduler sees it."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.sent: list[int] = []
        self.gateway = SimpleNamespace(id=name)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def config(pytester: pytest.Pytester, *arguments: str) -> pytest.Config:
    made = pytester.parseconfig("-p", "xdist", "--tx=2*popen", *arguments)
    made.option.loadscopereorder = True
    return made


@pytest.mark.parametrize(
    ("nodeid", "gpus", "wide"),
    [
        ("test_a.py::test_x[4ranks]", 8, False),
        ("test_a.py::test_x[8ranks]", 8, True),
        ("test_a.py::test_x[3ranks-fp32]", 4, True),
        ("test_a.py::test_x[fp32-2ranks]", 4, False),
        ("test_a.py::test_x[1rank]", 1, True),
        ("test_a.py::test_of_4ranks", 4, False),
        ("test_a.py::test_x[44ranks_or_so]", 4, False),
        ("test_a.py::test_x", 4, False),
    ],
)
def test_a_test_of_more_than_half_of_the_gpus_is_wide(nodeid: str, gpus: int, wide: bool) -> None:
    assert is_wide(nodeid, gpus) is wide


def test_one_worker_runs_all_wide_tests_when_the_others_are_handed_out(pytester: pytest.Pytester) -> None:
    tests = [*WIDE, *NARROW]
    made: Any = scheduler(config(pytester, "--dist=load"), Producer("test", enabled=False), 4)
    workers = [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        made.add_node(worker)
    for worker in workers:
        made.add_node_collection(worker, tests)
    made.schedule()
    for worker in workers:
        assert worker.sent
        assert min(worker.sent) >= len(WIDE)
    while made.has_pending:
        worker = next(worker for worker in workers if worker.sent)
        made.mark_test_complete(worker, worker.sent.pop(0))
        if any(index < len(WIDE) for index in worker.sent):
            break
    one, other = sorted((set(worker.sent) for worker in workers), key=min)
    assert one >= {0, 1, 2, 3}
    assert other.isdisjoint({0, 1, 2, 3})
    assert not made.workqueue


@pytest.mark.parametrize(("dist", "gpus"), [("load", 0), ("loadgroup", 4), ("worksteal", 4), ("no", 4)])
def test_xdists_own_schedulers_are_left_alone(pytester: pytest.Pytester, dist: str, gpus: int) -> None:
    assert scheduler(config(pytester, f"--dist={dist}"), Producer("test", enabled=False), gpus) is None
