"""A small GitHub: evaluates the caller on the page and runs the steps of the job in a clone, without containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.arms.checkouts import git
from tests.warm_python import note
from tests.whole_run import ROOT, environment

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/gpu-tests.yml").read_text())
# YAML 1.1 reads the key "on" as true.
INPUTS: dict[str, dict[str, Any]] = WORKFLOW[True]["workflow_call"]["inputs"]  # type: ignore[index]
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["gpu"]["steps"]
REPOSITORY = "someone/repository"
IMAGE = f"image@sha256:{'0' * 64}"
_LITERALS = {"always()": True, "true": True, "false": False}
_BASH = shutil.which("bash") or "bash"  # of this machine, also where a step finds no programs
_EXPRESSION = re.compile(r"\$\{\{(.+?)\}\}")
_YAML = re.compile(r"^```yaml\n(.+?)^```$", re.MULTILINE | re.DOTALL)
(_TEXT,) = _YAML.findall((ROOT / "docs/guard-a-repository.md").read_text())
CALLER: dict[str, Any] = yaml.safe_load(_TEXT)
"""The workflow that users copy from the page."""


@dataclass(frozen=True)
class Event:
    """What started a run."""

    sha: str
    """GitHub's: of a pull request it is the merge."""
    ref: str = "refs/heads/main"
    name: str = "schedule"
    payload: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, bool] = field(default_factory=dict)
    """The inputs of a manual start."""

    @property
    def contexts(self) -> dict[str, Any]:
        """What expressions of the caller may name."""
        github = {
            "sha": self.sha,
            "ref": self.ref,
            "run_id": "1",
            "token": "secret",
            "workflow": CALLER["name"],
            "repository": REPOSITORY,
            "event_name": self.name,
            "event": self.payload,
        }
        return {"github": github, "inputs": self.inputs, "vars": {"GPU_IMAGE": IMAGE}}


def calls(event: Event) -> bool:
    """Whether the caller on the page calls the workflow."""
    return bool(evaluated(CALLER["jobs"]["gpu"]["if"], event.contexts))


def given(event: Event) -> dict[str, Any]:
    """What the caller on the page passes as inputs."""
    inputs = {name: _filled(value, event.contexts) for name, value in CALLER["jobs"]["gpu"]["with"].items()}
    assert inputs.keys() <= INPUTS.keys()
    lacking = [name for name, facts in INPUTS.items() if facts.get("required") and not inputs.get(name)]
    assert not lacking, f"GitHub requires the inputs {lacking}"
    return inputs


@dataclass(frozen=True)
class Ended:
    """What a job came to."""

    failed: str
    """The name of the first step that failed; empty if none did."""
    log: str
    summary: str
    """The job's summary, in Markdown."""
    artifacts: Mapping[str, Path]
    """By name, the folder with an artifact's files."""


class Runner:
    """Runs the job in one folder; each job has its clone."""

    def __init__(self, origin: Path, folder: Path, variables: Mapping[str, str]) -> None:
        """Nothing runs yet.

        Args:
            origin: the repository.
            folder: for clones, artifacts and leases.
            variables: of the container's environment.
        """
        self._origin = origin
        self._folder = folder
        self._variables = variables

    def run(self, event: Event, inputs: Mapping[str, Any], only: str = "", depth: int | None = None) -> Ended:
        """Runs the steps of the job in a fresh clone.

        Args:
            event: what started it.
            inputs: the caller's.
            only: the step to run, by its name; all if empty.
            depth: of the clone; the workflow's if None.
        """
        defaults = {name: facts.get("default") for name, facts in INPUTS.items()}
        job = _Job(self._origin, self._new(), event, self._variables, {**defaults, **inputs})
        for step in STEPS:
            checkout = step.get("uses", "").startswith("actions/checkout@")
            if checkout or not only or step.get("name") == only:
                job.step(step, depth)
        return job.ended()

    def _new(self) -> Path:
        folder = self._folder / f"job-{len(list(self._folder.glob('job-*')))}"
        folder.mkdir(parents=True)
        return folder


class _Job:
    def __init__(
        self,
        origin: Path,
        folder: Path,
        event: Event,
        variables: Mapping[str, str],
        inputs: Mapping[str, Any],
    ) -> None:
        self._origin = origin
        self._folder = folder
        self._workspace, self._home = folder / "workspace", folder / "home"
        for path in (self._workspace, self._home):
            path.mkdir()
        # What the runner's own git would check out over the network is a folder here, which its owner trusts.
        (self._home / ".gitconfig").write_text(f"[safe]\n\tdirectory = {origin}\n\tdirectory = {origin}/.git\n")
        self._contexts = {**event.contexts, "inputs": inputs}
        programs = f"{_programs(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        of_the_runner = {
            "PATH": programs,
            "HOME": str(self._home),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_REF": event.ref,
            "GITHUB_SHA": event.sha,
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_WORKSPACE": str(self._workspace),
            # The runner's user owns the clone, and the container's user runs the steps.
            "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",
        }
        self._variables = environment(**{**of_the_runner, **note(subprocess.Popen, folder), **variables})
        self._log: list[str] = []
        self._failed = ""
        self._artifacts: dict[str, Path] = {}

    def step(self, step: Mapping[str, Any], depth: int | None) -> None:
        condition = step.get("if", "")
        if self._failed and "always()" not in condition:
            return
        if condition and not evaluated(condition, self._contexts):
            return
        arguments = {name: self._text(value) for name, value in step.get("with", {}).items()}
        match step.get("uses", "").partition("@")[0]:
            case "":
                self._script(step)
            case "actions/checkout":
                self._checkout(arguments["ref"], int(arguments["fetch-depth"]) if depth is None else depth)
            case "actions/upload-artifact":
                self._upload(arguments["name"], arguments["path"])
            case action:
                raise AssertionError(f"unknown action {action}")

    def ended(self) -> Ended:
        summary = self._folder / "summary.md"
        text = summary.read_text() if summary.exists() else ""
        return Ended(self._failed, "\n".join(self._log), text, self._artifacts)

    def _script(self, step: Mapping[str, Any]) -> None:
        variables = {name: self._text(value) for name, value in step.get("env", {}).items()}
        if "LEASES" in variables:
            variables["LEASES"] = str(self._folder / "leases")  # the container mounts a folder of the machine there
        # As GitHub's runner calls bash for `shell: bash`.
        done = subprocess.run(
            [_BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self._workspace,
            env={**self._variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self._log.append(done.stdout)
        if done.returncode and not self._failed:
            self._failed = step["name"]

    def _checkout(self, sha: str, depth: int) -> None:
        git(self._workspace, "init", "--quiet")
        git(self._workspace, "remote", "add", "origin", f"file://{self._origin}")
        if depth:
            git(self._workspace, "fetch", "--quiet", "--no-tags", f"--depth={depth}", "origin", sha)
        else:
            git(self._workspace, "fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*")
            git(self._workspace, "fetch", "--quiet", "--no-tags", "origin", sha)
        git(self._workspace, "checkout", "--quiet", "--detach", sha)

    def _upload(self, name: str, paths: str) -> None:
        target = self._artifacts[name] = self._folder / "artifacts" / name
        target.mkdir(parents=True)
        for path in map(self._workspace.joinpath, paths.split()):
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
            elif path.exists():
                shutil.copy(path, target)

    def _text(self, value: object) -> str:
        return _as_text(_filled(value, self._contexts))


def _programs(folder: Path) -> Path:
    """A folder with a ``python`` that forks what this process would fork."""
    programs = folder / "programs"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m tests.forked_python "$@"\n')
    python.chmod(0o755)
    return programs


def evaluated(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Return what an expression of GitHub's comes to: names, literals, ``always()`` and operators, without brackets."""
    for operator in (" || ", " && ", " == ", " != "):
        first, found, rest = " ".join(expression.split()).partition(operator)
        if not found:
            continue
        value, other = evaluated(first, contexts), evaluated(rest, contexts)
        match operator.strip():
            case "||":
                return value or other
            case "&&":
                return value and other
            case "==":
                return value == other
            case _:
                return value != other
    name = expression.strip()
    if name in _LITERALS:
        return _LITERALS[name]
    if name.startswith("'"):
        return name.strip("'")
    value = contexts
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _filled(value: object, contexts: Mapping[str, Any]) -> object:
    """Return the value with its expressions replaced; an expression by itself keeps its type."""
    text = _as_text(value)
    whole = _EXPRESSION.fullmatch(text)
    if whole:
        return evaluated(whole[1], contexts)
    return _EXPRESSION.sub(lambda found: _as_text(evaluated(found[1], contexts)), text)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
