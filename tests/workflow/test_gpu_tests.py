"""The steps of the reusable workflow, run in the clones that it makes, on made-up GPUs: what is green, what is red."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.arms.checkouts import RANKLESS, commit, git
from tests.warm_python import FRESH
from tests.workflow.runner import IMAGE, REPOSITORY, Ended, Event, Runner, calls, given

CONFTEST = f"""
import os
{RANKLESS}
first = int(os.environ["FIRST_GPU"])
fake_gpus.show(patch, [fake_gpus.gpu(first), fake_gpus.gpu(first + 1)])
"""
# What a launch takes; those of one machine differ by 0.1 %.
STEP = """
import os

SECONDS = 0.005
NOISE = (0.0, 0.001, -0.001, 0.002, -0.002)

def seconds():
    with open(os.environ["LAUNCHES"], "a+") as launches:
        launches.write("x")
        return SECONDS * (1 + NOISE[launches.tell() % len(NOISE)])
"""
TESTS = """
import pytest
import step
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
def test_step(perf):
    seconds = step.seconds()
    perf.check(time=Metric(seconds, "s", "lower", clock="cuda"))
    perf.check(rate=Metric(1e9 / seconds, "B/s", "higher", clock="cuda"))
"""
FILES = {
    "conftest.py": CONFTEST,
    "step.py": STEP,
    "tests/gpu/test_step.py": TESTS,
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__\n",
}
KEY = "2x-nvidia-h200-nv18"
KNOWN, OTHER = "0", "4"
"""The first GPU of the machine that records, and of another machine of the same kind."""


def slower(factor: float) -> dict[str, str]:
    return {"step.py": STEP.replace("SECONDS = 0.005", f"SECONDS = 0.005 * {factor}")}


class Project:
    """A repository on GitHub, and runs of its workflow."""

    def __init__(self, folder: Path) -> None:
        self.origin = folder / "origin"
        self.first = commit(self.origin, FILES, "The first")
        git(self.origin, "config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub's
        self._folder = folder

    def run(
        self,
        event: Event,
        gpus: str = KNOWN,
        *,
        only: str = "",
        depth: int | None = None,
        **variables: str,
    ) -> Ended:
        """Runs the workflow as the page's caller has it."""
        variables |= {"FIRST_GPU": gpus, "LAUNCHES": str(self._folder / "launches")}
        assert calls(event)
        # The package is installed, and there is no network.
        inputs = {**given(event), "install": "python -c 'import pytest_gpuperf'"}
        return Runner(self.origin, self._folder, variables).run(event, inputs, only, depth)

    def keep(self, recorded: Ended) -> None:
        """Commits the baselines of a recording, as a person does who has downloaded its artifact."""
        shutil.copytree(recorded.artifacts["baselines-gpu"], self.origin / "baselines", dirs_exist_ok=True)
        git(self.origin, "add", "baselines")
        git(self.origin, "commit", "--quiet", "--message", "Baselines")

    def on_branch(self, name: str, files: dict[str, str]) -> Event:
        """Commits files on a branch off main."""
        git(self.origin, "checkout", "--quiet", "-B", name, "main")
        sha = commit(self.origin, files, name)
        git(self.origin, "checkout", "--quiet", "main")
        return Event(sha, f"refs/heads/{name}")

    @property
    def main(self) -> Event:
        return Event(git(self.origin, "rev-parse", "main"))

    def by_hand(self, ref: str = "main") -> Event:
        """A start of the workflow by hand, with update-baselines."""
        return Event(git(self.origin, "rev-parse", ref), name="workflow_dispatch", inputs={"update-baselines": True})


def pull_request(
    head: str, *, of: str = REPOSITORY, action: str = "synchronize", label: str = "", merge: str = ""
) -> Event:
    """What a pull request tells its workflow."""
    payload = {
        "action": action,
        "label": {"name": label},
        "pull_request": {"head": {"sha": head, "repo": {"full_name": of}}},
    }
    return Event(merge or head, "refs/pull/1/merge", "pull_request", payload)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A repository whose first baselines were recorded by hand, on a commit before the present one."""
    project = Project(tmp_path_factory.mktemp("workflow"))
    recorded = project.run(project.by_hand())
    assert recorded.failed == "", recorded.log
    project.keep(recorded)
    commit(project.origin, {"notes.txt": "more"}, "More notes")
    return project


def outcomes(ended: Ended) -> set[str]:
    """What the figures came to, by the results that the job keeps."""
    results = json.loads((ended.artifacts["gpuperf-gpu"] / "gpuperf.json").read_text())
    return {verdict["outcome"] for verdict in results["verdicts"]}


@pytest.mark.parametrize(
    ("event", "started"),
    [
        (Event("sha"), True),
        (Event("sha", name="workflow_dispatch"), True),
        (pull_request("sha"), True),
        (pull_request("sha", action="labeled", label="docs"), False),
        (pull_request("sha", action="labeled", label="gpu"), True),
        (pull_request("sha", of="a/fork", action="opened"), False),
        (pull_request("sha", of="a/fork"), False),
        (pull_request("sha", of="a/fork", action="labeled", label="docs"), False),
        (pull_request("sha", of="a/fork", action="labeled", label="gpu"), True),
    ],
    ids=["night", "hand", "push", "label", "gpu", "fork", "push of a fork", "label of a fork", "gpu of a fork"],
)
def test_the_page_s_caller_starts_forks_by_a_label_only(event: Event, started: bool) -> None:
    assert calls(event) is started


@pytest.mark.parametrize(("inputs", "update"), [({}, False), ({"update-baselines": True}, True)])
def test_the_page_s_caller_records_only_if_somebody_asks(inputs: dict[str, bool], update: bool) -> None:
    assert given(Event("sha", inputs=inputs)) == {
        "container": IMAGE,
        "install": "python -m pip install --force-reinstall --no-deps wheels/*.whl",
        "tests": "tests -m perf",
        "update-baselines": update,
    }


def test_a_first_recording_by_hand_has_the_commit_that_was_checked_out(project: Project) -> None:
    stored = json.loads((project.origin / f"baselines/{KEY}.json").read_text())
    assert {launch["commit"] for launch in stored["launches"].values()} == {project.first}
    assert len(stored["launches"]) == 5
    assert not any(launch.get("dirty") for launch in stored["launches"].values())


def test_a_run_without_a_record_is_red_and_says_once_how_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", FRESH)  # here Python is a new interpreter, as it is on GitHub
    project = Project(tmp_path)
    ended = project.run(project.main)
    assert ended.failed == "Test", ended.log
    line = (
        "no baseline, or a stale one, for 2 metrics of 1 test: to record them, start the workflow by hand with "
        'update-baselines, or run: pytest "tests/gpu/test_step.py" -m perf --gpus 2 --update-baselines --baselines '
        '"baselines" --reason "why"'
    )
    assert ended.log.splitlines().count(line) == 1
    assert ended.summary.count("start the workflow by hand with update-baselines") == 1
    assert "baselines-gpu" not in ended.artifacts


@pytest.mark.parametrize("gpus", [KNOWN, OTHER], ids=["known", "other"])
def test_code_that_is_as_fast_is_green(project: Project, gpus: str) -> None:
    ended = project.run(project.main, gpus)
    assert ended.failed == "", ended.log
    assert outcomes(ended) == {"same"}


@pytest.mark.parametrize("gpus", [KNOWN, OTHER], ids=["known", "other"])
@pytest.mark.parametrize("factor", [1.28, 10.0])
def test_slower_code_is_red(project: Project, factor: float, gpus: str) -> None:
    ended = project.run(project.on_branch(f"slower-{factor}", slower(factor)), gpus)
    assert ended.failed == "Test", ended.log
    assert outcomes(ended) == {"regressed"}


@pytest.mark.parametrize("gpus", [KNOWN, OTHER], ids=["known", "other"])
@pytest.mark.parametrize("factor", [1.28, 10.0])
def test_in_a_shallow_clone_slower_code_is_red_and_the_cure_is_named(
    project: Project, factor: float, gpus: str
) -> None:
    event = project.on_branch(f"slower-{factor}", slower(factor))
    ended = project.run(event, gpus, only="Test", depth=1, GIT_TEST_ASSUME_DIFFERENT_OWNER="0")
    assert f"run `git fetch --unshallow`, or `git fetch --depth=1 origin {project.first}` for this commit" in ended.log
    assert ended.failed == "Test", ended.log


def test_in_a_clone_of_another_user_slower_code_is_red_and_the_cure_is_named(project: Project) -> None:
    ended = project.run(project.on_branch("slower-1.28", slower(1.28)), OTHER, only="Test", depth=0)
    assert "run `git config --global --add safe.directory " in ended.log
    assert ended.failed == "Test", ended.log


def test_a_recording_in_a_clone_of_another_user_says_that_it_cannot_be_raced(tmp_path: Path) -> None:
    project = Project(tmp_path)
    ended = project.run(replace(project.by_hand(), ref="refs/pull/1/merge"), only="Test")
    assert "these baselines name no commit, so later runs cannot race it: " in ended.log
    assert "run `git config --global --add safe.directory " in ended.log


def test_a_commit_that_github_has_no_more_is_named_and_stops_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    gone = "0123456789" * 4
    commit(project.origin, {f"baselines/{KEY}.json": f'{{"launches": {{"1": {{"commit": "{gone}"}}}}}}'})
    ended = project.run(project.main, only="Fetch the commits of the records")
    assert ended.failed == ""
    assert f"::warning::the repository has no commit {gone} any more" in ended.log


def test_a_record_of_a_pull_request_is_raced_after_the_branch_was_squashed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    head = project.on_branch("fork", {"notes.txt": "a change"}).sha
    git(project.origin, "update-ref", "refs/pull/1/head", head)
    git(project.origin, "branch", "--quiet", "-D", "fork")
    merge = git(project.origin, "commit-tree", "-p", "main", "-p", head, "-m", "merge", f"{head}^{{tree}}")
    event = pull_request(head, of="a/fork", action="labeled", label="gpu", merge=merge)
    recorded = project.run(replace(event, inputs={"update-baselines": True}))
    assert recorded.failed == "", recorded.log
    project.keep(recorded)
    stored = json.loads((project.origin / f"baselines/{KEY}.json").read_text())
    assert {launch["commit"] for launch in stored["launches"].values()} == {head}

    ended = project.run(project.on_branch("slower", slower(1.28)), OTHER)
    assert ended.failed == "Test", ended.log
    assert outcomes(ended) == {"regressed"}
    assert f"against {head[:12]}" in ended.log


@pytest.mark.parametrize(
    ("image", "path", "said"),
    [
        (
            "image:tag",
            "",
            "::error::container is 'image:tag', expected NAME@sha256:DIGEST, which these commands print:",
        ),
        ("", "", "::error::container is '', expected NAME@sha256:DIGEST"),
        (IMAGE, "/nowhere", "::error::the image has no git"),
    ],
    ids=["no digest", "no image", "no git"],
)
def test_an_image_that_cannot_do_it_is_refused_before_anything_runs(
    tmp_path: Path, image: str, path: str, said: str
) -> None:
    project = Project(tmp_path)
    runner = Runner(project.origin, tmp_path, {"PATH": path} if path else {})
    ended = runner.run(project.main, {"container": image}, "Look at the image")
    assert ended.failed == "Look at the image"
    assert ended.log.startswith(said)
