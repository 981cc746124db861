"""The workflows: what they may do, and what their shell steps do."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).parents[1] / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
RECORDER = (
    '#!/bin/sh\nprintf \'%s\\n\' "$@" > "$RECORD/$(basename "$0")-$(ls "$RECORD" | wc -l)"\nexit "${STATUS:-0}"\n'
)


def steps(workflow: str, job: str) -> dict[str, dict[str, Any]]:
    """The steps of a job by their names."""
    return {step.get("name", step.get("uses", "")): step for step in WORKFLOWS[workflow]["jobs"][job]["steps"]}


def run(
    step: dict[str, Any], folder: Path, variables: Mapping[str, str] | None = None, status: int = 0
) -> tuple[int, list[list[str]]]:
    """Run a step's script, and return its exit status and what the programs in it were called with."""
    programs, record = folder / "programs", folder / "record"
    for path in (programs, record):
        path.mkdir(exist_ok=True)
    (programs / "python").write_text(RECORDER)
    (programs / "python").chmod(0o755)
    search = f"{programs}:{os.environ['PATH']}"
    environment: dict[str, str] = {**(variables or {}), "PATH": search, "RECORD": str(record), "STATUS": str(status)}
    # As GitHub's runner calls bash for `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    calls = sorted(record.iterdir(), key=lambda call: int(call.name.rpartition("-")[2]))
    return done.returncode, [call.read_text().splitlines() for call in calls]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_permissions_are_few(name: str) -> None:
    text, workflow = (FOLDER / name).read_text(), WORKFLOWS[name]
    used = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40}", action) for action in used)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    # An expression in a script would be read by the shell: values come by the environment.
    scripts = [step.get("run", "") for job in workflow["jobs"].values() for step in job.get("steps", [])]
    assert not any("${{" in script for script in scripts)


def test_no_fork_reaches_a_gpu_runner() -> None:
    condition = WORKFLOWS["gpu.yml"]["jobs"]["gpu"]["if"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in condition


def test_the_tests_run_with_what_the_caller_asked_for(tmp_path: Path) -> None:
    step = steps("gpu-tests.yml", "gpu")["Test"]
    variables = {"DEVICES": "", "GPUS": "8", "TESTS": "suites/a b -k 'x and not y'", "UPDATE": "false", "REASON": "r"}
    status, (call,) = run(step, tmp_path, variables)
    assert status == 0
    assert call[:6] == ["-m", "pytest", "suites/a", "b", "-k", "x and not y"]
    assert call[6:9] == ["--gpus", "8", "--require-gpus"]
    assert {"--gpuperf-json=gpuperf.json", "--report=gpuperf.html", "--junitxml=junit.xml"} <= set(call)
    assert "--update-baselines" not in call


def test_a_name_in_the_tests_is_no_command(tmp_path: Path) -> None:
    step = steps("gpu-tests.yml", "gpu")["Test"]
    hostile = "$(touch hit) `touch hit`; touch hit"
    variables = {"DEVICES": "", "GPUS": "auto", "TESTS": f"'{hostile}'", "UPDATE": "true", "REASON": hostile}
    _, (call,) = run(step, tmp_path, variables)
    assert call[2] == hostile
    assert call[-3:] == ["--update-baselines", "--reason", hostile]
    assert not (tmp_path / "hit").exists()


def test_failed_tests_make_the_step_red(tmp_path: Path) -> None:
    step = steps("gpu-tests.yml", "gpu")["Test"]
    variables = {"DEVICES": "0", "GPUS": "1", "TESTS": "", "UPDATE": "false", "REASON": ""}
    assert run(step, tmp_path, variables, status=1)[0] == 1


def test_a_killed_run_is_red_and_has_a_page(tmp_path: Path) -> None:
    step = steps("gpu-tests.yml", "gpu")["Recover the results of a killed run"]
    (tmp_path / "gpuperf.json").touch()
    status, calls = run(step, tmp_path, status=1)
    assert status == 1
    assert calls[0] == ["-m", "pytest_gpuperf", "recover", "gpuperf.json", "--junitxml=junit.xml"]
    assert calls[1][2] == "report"
    (tmp_path / "gpuperf.html").touch()
    assert run(step, tmp_path)[0] == 0


def proposed(folder: Path, recorded: str) -> tuple[int, list[list[str]], str]:
    """Run the step that proposes baselines, in a clone to which the artifact of a recording was downloaded."""
    clone, remote = folder / "clone", folder / "remote.git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", "--bare", str(remote)], check=True)
    subprocess.run([*git, "clone", "-q", str(remote), str(clone)], check=True, capture_output=True)
    (clone / "baselines").mkdir()
    (clone / "baselines/1x-gpu.json").write_text("{}\n")
    subprocess.run([*git, "add", "."], cwd=clone, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], cwd=clone, check=True)
    (clone / f"baselines/{recorded}").write_text("{}\n")
    programs, record = folder / "programs", folder / "record"
    programs.mkdir()
    record.mkdir()
    (programs / "gh").write_text(RECORDER)
    (programs / "gh").chmod(0o755)
    (step,) = [step for step in WORKFLOWS["gpu.yml"]["jobs"]["propose"]["steps"] if "run" in step]
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=clone,
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "RECORD": str(record),
            "BASE": "main",
            "BRANCH": "gpuperf/baselines-1",
            "RUN": "https://example.org/run/1",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        },
        capture_output=True,
        check=False,
    )
    calls = [call.read_text().splitlines() for call in sorted(record.iterdir())]
    branches = subprocess.run([*git, "branch", "--list"], cwd=remote, check=True, capture_output=True, text=True)
    return done.returncode, calls, branches.stdout.strip()


def test_new_baselines_are_proposed(tmp_path: Path) -> None:
    status, (login, pull_request), branch = proposed(tmp_path, "2x-gpu.json")
    assert (status, branch) == (0, "gpuperf/baselines-1")
    assert login == ["auth", "setup-git"]
    assert pull_request[:6] == ["pr", "create", "--base", "main", "--head", "gpuperf/baselines-1"]
    assert pull_request[-1].startswith("The metrics of https://example.org/run/1 become baselines.")
    show = ["git", "show", "--name-only", "--format=", branch]
    changed = subprocess.run(show, cwd=tmp_path / "remote.git", check=True, capture_output=True, text=True)
    assert changed.stdout.split() == ["baselines/2x-gpu.json"]


def test_without_new_baselines_nothing_is_proposed(tmp_path: Path) -> None:
    status, calls, branch = proposed(tmp_path, "1x-gpu.json")
    assert (status, calls, branch) == (0, [], "")
    assert "recorded no new baselines" in (tmp_path / "summary.md").read_text()
