"""Two commits race on two nodes: each node checks the old one out itself, in a clone of its own or in a shared one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.arms.checkouts import commit, git
from tests.cluster.raylets import Raylets, raylets
from tests.warm_python import NOTE
from tests.whole_run import ROOT, WholeRun, environment, run_pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="nodes with mounts of their own need root")
SLOW = 300  # seconds; generous, since a machine may be busy
INI = "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"
TESTS = """
import paced
import pytest

def stepping(ctx, *, log):
    with open(log, "a") as file:
        print(ctx.rank, ctx.node_name, paced.SECONDS, paced.__file__, file=file)
    return paced.step

@pytest.mark.perf
@pytest.mark.ranks(nodes=2)
def test_step(perf):
    timing = perf.configured(samples=10, budget=0.1).measure(stepping, log="LOG")
    perf.check(time=timing.time)
"""
IT = "test_step[2ranks]"


def package(seconds: float) -> dict[str, str]:
    """A package of the repository, whose step takes so long."""
    return {"src/paced/__init__.py": f"import time\nSECONDS = {seconds}\ndef step():\n    time.sleep(SECONDS)\n"}


@dataclass
class Lab:
    """A cluster whose first node has a repository, and runs pytest: the last commit but one made a step slower."""

    folder: Path
    cluster: Raylets
    slower: str
    """The hash of that commit."""

    @property
    def top(self) -> Path:
        """The top folder of the repository."""
        return self.folder / "repository"

    def clone(self, name: str) -> Path:
        """A clone of the repository."""
        git(self.folder, "clone", "--quiet", str(self.top), name)
        return self.folder / name

    def race(self, *options: str) -> WholeRun:
        """A run on all nodes of the cluster."""
        return run_pytest(self.top, *self.options(*options), env=variables(self.folder), timeout=SLOW)

    def options(self, *options: str) -> list[str]:
        """Return the options of a run on all nodes."""
        return ["--cluster", self.cluster.address, "--gpus=0", *options]

    def loaded(self, node: str, seconds: float) -> set[str]:
        """The files that the package with this step was loaded from on a node, in all launches so far."""
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        return {file for _, on, slept, file in lines if (on, float(slept)) == (node, seconds)}

    def left(self) -> list[str]:
        """What races have left: temporary folders, checkouts, and what clones know of these."""
        clones = [git.parent for git in self.folder.glob("*/.git")]
        known = [line for clone in clones for line in git(clone, "worktree", "list").splitlines()[1:]]
        loaded = [line.split()[3] for line in (self.folder / "log").read_text().splitlines()]
        old = [file for file in loaded if not file.startswith(str(self.top)) and Path(file).exists()]
        return [*map(str, self.folder.glob("tmp/*/gpuperf-race-*")), *known, *old]


def temporary(folder: Path, node: str) -> Path:
    """The temporary folder of a node."""
    made = folder / "tmp" / node
    made.mkdir(parents=True, exist_ok=True)
    return made


def variables(folder: Path, node: str = "gpu-a") -> dict[str, str]:
    """The environment of a node, where the package is found in the repository."""
    path = os.pathsep.join([str(ROOT), str(folder / "repository" / "src")])
    return {"PYTHONPATH": path, "TMPDIR": str(temporary(folder, node))}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("races")
    top = folder / "repository"
    files = {
        "pytest.ini": INI,
        "test_it.py": TESTS.replace("LOG", str(folder / "log")),
        ".gitignore": "*.pyc\n.leases\n",
    }
    commit(top, files | package(10e-3), "Fast")
    commit(top, {"README": "still fast"})
    slower = commit(top, package(20e-3), "Slower")
    commit(top, {"README": "as slow"})
    (folder / "log").touch()
    with raylets("gpu-a", env=variables(folder)) as cluster:
        yield Lab(folder, cluster, slower)


def test_a_bisection_finds_the_slower_commit_on_nodes_that_share_the_checkout(lab: Lab) -> None:
    lab.cluster.add("gpu-s", **variables(lab.folder, "gpu-s"))
    run = lab.race("--bisect=HEAD~2")
    lab.cluster.remove("gpu-s")
    assert run.outcomes == {IT: "FAILED"}, run.text
    assert re.search(rf"{lab.slower[:12]} 'Slower'", run.text), run.text
    assert lab.loaded("gpu-s", 10e-3) == lab.loaded("gpu-a", 10e-3)
    assert all("/gpuperf-race-" in file for file in lab.loaded("gpu-s", 10e-3))
    assert lab.left() == []


def test_a_node_without_the_repository_is_refused_by_name(lab: Lab) -> None:
    empty = lab.folder / "empty"
    empty.mkdir()
    lab.cluster.add_with_mounts("gpu-c", {lab.top: empty}, **variables(lab.folder, "gpu-c"), **{NOTE: ""})
    run = lab.race("--against=HEAD~2")
    lab.cluster.remove("gpu-c")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(
        rf"ERROR: node gpu-c: it has no clone of the repository at {lab.top}, where pytest's node has it, and none "
        r"with commit \w{12} around \S+, where Ray was started: clone it there at the same path, or run `ray start` "
        "in a clone\n",
        run.text,
    ), run.text
    assert run.outcomes == {}
    assert lab.left() == []


@pytest.fixture(scope="module")
def cloned(lab: Lab) -> str:
    """The name of a node that has a clone of its own in the repository's place; the last test of it removes it."""
    lab.cluster.add_with_mounts("gpu-b", {lab.top: lab.clone("other")}, **variables(lab.folder, "gpu-b"))
    return "gpu-b"


def test_a_race_finds_slower_code_in_each_nodes_own_clone(lab: Lab, cloned: str) -> None:
    run = lab.race("--against=HEAD~2")
    assert run.outcomes == {IT: "FAILED"}, run.text
    assert re.search(r"time \d\d\.\d\d ms: \d+\.\d % slower than 1\d\.\d\d ms of HEAD~2, because of the code", run.text)
    assert lab.loaded("gpu-b", 10e-3), run.text
    for file in lab.loaded("gpu-b", 10e-3):
        assert file.startswith(str(temporary(lab.folder, "gpu-b"))), file
    assert lab.loaded("gpu-b", 20e-3) == {str(lab.top / "src/paced/__init__.py")}
    assert lab.left() == []


def test_a_race_that_is_interrupted_leaves_nothing_on_any_node(lab: Lab, cloned: str) -> None:
    run = disturbed(lab, cloned, lambda process: process.send_signal(signal.SIGINT))
    assert "KeyboardInterrupt" in run, run
    assert lab.left() == []


def test_a_checkout_on_a_node_that_died_is_named(lab: Lab, cloned: str) -> None:
    run = disturbed(lab, cloned, lambda process: lab.cluster.remove(cloned))
    found = r"gpuperf: a checkout of \w{12} may be left in the temporary folder of a node: node gpu-b is gone: "
    assert re.search(found, run), run
    left = lab.left()
    assert all(f"{os.sep}gpu-b{os.sep}" in one for one in left), left


def disturbed(lab: Lab, node: str, act: Callable[[subprocess.Popen[str]], None]) -> str:
    """What a race prints that is disturbed once ranks of a node run the old code."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-o",
        f"gpuperf_leases={lab.folder / 'leases'}",
    ]
    before = lab.loaded(node, 10e-3)
    with subprocess.Popen(
        [*command, *lab.options("--against=HEAD~2")],
        cwd=lab.top,
        env=environment(**variables(lab.folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        until = time.monotonic() + SLOW
        while lab.loaded(node, 10e-3) == before:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until, f"ranks of {node} have not run the old code within {SLOW} s"
            time.sleep(0.1)
        act(process)
        printed, _ = process.communicate(timeout=SLOW)
    return printed
