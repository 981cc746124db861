"""Clusters that change while a run uses them: nodes go and come, the head dies, and one node is unlike the others."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.programs_on_nodes import BETWEEN, HEADLESS, ODD_NODE, SITECUSTOMIZE, STOPPED_DAEMONS, STOPPED_HEAD
from tests.cluster.raylets import Raylets, raylets
from tests.warm_python import NOTE
from tests.whole_run import WholeRun, environment, run_pytest

SLOW = 300  # seconds; generous, since a machine may be busy
OUTLIVES_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # seconds; Ray's own default is 60


def on_request(folder: Path, request: str, do: Callable[[], None]) -> threading.Thread:
    """A thread that does something once the run touches a file, and reports that it is done."""

    def wait() -> None:
        until = time.monotonic() + SLOW
        while not (folder / request).exists():
            if time.monotonic() > until:
                return
            time.sleep(0.05)
        do()
        (folder / f"{request}.done").touch()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture(scope="module")
def between(two_nodes: Raylets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeRun]:
    folder = tmp_path_factory.mktemp("between")
    (folder / "test_it.py").write_text(BETWEEN)
    two_nodes.add("gpu-c")
    changes = [("remove gpu-c", partial(two_nodes.remove, "gpu-c"))]
    changes += [(f"add {name}", partial(two_nodes.add, name)) for name in ("gpu-d", "gpu-e")]
    threads = [on_request(folder, request, do) for request, do in changes]
    yield run_pytest(folder, "--cluster", two_nodes.address, "-o", "gpuperf_node_timeout=8", timeout=SLOW)
    for thread in threads:
        thread.join()
    for name in ("gpu-d", "gpu-e"):
        two_nodes.remove(name)


def test_nodes_that_go_and_come_between_tests_fail_none(between: WholeRun) -> None:
    assert set(between.outcomes.values()) == {"PASSED"}, between.text
    assert len(between.outcomes) == 7


def test_the_summary_names_a_loss_that_failed_no_test(between: WholeRun) -> None:
    lost, count = [line for line in between.section("gpuperf") if line.startswith("cluster: ")]
    assert re.fullmatch(
        r"cluster: node gpu-c is gone: Ray's daemon on it ended, or it is cut off \(Actor\w+Error\)", lost
    )
    assert count == "cluster: the run began with 3 nodes and ended with 3"


@pytest.fixture(scope="module", params=["gcs_server", "gcs_server gpu-a"])
def headless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeRun]:
    folder = tmp_path_factory.mktemp("headless")
    (folder / "test_it.py").write_text(HEADLESS)
    (folder / "victims").write_text(request.param)
    with raylets("gpu-a", "gpu-b", env=OUTLIVES_HEAD) as cluster:
        cluster.note_daemons(folder)
        yield run_pytest(folder, "--cluster", cluster.address, timeout=SLOW)


def test_a_run_without_a_head_ends_with_its_summary(headless: WholeRun) -> None:
    outcomes = headless.outcomes
    assert headless.result.ret == pytest.ExitCode.TESTS_FAILED
    assert outcomes.pop("test_needs_none") == "PASSED"
    ended = [outcomes[f"test_{name}[2ranks]"] for name in ("head_is_killed", "runs_until_the_daemons_end")]
    assert ended in (["PASSED", "FAILED"], ["FAILED", "ERROR"]), headless.text
    assert outcomes["test_has_no_nodes[2ranks]"] == "ERROR"
    assert re.fullmatch(r"=+ .*passed, .* in \S+s .*=+", headless.result.outlines[-1])


def test_a_test_that_loses_its_daemons_names_the_head(headless: WholeRun) -> None:
    (failed,) = [name for name, outcome in headless.outcomes.items() if outcome == "FAILED"]
    assert re.search(
        r"was lost: node gpu-[ab] is gone: .*; the cluster's head at [\d.]+:\d+ does not answer, and Ray's daemons end "
        r"a minute after their head: start the cluster again, and run the tests again",
        headless.report(failed),
    ), headless.text


def test_tests_that_find_no_head_name_it(headless: WholeRun) -> None:
    report = headless.report("test_has_no_nodes[2ranks]")
    assert re.search(
        r"LaunchError: .*(no node is left|needs 2 nodes, the run has 1); the cluster's head at \S+ does not", report
    )


def test_the_summary_names_the_head(headless: WholeRun) -> None:
    lines = [line for line in headless.section("gpuperf") if line.startswith("cluster: ")]
    assert [line for line in lines if line.startswith("cluster: the cluster's head at ")] == lines[-2:-1]
    assert re.fullmatch(r"cluster: the run began with 2 nodes and ended with [01]", lines[-1])


def test_a_daemon_that_ends_beside_pytest_is_named_and_not_another_node(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HEADLESS)
    (tmp_path / "victims").write_text("gpu-a")
    with raylets("gpu-a", "gpu-b") as cluster:
        cluster.note_daemons(tmp_path)
        run = run_pytest(tmp_path, "--cluster", cluster.address, timeout=SLOW)
    said = "Ray's daemon on the node that runs pytest has ended"
    assert f"was lost: {said}" in run.report("test_head_is_killed[2ranks]"), run.text
    for test in ("test_runs_until_the_daemons_end[2ranks]", "test_has_no_nodes[2ranks]", "test_has_no_node[1rank]"):
        assert f"LaunchError: no node is left; {said}" in run.report(test), run.text
    assert run.outcomes["test_needs_none"] == "PASSED", run.text
    assert "is gone" not in run.text
    lines = [line for line in run.section("gpuperf") if line.startswith("cluster: ")]
    assert [line.startswith(f"cluster: {said}") for line in lines] == [True, False]
    assert lines[-1] == "cluster: the run began with 2 nodes and ended with 0"
    assert run.result.duration < SLOW / 4


@pytest.fixture(scope="module")
def stopped_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeRun]:
    folder = tmp_path_factory.mktemp("stopped_head")
    (folder / "test_it.py").write_text(STOPPED_HEAD)
    with raylets("gpu-a", "gpu-b") as cluster:
        cluster.note_daemons(folder)
        yield run_pytest(folder, "--cluster", cluster.address, "-o", "gpuperf_node_timeout=8", timeout=SLOW)


def test_a_run_whose_head_is_stopped_ends_by_itself(stopped_head: WholeRun) -> None:
    assert stopped_head.result.ret == pytest.ExitCode.TESTS_FAILED
    assert stopped_head.outcomes == {
        "test_head_is_stopped[2ranks]": "PASSED",
        "test_goes_on_without_a_head[2ranks]": "PASSED",
        "test_node_is_killed[2ranks]": "FAILED",
        "test_has_no_nodes[2ranks]": "ERROR",
        "test_fits_the_node_that_is_left[1rank]": "PASSED",
    }


@pytest.mark.parametrize("test", ["test_node_is_killed[2ranks]", "test_has_no_nodes[2ranks]"])
def test_a_loss_without_a_head_that_answers_names_it(stopped_head: WholeRun, test: str) -> None:
    assert re.search(r"the cluster's head at [\d.]+:\d+ does not answer", stopped_head.report(test))


def test_a_run_whose_daemons_are_stopped_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(STOPPED_DAEMONS)
    with raylets("gpu-a", "gpu-b") as cluster:
        cluster.note_daemons(tmp_path)
        run = run_pytest(tmp_path, "--cluster", cluster.address, "-o", "gpuperf_node_timeout=8", timeout=SLOW)
    assert run.result.ret == pytest.ExitCode.OK
    assert set(run.outcomes.values()) == {"PASSED"}
    assert len(run.outcomes) == 2


def test_a_node_with_another_version_is_refused_by_name(two_nodes: Raylets, tmp_path: Path) -> None:
    other = tmp_path / "other" / "torch-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    two_nodes.add("gpu-c", PYTHONPATH=os.pathsep.join([str(other.parent), environment()["PYTHONPATH"]]))
    try:
        run = run_pytest(tmp_path, "--cluster", two_nodes.address, timeout=SLOW)
    finally:
        two_nodes.remove("gpu-c")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"ERROR: node gpu-c has torch 9\.9\.9, and node gpu-a has \S+: what one pickles", run.text)
    assert run.outcomes == {}


@pytest.fixture(scope="module")
def odd(two_nodes: Raylets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeRun]:
    """A run with a node whose clock is ahead, and whose host stops while it starts ranks, once the run wants that."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "test_it.py").write_text(ODD_NODE)
    (folder / "node").mkdir()
    (folder / "node" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join([str(folder / "node"), environment()["PYTHONPATH"]])
    two_nodes.add("gpu-c", PYTHONPATH=path, **{NOTE: ""})  # an interpreter that starts imports sitecustomize
    yield run_pytest(folder, "--cluster", two_nodes.address, "-o", "gpuperf_node_timeout=4", timeout=SLOW)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # Ray has ended it, most often
        os.kill(int((folder / "stopped").read_text()), signal.SIGKILL)
    two_nodes.remove("gpu-c")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_raises[3ranks]", "raised on rank 2 of 3 (node gpu-c, gloo) in test_it:test_raises.<locals>.program"),
        ("test_dies[3ranks]", "RankDied: rank 2 of 3 (node gpu-c, gloo) in test_it:test_dies.<locals>.program exited"),
        ("test_hangs[3ranks]", "rank 2 alone is in "),
    ],
)
def test_if_clocks_differ_the_first_failure_is_still_named(odd: WholeRun, test: str, said: str) -> None:
    assert odd.outcomes["test_clocks_differ[3ranks]"] == "PASSED", odd.text
    assert said in odd.report(test)


def test_a_node_that_stops_while_ranks_start_is_lost_soon(odd: WholeRun) -> None:
    said = "LaunchError: ranks could not be started: node gpu-c did not answer within 4 s: it is stopped, cut off or"
    assert said in odd.report("test_node_stops_while_ranks_start[6ranks]")
    assert odd.outcomes["test_goes_on[2ranks]"] == "PASSED"
    assert odd.result.duration < SLOW / 2
