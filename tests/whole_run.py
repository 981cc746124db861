"""Whole runs of pytest in a process of their own, read from what they print."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LINE = re.compile(r"(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL)(?: \((.*)\))?\s+\[ *\d+%\]")
# By these hypothesis tells a CI service, where it draws the same examples each time and keeps no database.
_CI_SERVICES = (
    "CI",
    "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI",
    "TF_BUILD",
    "bamboo.",
    "BUILDKITE",
    "CODEBUILD_",
    "GITHUB_",
    "GITLAB_",
    "HEROKU_",
    "TEAMCITY_",
)
# What a surrounding run, or the machine it is on, would tell the inner one. Without bytecode, pytest would
# rewrite the assertions of its plugins in each run anew.
_MACHINE = ("PYTEST_", "CUDA_VISIBLE_DEVICES", "NCCL_", "GLOO_", "PYTHONDONTWRITEBYTECODE")
_NOT_INHERITED = (*_CI_SERVICES, *_MACHINE)

COMMON_PLUGINS = {
    "anyio": "anyio",
    "pytest-asyncio": "asyncio",
    "pytest-cov": "pytest_cov",
    "pytest-randomly": "randomly",
    "pytest-rerunfailures": "rerunfailures",
    "pytest-timeout": "timeout",
}
"""Plugins that many have beside this one: installed for the tests of just that, and off in all others."""


class WholeRun:
    """What one run of ``pytest -v -rA`` printed."""

    def __init__(self, result: pytest.RunResult) -> None:
        self.result = result
        self.text = result.stdout.str() + "\n" + result.stderr.str()
        self.outcomes: dict[str, str] = {}
        """By the test's name within its file; an error in the teardown replaces the call's outcome."""
        for line in result.outlines:
            if found := _LINE.match(line):
                self.outcomes[found[1].partition("::")[2]] = found[2]

    def report(self, name: str) -> str:
        """The section of a test's failure, or of what it printed."""
        header = re.compile(rf"_+ (?:ERROR at \w+ of )?{re.escape(name.replace('::', '.'))} _+")
        lines = self.result.outlines
        start = next(index for index, line in enumerate(lines) if header.fullmatch(line))
        rest = lines[start + 1 :]
        end = next((i for i, line in enumerate(rest) if re.fullmatch(r"_{3,} \S.* _{3,}|={3,} .* ={3,}", line)), None)
        return "\n".join(rest[:end])

    def section(self, title: str) -> list[str]:
        """The lines of a part of the terminal's summary."""
        lines = self.result.outlines
        start = next(index for index, line in enumerate(lines) if re.fullmatch(rf"=+ {title} =+", line))
        rest = lines[start + 1 :]
        end = next((index for index, line in enumerate(rest) if re.fullmatch(r"=+ .* =+", line)), None)
        return rest[:end]


def environment(**changes: str) -> dict[str, str]:
    """An environment in which this checkout is found and nothing of the surrounding run is."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    # A safe path, as the command pytest has: the folder that it runs in is not on it.
    ours = {"COLUMNS": "200", "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTEST_ADDOPTS": without(*COMMON_PLUGINS)}
    return {**kept, **ours, **changes}


def without(*distributions: str) -> str:
    """The options that keep these of COMMON_PLUGINS out of a run."""
    return " ".join(f"-p no:{COMMON_PLUGINS[name]}" for name in distributions)


def run_pytest(
    folder: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    typed: str = "",
) -> WholeRun:
    """Runs the tests in the folder; they wait for no lease of somebody else's.

    Args:
        folder: with the tests.
        args: for pytest, beside those that a WholeRun needs.
        env: beside what the environment is.
        timeout: seconds.
        typed: what is typed at the terminal.
    """
    leases = f"gpuperf_leases={folder / '.leases'}"
    command = [sys.executable, "-m", "pytest", "-v", "-rA", "-p", "no:cacheprovider", "-o", leases, *args]
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**(env or {})),
        input=typed,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    duration = time.monotonic() - start
    return WholeRun(pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), duration))


def run_on_terminal(folder: Path, *args: str, env: Mapping[str, str], timeout: float = 300) -> str:
    """Runs pytest in the folder with a terminal before it; everything that the terminal was sent."""
    master, slave = os.openpty()
    with os.fdopen(master, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        watchdog = threading.Timer(timeout, process.kill)
        watchdog.start()
        sent = []
        # Once the last process that held the terminal has closed it, reading fails.
        with contextlib.suppress(OSError):
            while piece := screen.read(65536):
                sent.append(piece)
        process.wait()
        watchdog.cancel()
    return b"".join(sent).decode()


def write(folder: Path, sources: Mapping[str, str]) -> Path:
    """Writes files, by their paths within the folder."""
    for name, source in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder
