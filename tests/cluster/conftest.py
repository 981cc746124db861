"""What tests of clusters share: Ray starts slowly, so one cluster of two nodes serves all that leave it whole."""

from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install pytest-gpuperf[cluster]")

from tests.cluster.raylets import Raylets, raylets


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Raylets]:
    """Two nodes, gpu-a and gpu-b, with 2 CPUs each."""
    with raylets("gpu-a", "gpu-b") as cluster:
        yield cluster
