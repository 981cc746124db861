"""What tests of clusters share: Ray starts slowly, so one cluster of a kind serves all that leave it whole."""

from collections.abc import Iterator

import pytest

from tests.cluster.raylets import Raylets, raylets  # before Ray is imported, which reads the token then

pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")


@pytest.fixture(scope="package")
def two_nodes() -> Iterator[Raylets]:
    """Two nodes, gpu-a and gpu-b, with 2 CPUs each."""
    with raylets("gpu-a", "gpu-b") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def two_nodes_with_gpus() -> Iterator[Raylets]:
    """Two nodes, gpu-a and gpu-b, with 1 CPU each, and 1 GPU that exists for Ray alone."""
    with raylets("gpu-a", "gpu-b", cpus=1, gpus=1) as cluster:
        yield cluster
