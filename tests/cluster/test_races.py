"""Two commits race on two nodes: each node checks the old one out itself, in a clone of its own or in a shared one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.arms.checkouts import commit, git
from tests.cluster.raylets import Raylets, raylets
from tests.whole_run import ROOT, WholeRun, environment, run_pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="nodes with mounts of their own need root")
SLOW = 300  # seconds; generous, since a machine may be busy
INI = "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"
TESTS = """
import pathlib
import pytest
import work

def stepping(ctx, *, log):
    with open(log, "a") as file:
        print(ctx.rank, ctx.node_name, work.SECONDS, work.__file__, file=file)
    return work.step

@pytest.mark.perf
@pytest.mark.ranks(nodes=2)
def test_step(perf, pytestconfig):
    timing = perf.configured(samples=10, budget=0.1).measure(stepping, log={log!r})
    perf.check(time=timing.time)
"""


def package(seconds: float) -> dict[str, str]:
    """A package of the repository, whose step takes so long."""
    return {"src/work/__init__.py": f"import time\nSECONDS = {seconds}\ndef step():\n    time.sleep(SECONDS)\n"}


@dataclass
class Lab:
    """A repository whose last commit is twice as slow as the one before, and clones of it."""

    folder: Path

    @property
    def top(self) -> Path:
        """Of the repository, on pytest's node."""
        return self.folder / "repository"

    def loaded(self) -> list[list[str]]:
        """What each rank of each launch has loaded: rank, node, seconds and file."""
        return [line.split() for line in (self.folder / "log").read_text().splitlines()]

    def clone(self, name: str) -> Path:
        """A clone."""
        git(self.folder, "clone", "--quiet", str(self.top), name)
        return self.folder / name

    def temporary(self, name: str) -> Path:
        """The temporary folder of a node."""
        folder = self.folder / "tmp" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def race(self, address: str, *options: str) -> WholeRun:
        """A run on the cluster."""
        path = os.pathsep.join(map(str, (ROOT, self.top / "src")))
        env = {"PYTHONPATH": path, "TMPDIR": str(self.temporary("head"))}
        return run_pytest(self.top, "--cluster", address, "--gpus=0", *options, env=env, timeout=SLOW)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    top = tmp_path / "repository"
    tests = TESTS.replace("{log!r}", repr(str(tmp_path / "log")))
    commit(top, {"pytest.ini": INI, "test_it.py": tests, ".gitignore": "*.pyc\n.leases\n"} | package(10e-3))
    commit(top, package(20e-3), "Slower")
    return Lab(tmp_path)


@pytest.fixture
def head(lab: Lab) -> Iterator[Raylets]:
    """The node of pytest."""
    path = os.pathsep.join(map(str, (ROOT, lab.top / "src")))
    with raylets("gpu-a", env={"PYTHONPATH": path, "TMPDIR": str(lab.temporary("head"))}) as cluster:
        yield cluster


def test_a_race_finds_the_slower_commit_in_each_nodes_own_clone(lab: Lab, head: Raylets) -> None:
    other = lab.clone("other")
    head.add_with_mounts("gpu-b", {lab.top: other}, TMPDIR=str(lab.temporary("gpu-b")))
    run = lab.race(head.address, "--against=HEAD~1")
    assert run.outcomes == {"test_step[2ranks]": "FAILED"}, run.text
    print(run.text, lab.loaded())
    assert 0
