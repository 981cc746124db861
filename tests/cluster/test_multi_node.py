"""The suite of several nodes, on four raylets of this machine: its tests pass there, and perf tests' bodies run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.raylets import raylets
from tests.whole_run import ROOT, WholeRun, run_pytest

SLOW = 300  # seconds; generous, since a machine may be busy
HERE = ("-o", "addopts=", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"))
# Without GPUs, two nodes of a marker have one rank each; what needs two on each would be skipped.
BODIES = """
import pytest
from suites.multi_node import test_performance as bodies

pytestmark = [pytest.mark.perf, pytest.mark.ranks(4, nodes=2)]

def test_bandwidth(perf, ranks):
    bodies.test_bandwidth_inside_and_between_nodes(perf, ranks)

def test_sum(perf):
    bodies.test_hierarchical_sum(perf)

def test_training(perf):
    bodies.test_tensors_inside_nodes_and_data_across(perf)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeRun]:
    leases = f"gpuperf_leases={tmp_path_factory.mktemp('leases')}"
    suite, bodies = ROOT / "suites" / "multi_node", tmp_path_factory.mktemp("bodies") / "test_bodies.py"
    bodies.write_text(BODIES)
    with raylets("gpu-a", "gpu-b", "gpu-c", "gpu-d", cpus=1) as four_nodes:
        options = ("--cluster", four_nodes.address, "--smoke", "--hypothesis-profile=quick", "-o", leases, *HERE)
        yield run_pytest(ROOT, str(suite), str(bodies), *options, timeout=SLOW)


def test_every_test_passes_on_nodes(run: WholeRun) -> None:
    ended = run.outcomes.values()
    assert run.result.ret == 0, run.text
    assert "FAILED" not in ended
    skipped = {name for name, outcome in run.outcomes.items() if outcome == "SKIPPED"}
    assert skipped == {"test_hierarchical_sum[2ranks]", "test_acceptance_on_cpus[4ranks]"}, run.text
    on_nodes = ["test_ranks_are_where_they_say[2ranks]", "test_ranks_are_where_they_say[4ranks]"]
    on_nodes += ["test_training_in_both_layouts[4ranks]", "test_hierarchical_sum[4ranks]", "test_messages[4ranks]"]
    assert {run.outcomes[name] for name in on_nodes} == {"PASSED"}


def test_what_was_slowed_down_is_named(run: WholeRun) -> None:
    names = ["test_of_two_nodes_the_slow_one_is_named[2ranks]", "test_the_slow_node_is_named[4ranks]"]
    names += ["test_a_slow_link_between_nodes_is_named[4ranks]", "test_a_slow_gpu_of_a_node_is_named[4ranks]"]
    assert {run.outcomes[name] for name in names} == {"PASSED"}


def test_bodies_of_perf_tests_run_on_nodes(run: WholeRun) -> None:
    bodies = ["test_bandwidth[4ranks]", "test_sum[4ranks]", "test_training[4ranks]", "test_acceptance[4ranks]"]
    assert [name for name in bodies if f"::{name} PASSED" not in run.text] == []
    assert "6 perf tests ran and handed over 27 metrics; --smoke judges none" in run.text
