"""The manifests that users copy: they start this command, with options that it has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pytest_gpuperf.__main__ import main
from tests.whole_run import ROOT

MANIFESTS = sorted((ROOT / "docs" / "manifests").glob("*.yaml"))


def documents(name: str) -> dict[str, Any]:
    text = (ROOT / "docs" / "manifests" / name).read_text()
    return {document["kind"]: document["spec"] for document in yaml.safe_load_all(text)}


def pods() -> list[Any]:
    """The pod specs that hold ranks."""
    runtime = documents("trainjob.yaml")["TrainingRuntime"]
    (node,) = runtime["template"]["spec"]["replicatedJobs"]
    worker = documents("mpijob.yaml")["MPIJob"]["mpiReplicaSpecs"]["Worker"]
    return [node["template"]["spec"]["template"]["spec"], worker["template"]["spec"]]


def started() -> list[list[str]]:
    """The commands that are started, from their options on, and the environments that they have."""
    trainer = documents("trainjob.yaml")["TrainJob"]["trainer"]
    launcher = documents("mpijob.yaml")["MPIJob"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    lines = [[*one["command"], *one["args"]] for one in (trainer, launcher)]
    return [line[line.index("pytest_gpuperf") + 1 :] for line in lines]


def test_all_manifests_are_looked_at() -> None:
    assert [path.name for path in MANIFESTS] == ["mpijob.yaml", "trainjob.yaml"]


@pytest.mark.parametrize("line", started(), ids=["TrainJob", "MPIJob"])
def test_their_commands_are_understood(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert all(isinstance(word, str) for word in line)
    assert line[0] == "everywhere"
    assert line[line.index("--") + 1] == "pytest"
    with pytest.raises(SystemExit) as ended:  # as if all of its options were there, and no command
        main([*line[: line.index("--")], "--rank=9", "--nodes=2", "--"])
    assert ended.value.code == 2
    assert "error: no command is given" in capsys.readouterr().err


@pytest.mark.parametrize("pod", pods(), ids=["TrainJob", "MPIJob"])
def test_pods_have_shared_memory(pod: dict[str, Any]) -> None:
    assert pod["hostIPC"] is True
    (volume,) = pod["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}


def test_gpus_network_adapters_and_the_token_are_asked_for() -> None:
    trainer = documents("trainjob.yaml")["TrainJob"]["trainer"]
    replicas = documents("mpijob.yaml")["MPIJob"]["mpiReplicaSpecs"]
    worker = replicas["Worker"]["template"]["spec"]["containers"][0]
    launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]
    for limits in (trainer["resourcesPerNode"]["limits"], worker["resources"]["limits"]):
        assert {"nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"} <= set(limits)
    for one in (trainer, launcher):
        assert one["env"][0]["name"] == "RAY_AUTH_TOKEN"
        assert one["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "token"
    assert launcher["command"][launcher["command"].index("-x") + 1] == "RAY_AUTH_TOKEN"
    head = launcher["args"][launcher["args"].index("--head") + 1]
    assert head == "gpuperf-worker-0.gpuperf"
