"""Files that share a cluster run in one worker, and no other file is left out of the list."""

from pathlib import Path

import pytest

from tests.scheduling import SHARED_CLUSTERS, SchedulingByCluster

FIXTURES = {"two nodes": "two_nodes: Raylets", "two nodes with GPUs": "two_nodes_with_gpus: Raylets"}


@pytest.mark.parametrize("group", SHARED_CLUSTERS)
def test_every_file_that_uses_a_shared_cluster_is_in_its_group(group: str) -> None:
    files = (Path(__file__).parent / "cluster").glob("test_*.py")
    using = {file.stem.removeprefix("test_") for file in files if FIXTURES[group] in file.read_text()}
    assert using == set(SHARED_CLUSTERS[group])


def test_files_of_a_group_are_one_unit_and_all_others_their_own() -> None:
    split = SchedulingByCluster._split_scope
    scheduling = SchedulingByCluster.__new__(SchedulingByCluster)
    one, other, apart = (
        split(scheduling, f"tests/{file}.py::test_it[a::b]")
        for file in ("cluster/test_runs", "cluster/test_ports", "cluster/test_losses")
    )
    assert one == other == "two nodes"
    assert apart == "tests/cluster/test_losses.py"
