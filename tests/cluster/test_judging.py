"""Perf tests on two nodes are recorded, judged and adopted under the key of the cluster: only the GPUs are made up."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.baselines.schema import Baselines
from tests.cluster.raylets import Raylets
from tests.run.test_judged_run import slept
from tests.whole_run import ROOT, WholeRun, environment, run_pytest, write

SLOW = 300  # seconds; generous, since a machine may be busy
KEY = "2n-1x-nvidia-h200-tcp"
CONFTEST = """
import pytest
from tests.cluster import fake_nodes
fake_nodes.install(pytest.MonkeyPatch())
"""
# A step that sleeps is as steady as a figure can be here; how long, a file tells, so that the body stays the same.
TESTS = """
import os, pathlib, time
import pytest

FOLDER = pathlib.Path(__file__).parent

def sleeping(ctx, *, folder, name):
    seconds = float((folder / f"{name}.txt").read_text())
    with (folder / "ranks.txt").open("a") as ranks:
        print(name, os.getpid(), ctx.rank, ctx.node_name, file=ranks)
    return lambda: time.sleep(seconds)

def sleep(perf, name):
    timing = perf.configured(samples=10, budget=0.1).measure(sleeping, folder=FOLDER, name=name)
    perf.check(time=timing.time)

pytestmark = [pytest.mark.perf, pytest.mark.ranks(nodes=2)]

def test_steady(perf):
    sleep(perf, "steady")

def test_slowed(perf):
    sleep(perf, "slowed")
"""
MODELLED = """
from pytest_gpuperf import Metric

def test_memory(perf):
    link = perf.memory
    assert (link.line_rate, link.name) == (4.8e12, "memory")
    perf.check(memory=Metric(4.2e12, "B/s", "higher", limit=link.line_rate, limit_name="memory", plain=True))

def test_network(perf):
    assert perf.link.line_rate is None
    perf.check(network=Metric(4e10, "B/s", "higher"))
"""
# More ranks than the nodes have GPUs: they need none.
ON_CPUS = """
import pytest

@pytest.mark.ranks(4, device="cpu")
def test_on_cpus(ranks):
    assert ranks.run(lambda ctx: (ctx.node_name, ctx.device.type)) == [("gpu-a", "cpu")] * 2 + [("gpu-b", "cpu")] * 2
"""
# The body of the suite's own test, with small loads, and a node that is held up.
ACCEPTANCE = """
import pytest
from suites.multi_node import test_hosts as bodies

real = bodies.surveyed
bodies.FULL = bodies.SMALL
bodies.surveyed = lambda ranks, nodes, load: real(ranks, nodes, load, bodies.Drag(bodies.HELD_UP, 1))

@pytest.mark.perf
@pytest.mark.ranks(nodes="all")
def test_hosts(perf, ranks, record_property):
    bodies.test_acceptance(perf, ranks, record_property)
"""
LOSES = """
import os, signal, time
import pytest
from tests.cluster.programs_on_nodes import STOPPED_HEAD

exec(STOPPED_HEAD.partition("def everybody")[0])

@pytest.mark.ranks(2, timeout=60, nodes=2)
def test_node_is_killed(ranks):
    def program(ctx):
        if ctx.rank == 1:
            kill(ctx.node_name)
            time.sleep(600)
        ctx.barrier()
    ranks.run(program)

@pytest.mark.perf
@pytest.mark.ranks(1)
def test_speed(perf):
    raise AssertionError("it was measured")
"""


@dataclass
class Judged:
    """A recording, a run that is judged by it, and results that are adopted."""

    folder: Path
    address: str
    recording: WholeRun
    recorded: Baselines
    ranks: list[list[str]]
    """The recording's ranks, for each measured test and rank: name, process, rank, node."""
    run: WholeRun
    adopted: subprocess.CompletedProcess[str]
    after: Baselines


def stored(folder: Path) -> Baselines:
    baselines = load(folder / "baselines" / f"{KEY}.json", KEY)
    assert baselines is not None
    return baselines


@pytest.fixture(scope="module")
def judged(two_nodes_with_gpus: Raylets, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    ini = "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"
    folder = write(tmp_path_factory.mktemp("judged"), {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": ini})
    slept(folder, steady=20e-3, slowed=20e-3)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "test_it.py"], ["commit", "-qm", "as it was"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    on_nodes = ("--cluster", two_nodes_with_gpus.address, "--gpus=2")
    recording = run_pytest(folder, *on_nodes, "--update-baselines", "--reason=a first one", timeout=SLOW)
    recorded = stored(folder)
    ranks = [line.split() for line in (folder / "ranks.txt").read_text().splitlines()]

    slept(folder, slowed=100e-3)
    (folder / "test_it.py").write_text(TESTS + MODELLED)
    (folder / "test_on_cpus.py").write_text(ON_CPUS)
    options = ("--no-strict-baselines", "--gpuperf-json=results.json", "--report=page.html")
    run = run_pytest(folder, *on_nodes, *options, timeout=SLOW)
    # On busy cores a sleep of 20 ms took 11 % longer, which adoption would leave out.
    options = ("--mode=append", "--reason=more", "--accept-regression")
    adopting = [sys.executable, "-m", "pytest_gpuperf", "adopt", "results.json", *options]
    adopted = subprocess.run(
        adopting, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=SLOW
    )
    return Judged(folder, two_nodes_with_gpus.address, recording, recorded, ranks, run, adopted, stored(folder))


def test_a_recording_is_written_under_the_key_of_the_cluster(judged: Judged) -> None:
    assert judged.recording.result.ret == 0, judged.recording.text
    assert f"gpuperf: ranks run on 2 nodes (gpu-a, gpu-b) with NCCL, hardware key {KEY}" in judged.recording.text
    assert sorted(judged.recorded.tests) == [f"test_it.py::test_{name}[2ranks]" for name in ("slowed", "steady")]
    assert judged.recorded.match["gpu_count"] == 2
    for entry in judged.recorded.tests.values():
        assert {figure.launch for figure in entry.metrics["time"].launches} == set(judged.recorded.launches)
        assert 20e-3 <= entry.metrics["time"].center < 60e-3


def test_each_launch_has_fresh_ranks_on_both_nodes(judged: Judged) -> None:
    assert len(judged.recorded.launches) == 5
    for rank, node in (("0", "gpu-a"), ("1", "gpu-b")):
        of_rank = [line for line in judged.ranks if line[2] == rank]
        assert [line[0] for line in of_rank] == ["steady", "slowed"] * 5
        assert {line[3] for line in of_rank} == {node}
        processes = [line[1] for line in of_rank]
        assert processes[0] == processes[1] != processes[2]
        assert len(set(processes)) == 5


def test_facts_of_each_node_are_kept_with_every_launch(judged: Judged) -> None:
    for info in judged.recorded.launches.values():
        assert info.host == "gpu-a, gpu-b"
        assert list(info.nodes) == ["gpu-a", "gpu-b"]
        for facts in info.nodes.values():
            assert {"host", "kernel", "cpu cores"} <= set(facts)
        assert {"torch", "python", "kernel"} <= set(info.environment)
        assert info.environment["kernel"] == info.nodes["gpu-a"]["kernel"]  # both nodes are this machine
        assert info.gpus
    page = (judged.folder / "page.html").read_text()
    assert re.search(r"node gpu-b</t[dh]>", page), "the page has no facts of the nodes"


def test_a_steady_figure_passes_and_a_slowed_one_fails_by_the_record_alone(judged: Judged) -> None:
    assert judged.run.outcomes["test_steady[2ranks]"] in ("PASSED", "SKIPPED"), judged.run.text
    assert judged.run.outcomes["test_slowed[2ranks]"] == "FAILED"
    first, spread, *others = judged.run.report("test_slowed[2ranks]").strip().splitlines()
    assert re.fullmatch(r"time 1\d\d\.\d ms: \d+\.\d % slower than \d\d\.\d\d ms, by the baseline alone", first), first
    assert spread.startswith("  spread ")
    assert others == [
        "  not raced: on a cluster the baseline alone decides, since no older commit is checked out on its nodes",
        "  changed since, and imported by the test: test_it.py",
    ]


def test_later_launches_are_made_on_the_nodes(judged: Judged) -> None:
    ranks = [line.split() for line in (judged.folder / "ranks.txt").read_text().splitlines()]
    later = [line for line in ranks[len(judged.ranks) :] if line[0] == "slowed" and line[2] == "1"]
    assert len({line[1] for line in later}) == len(later) > 1  # a process each
    assert {line[3] for line in later} == {"gpu-b"}


def test_the_model_judges_what_has_no_record_except_over_the_network(judged: Judged) -> None:
    assert judged.run.outcomes["test_memory[2ranks]"] == "PASSED", judged.run.text
    assert judged.run.outcomes["test_network[2ranks]"] == "PASSED", "nothing says what it should be: it is shown"
    assert any("missing" in line and "40.00 GB/s" in line for line in judged.run.section("gpuperf"))


def test_ranks_without_gpus_may_outnumber_the_gpus_of_the_nodes(judged: Judged) -> None:
    assert judged.run.outcomes["test_on_cpus[4ranks]"] == "PASSED", judged.run.text


def test_results_of_a_cluster_are_adopted(judged: Judged) -> None:
    told = judged.adopted.stdout
    assert f"baselines of 2 tests written to baselines/{KEY}.json" in told, told + judged.adopted.stderr
    steady = "test_it.py::test_steady[2ranks]"
    before, after = (len(one.tests[steady].metrics["time"].launches) for one in (judged.recorded, judged.after))
    assert after == before + 1
    newest = judged.after.launches[judged.after.tests[steady].metrics["time"].launches[-1].launch]
    assert list(newest.nodes) == ["gpu-a", "gpu-b"]


def test_acceptance_names_the_slow_host_and_shows_the_matrix(two_nodes_with_gpus: Raylets, tmp_path: Path) -> None:
    write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": ACCEPTANCE})
    on_nodes = ("--cluster", two_nodes_with_gpus.address, "--gpus=2", "--no-strict-baselines")
    here = ("--rootdir", str(ROOT), "-o", "addopts=", str(tmp_path))  # so that the suites travel by value
    run = run_pytest(ROOT, *here, *on_nodes, timeout=SLOW)
    (outcome,) = run.outcomes.values()
    assert outcome == "FAILED"
    assert re.search(r"AssertionError: host gpu-b: \d\d\.\d % slower than the other hosts in", run.text), run.text
    assert re.search(r"test_hosts\[2ranks\] hosts, \S+ from host \(row\) to host \(column\), \* is slow:", run.text)
    assert re.search(r"^gpu-b +\S+ +-$", run.text, re.MULTILINE), run.text


def test_a_run_that_has_lost_a_node_measures_no_more(two_nodes_with_gpus: Raylets, tmp_path: Path) -> None:
    cluster = two_nodes_with_gpus
    cluster.note_daemons(write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": LOSES}))
    run = run_pytest(tmp_path, "--cluster", cluster.address, "--gpus=2", "--no-strict-baselines", timeout=SLOW)
    cluster.add("gpu-b")  # in place of the one that this run has lost
    assert run.outcomes == {"test_node_is_killed[2ranks]": "FAILED", "test_speed[1rank]": "ERROR"}
    assert re.search(
        r"LaunchError: perf tests measure the nodes that the run began with, and it has lost some: node gpu-b is gone: "
        r".*: run them again \(a recording with --resume\)",
        run.report("test_speed[1rank]"),
    )
