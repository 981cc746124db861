"""The nodes of a run are handed to the runs that it starts by their environment, once."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")

from pytest_gpuperf.features.cluster.lending import Lent, LentNode
from pytest_gpuperf.features.cluster.node_host import NodeHost
from pytest_gpuperf.features.cluster.reservation import Reservation
from pytest_gpuperf.ranks.spec import PoolSpec

GROUP = "0123456789abcdef0123456789abcdef0100"
LENT = Lent(
    "192.0.2.1:6379",
    GROUP,
    Reservation(({"GPU": 2.0}, {"GPU": 1.0}), gpus=True),
    ("a.module",),
    (LentNode("b", 1, "GPU-b", {"NAME": "of b"}), LentNode("a", 0, "GPU-a,GPU-c", {})),
)


def test_the_environment_carries_all_of_it_and_ranks_do_not_inherit_it() -> None:
    environ = {"PATH": "/bin", **LENT.variables()}
    taken = Lent.take_from(environ)
    assert taken == LENT
    assert environ == {"PATH": "/bin"}
    assert Lent.take_from(environ) is None
    assert taken.group().id.hex() == GROUP
    assert taken.find_by_bundle(1).gpus == "GPU-b"
    assert taken.list_lost(["a", "c"]) == ["b"]


def test_a_host_on_a_lent_node_has_its_gpus_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which Ray sets for an actor without GPUs
    monkeypatch.setenv("PYTHONPATH", "/present")
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "192.0.2.1")
    monkeypatch.setattr("pytest_gpuperf.features.cluster.node_host._leave_with", lambda raylet: None)
    host = NodeHost((), {}, {"PYTHONPATH": "/old"}, "GPU-a")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert host._make_environ(PoolSpec(2), {"PYTHONPATH": "/run"})["PYTHONPATH"] == "/old"
