"""One machine as several nodes: which share each has, and a run on two of them, with CPUs in place of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import nodes_of_one_machine
from benchmarks.nodes_of_one_machine import environment, main, start_command, started
from tests.ranks.processes import survivors
from tests.whole_run import write

TEST = """
import os
import pytest

@pytest.mark.ranks(nodes="all")
def test_it(ranks):
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    found = ranks.run(lambda ctx: (ctx.node_name, os.environ["NCCL_HOSTID"], os.getppid()))
    assert [one[:2] for one in found] == [("node-0", "node-0"), ("node-1", "node-1")]
    print("forked from", *(one[2] for one in found))
"""


def test_each_node_has_gpus_ports_and_an_identity_of_its_own() -> None:
    assert [environment(number, 4)["CUDA_VISIBLE_DEVICES"] for number in range(2)] == ["0,1,2,3", "4,5,6,7"]
    assert [environment(number, 1)["NCCL_HOSTID"] for number in range(2)] == ["node-0", "node-1"]
    head, other = (start_command(number, 7000, 4, 8) for number in range(2))
    assert {"--head", "--port=7000", "--num-gpus=4", "--min-worker-port=20000"} <= set(head)
    assert {"--address=127.0.0.1:7000", "--num-gpus=4", "--min-worker-port=21000"} <= set(other)
    assert "--head" not in other


def test_nodes_find_what_the_shell_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself may lie in a folder that PYTHONPATH names."""
    monkeypatch.setenv("PYTHONPATH", "/opt/ray")
    assert environment(0, 1)["PYTHONPATH"] == f"{nodes_of_one_machine.ROOT}:/opt/ray"
    monkeypatch.delenv("PYTHONPATH")
    assert environment(0, 1)["PYTHONPATH"] == str(nodes_of_one_machine.ROOT)


def test_gpus_that_cannot_be_dealt_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--nodes", "2", "--gpus", "3"])
    assert "3 GPUs cannot be dealt evenly to 2 nodes" in capsys.readouterr().err


def test_a_node_that_does_not_come_up_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")
    monkeypatch.setattr(nodes_of_one_machine, "STORE", -1)
    with (
        pytest.raises(RuntimeError, match=r"(?s)^ray start --head .* brought no node up; it printed:\n."),
        started(1, 0, 1, {}),
    ):
        pass


def test_pytest_runs_on_the_nodes_and_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")
    token = tmp_path / "home" / ".ray" / "auth_token"  # as Ray leaves there when it starts a cluster by itself
    token.parent.mkdir(parents=True)
    token.write_text(64 * "0")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, {"test_it.py": TEST})
    assert (
        main(["--nodes", "2", "--", str(tmp_path), f"--rootdir={tmp_path}", "-q", "-s", "-p", "no:cacheprovider"]) == 0
    )
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32)" in said
    (line,) = [line for line in said.splitlines() if "forked from" in line]
    assert survivors([int(pid) for pid in line.partition("forked from")[2].split()]) == []
