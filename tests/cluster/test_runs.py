"""Whole runs on a cluster of two raylets: the same tests, the same verdicts, and every report names the node."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.programs_on_nodes import KILLED, LOSES, MODULE, VERDICTS
from tests.cluster.raylets import Raylets, raylets
from tests.ranks.processes import survivors
from tests.whole_run import WholeRun, environment, run_pytest

SLOW = 300  # seconds; generous, since a machine may be busy


@pytest.fixture(scope="module")
def run(two_nodes: Raylets, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = tmp_path_factory.mktemp("verdicts")
    (folder / "beside.py").write_text(MODULE)
    (folder / "test_it.py").write_text(VERDICTS)
    return run_pytest(folder, "--cluster", two_nodes.address, timeout=SLOW)


def test_the_header_names_the_nodes(run: WholeRun) -> None:
    assert "gpuperf: ranks run on 2 nodes (gpu-a, gpu-b) with gloo; correctness only" in run.text


def test_verdicts_are_those_of_one_machine(run: WholeRun) -> None:
    passed = [
        "test_draws[2ranks]",
        "test_is_as_nice_as_pytest[2ranks]",
        "test_is_packed[2ranks]",
        "test_is_packed[4ranks]",
        "test_launched[2ranks]",
    ]
    passed += ["test_one_on_all[2ranks]", "test_one_on_each[2ranks]", "test_outer_axis_is_nodes[4ranks]"]
    passed += ["test_sends_much[4ranks]", "test_what_ray_has_set_here_is_undone"]
    passed += ["test_shares_cpus[5ranks]", "test_sums[1rank]", "test_sums[2ranks]", "test_sums[4ranks]"]
    failed = ["test_dies[4ranks]", "test_hangs[4ranks]", "test_never_ends[4ranks]", "test_prints[4ranks]"]
    failed += ["test_raises[4ranks]"]
    skipped = ["test_needs_three[3ranks]", "test_skips[4ranks]"]
    said = {**dict.fromkeys(passed, "PASSED"), **dict.fromkeys(failed, "FAILED"), **dict.fromkeys(skipped, "SKIPPED")}
    assert run.outcomes == said, run.text


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_raises[4ranks]", "raised on rank 3 of 4 (node gpu-b, gloo) in test_it:test_raises.<locals>.program"),
        ("test_raises[4ranks]", "ValueError: no"),
        ("test_raises[4ranks]", "rank 3 never issued barrier (collective 1 of the program), which ranks 0, 1, 2 did"),
        ("test_dies[4ranks]", "RankDied: rank 2 of 4 (node gpu-b, gloo) in test_it:test_dies.<locals>.program exited"),
        ("test_dies[4ranks]", "node gpu-a has ranks 0, 1; node gpu-b has ranks 2, 3"),
        ("test_hangs[4ranks]", "RankTimeout: ranks 0, 1, 2, 3 of 4 (gloo) did not return"),
        ("test_hangs[4ranks]", "rank 1 alone is in "),
        ("test_hangs[4ranks]", "ranks 0, 2, 3 are in barrier"),
        ("test_hangs[4ranks]", "node gpu-a has ranks 0, 1; node gpu-b has ranks 2, 3"),
        ("test_never_ends[4ranks]", "ranks 0, 1, 2 wait in all_reduce Float[1]; rank 3 returned without it"),
        ("test_never_ends[4ranks]", "rank 3 never issued all_reduce Float[1] (collective 1 of the program), which"),
        ("test_never_ends[4ranks]", "of the program), which ranks 0, 1, 2 did"),
        ("test_prints[4ranks]", "stdout of rank 3 of 4"),
        ("test_prints[4ranks]", "here is rank 3"),
        ("test_dies[4ranks]", "last words"),
    ],
)
def test_reports_say_which_rank_of_which_node(run: WholeRun, test: str, said: str) -> None:
    assert said in run.report(test)


def test_what_does_not_fit_is_skipped_with_the_reason(run: WholeRun) -> None:
    assert "needs 3 nodes, the run has 2" in run.text
    assert "not today" in run.text


def test_ray_prints_nothing(run: WholeRun) -> None:
    assert not re.search(r"\(raylet\)|gcs_client|ray::|INFO worker", run.text)
    assert run.result.stderr.str() == ""


def await_file(path: Path) -> None:
    until = time.monotonic() + SLOW
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def losses_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("losses")


@pytest.fixture(scope="module")
def losses(losses_folder: Path) -> Iterator[WholeRun]:
    folder = losses_folder
    (folder / "test_it.py").write_text(LOSES)
    os.mkfifo(folder / "added")
    variables = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
    with raylets("gpu-a", "gpu-b", env=variables, forks=False) as cluster:  # the test looks for what is below daemons

        def add() -> None:
            await_file(folder / "add")
            cluster.add("gpu-c")
            (folder / "added").write_text("")  # a pipe, which a test reads

        adding = threading.Thread(target=add)
        adding.start()
        yield run_pytest(folder, "--cluster", cluster.address, "-o", "gpuperf_node_timeout=15", timeout=SLOW)
        adding.join()
        (stopped,) = [int((folder / name).read_text()) for name in ("stopped",)]
        os.kill(stopped, signal.SIGKILL)


def test_a_lost_node_fails_its_test_alone(losses: WholeRun) -> None:
    assert losses.outcomes == {
        "test_node_is_killed[4ranks]": "FAILED",
        "test_goes_on_with_what_is_left[4ranks]": "PASSED",
        "test_waits_for_another[2ranks]": "PASSED",
        "test_node_is_stopped[2ranks]": "FAILED",
        "test_goes_on_without_it[2ranks]": "PASSED",
        "test_head_is_killed[2ranks]": "PASSED",
        "test_goes_on_without_a_head[1rank]": "PASSED",
        "test_goes_on_without_a_head[2ranks]": "PASSED",
    }


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (
            "test_node_is_killed[4ranks]",
            r"RankDied: rank 2 of 4 \(node gpu-b, gloo\) in \S+ was lost: node gpu-b is gone: Ray's daemon on it "
            r"ended, or it is cut off",
        ),
        ("test_node_is_killed[4ranks]", r"node gpu-a has ranks 0, 1; node gpu-b has ranks 2, 3"),
        (
            "test_node_is_stopped[2ranks]",
            r"RankDied: rank 1 of 2 \(node gpu-c, gloo\) in \S+ was lost: node gpu-c did not answer within 15 s: it is "
            r"stopped, cut off or overloaded",
        ),
    ],
)
def test_the_report_names_the_lost_node(losses: WholeRun, test: str, said: str) -> None:
    assert re.search(said, losses.report(test)), losses.report(test)


def test_nothing_outlives_a_daemon_that_was_killed(losses: WholeRun, losses_folder: Path) -> None:
    assert losses.outcomes["test_node_is_killed[4ranks]"] == "FAILED"
    assert survivors([int((losses_folder / "child").read_text())]) == []


@pytest.mark.parametrize("killed", ["controller", "hosts"])
def test_nothing_outlives_a_controller_or_a_host_that_was_killed(
    two_nodes: Raylets, tmp_path: Path, killed: str
) -> None:
    (tmp_path / "test_it.py").write_text(KILLED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cluster", two_nodes.address]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as controller:
        until = time.monotonic() + SLOW
        while len(started := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 10:
            assert time.monotonic() < until  # for four ranks, a child of each, and two forkservers
            time.sleep(0.05)
        if killed == "hosts":
            hosts = two_nodes.processes("ray::NodeHost")
            assert len(hosts) >= 2  # one of a run before may not have ended yet
            for host in hosts:
                os.kill(host, signal.SIGKILL)
            assert survivors(started) == []
        controller.kill()
    assert survivors(started) == []
