"""Nodes with unlike GPUs or networks: a run refuses them by name, or runs under a key that lists each kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.raylets import Raylets
from tests.whole_run import WholeRun, run_pytest, write

SLOW = 300  # seconds; generous, since a machine may be busy
CONFTEST = """
import pytest
from tests.cluster import fake_nodes
fake_nodes.install(pytest.MonkeyPatch(), {made_up})
"""
TEST = """
import time
import pytest

def sleeping(ctx):
    return lambda: time.sleep(1e-3)

@pytest.mark.perf
@pytest.mark.ranks(nodes=2)
def test_it(perf):
    timing = perf.configured(samples=6, budget=0.01).measure(sleeping)
    perf.check(time=timing.time)
"""


def run_on(cluster: Raylets, folder: Path, made_up: str, *options: str) -> WholeRun:
    write(folder, {"conftest.py": CONFTEST.format(made_up=made_up), "test_it.py": TEST})
    return run_pytest(folder, "--cluster", cluster.address, "--gpus=2", *options, timeout=SLOW)


@pytest.mark.parametrize(
    ("made_up", "said"),
    [
        ('models={"gpu-b": "NVIDIA B300"}', "GPUs NVIDIA B300 on gpu-b, NVIDIA H200 on gpu-a"),
        ('fabrics={"gpu-a": "ib", "gpu-b": "roce"}', "network ib on gpu-a, roce on gpu-b"),
    ],
    ids=["GPUs", "network"],
)
def test_unlike_nodes_are_refused_by_name(
    two_nodes_with_gpus: Raylets, tmp_path: Path, made_up: str, said: str
) -> None:
    run = run_on(two_nodes_with_gpus, tmp_path, made_up)
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"are unlike: {said}: take such a node out of the cluster, or pass --allow-unlike-nodes" in run.text
    assert not run.outcomes


def test_nodes_with_the_same_gpu_are_refused(two_nodes_with_gpus: Raylets, tmp_path: Path) -> None:
    """As where a launcher counts the GPUs of each pod from 0, and the pods see those of the whole machine."""
    run = run_on(two_nodes_with_gpus, tmp_path, "shared=True", "--allow-unlike-nodes")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(
        r"nodes gpu-a and gpu-b have the same GPU GPU-\S+-of-all: hide the other nodes' GPUs from each node, by its "
        "container's devices, or by CUDA_VISIBLE_DEVICES before Ray starts there",
        run.text,
    )
    assert not run.outcomes


def test_figures_of_unlike_nodes_have_a_key_of_their_own(two_nodes_with_gpus: Raylets, tmp_path: Path) -> None:
    made_up = 'models={"gpu-a": "NVIDIA H200", "gpu-b": "NVIDIA B300"}'
    measuring = ("--allow-unlike-nodes", "--no-strict-baselines", "--gpuperf-json=results.json")
    run = run_on(two_nodes_with_gpus, tmp_path, made_up, *measuring)
    key = "1n-1x-nvidia-b300-tcp+1n-1x-nvidia-h200-tcp"
    # By kind before name, so that the first rank is on the same GPUs wherever there are such nodes.
    assert f"ranks run on 2 nodes (gpu-b, gpu-a) with NCCL, hardware key {key}" in run.text
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["hardware_key"] == key
    assert "test_it.py::test_it[2ranks]" in json.dumps(results), run.text
