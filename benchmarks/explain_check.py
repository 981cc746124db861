"""What `--explain` finds on this machine: variables that slow NCCL, cuBLAS or a program are set, one run for each.

    python benchmarks/explain_check.py --gpus 2 [--out DIR] [--only NCCL_P2P_DISABLE=1] [--launches 5] [--within 300]

It records all_reduces, sends and matrix products without these variables, in a git repository of its own. Then it sets
one variable after another and judges again with `--explain`. For each it prints whether the run was red, which figures
moved, whether the cause was named, and whether races proved it. With one GPU it sets the variables that one GPU reads.
With --gpus 0 the GPUs are made up and a program sleeps, which tries the script itself.

It exits with 1 if a run that moved figures does not prove its variable. A variable that moves nothing on this machine
is reported, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the script's folder is on the path and not the repository's root

from benchmarks.pytest_command import pytest_command  # noqa: E402

PROGRAMS = """
import os, time
import torch, torch.distributed as dist

def all_reduce(ctx, *, nbytes):
    x = torch.zeros(nbytes // 4, device=ctx.device)
    return lambda: dist.all_reduce(x)

def ring(ctx, *, nbytes):
    sent, received = (torch.zeros(nbytes // 4, device=ctx.device) for _ in range(2))
    after, before = (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size
    def step():
        sends = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()
    return step

def matmul(ctx, *, n, repeats=1):
    torch.set_float32_matmul_precision("high")  # TF32, which NVIDIA_TF32_OVERRIDE=0 forbids
    a = torch.randn(n, n, device=ctx.device)
    def step():
        for _ in range(repeats):
            a @ a
    return step

def repeated(ctx, *, n):
    repeats = int(os.environ.get("NCCL_CHECK_REPEATS", "4"))
    if ctx.device.type == "cpu":
        return lambda: time.sleep(0.002 * repeats)
    return matmul(ctx, n=n, repeats=repeats)
"""

TESTS = """
import pytest
import programs

pytestmark = pytest.mark.perf

@pytest.mark.ranks(1)
def test_matmul(perf):
    perf.check(time=perf.measure(programs.matmul, n=SIDE).time)

@pytest.mark.ranks(1)
def test_repeated(perf):
    perf.check(time=perf.measure(programs.repeated, n=SIDE).time)
"""

OF_NCCL = """
@pytest.mark.ranks(WORLD)
@pytest.mark.parametrize("nbytes", [2**10, 2**26])
def test_all_reduce(perf, nbytes):
    perf.check(busbw=perf.measure(programs.all_reduce, nbytes=nbytes).busbw("all_reduce", nbytes))

@pytest.mark.ranks(WORLD)
def test_ring(perf):
    perf.check(busbw=perf.measure(programs.ring, nbytes=2**26).busbw("send_recv", 2**26))
"""

ON_CPUS = """
import sys
import pytest
sys.path.insert(0, ROOT)
from tests import fake_gpus
fake_gpus.install(pytest.MonkeyPatch(), visible=1)
"""


@dataclass(frozen=True)
class Case:
    """Variables that are set in one run."""

    variables: Mapping[str, str]
    gpus: int
    """How many the run needs to feel them."""

    @property
    def name(self) -> str:
        """As a shell has it."""
        return " ".join(f"{name}={value}" for name, value in self.variables.items())


CASES = (
    Case({"NCCL_MAX_NCHANNELS": "12"}, 2),
    Case({"NCCL_P2P_DISABLE": "1"}, 2),
    Case({"NCCL_ALGO": "allreduce:tree"}, 2),
    Case({"NCCL_PROTO": "LL"}, 2),
    Case({"NCCL_MAX_NCHANNELS": "4", "NCCL_BUFFSIZE": "4194304", "NCCL_CHECK_NOTHING": "1"}, 2),
    Case({"NVIDIA_TF32_OVERRIDE": "0"}, 1),
    Case({"NCCL_CHECK_REPEATS": "8"}, 0),
)
CLEARED = tuple({name for case in CASES for name in case.variables})


@dataclass(frozen=True)
class Found:
    """What one run said."""

    case: Case
    red: bool
    seconds: float
    moved: Sequence[Mapping[str, Any]]
    """Verdicts that --explain looked at."""

    @property
    def named(self) -> bool:
        """Whether each of them names all variables that were set."""
        return all(set(self.case.variables) <= set(one["differs"]) for one in self.moved)

    @property
    def proved(self) -> bool:
        """Whether races explained each of them by some of these variables."""
        told = [one["explanation"] for one in self.moved]
        return all(one["found"] == "explained" and set(one["undone"]) <= set(self.case.variables) for one in told)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these of the variables, and none of the others."""
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    paths = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": paths, **variables}


def prepare(folder: Path, gpus: int, cases: Sequence[Case]) -> None:
    """Write the tests that feel the cases, and commit them: a race needs the record's commit."""
    head, *of_one = TESTS.partition("@pytest.mark.ranks(1)")
    felt = "".join(of_one).replace("SIDE", "8192" if gpus else "64") if any(case.gpus < 2 for case in cases) else ""
    tests = head + felt + (OF_NCCL.replace("WORLD", str(gpus)) if gpus > 1 else "")
    files = {
        "programs.py": PROGRAMS,
        "test_it.py": tests,
        "pytest.ini": "[pytest]\n",
        ".gitignore": "*.json\n__pycache__\n",
    }
    if not gpus:
        files["conftest.py"] = ON_CPUS.replace("ROOT", repr(str(ROOT)))
    for name, text in files.items():
        (folder / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "tests of this check"]):
        author = ["-c", "user.name=check", "-c", "user.email=check@localhost"]
        subprocess.run(["git", *author, *command], cwd=folder, check=True)


def run(folder: Path, variables: Mapping[str, str], *arguments: str) -> tuple[int, float]:
    """Run pytest with the plugin on the tests; the exit status and the seconds."""
    began = time.monotonic()
    loaded = ["-p", "pytest_gpuperf.plugin"] if not installed() else []
    command = pytest_command(*loaded, "-p", "no:cacheprovider", *arguments)
    done = subprocess.run(command, cwd=folder, env=environment(variables), check=False)
    return done.returncode, time.monotonic() - began


def installed() -> bool:
    """Whether pytest finds the plugin by itself."""
    from importlib.metadata import entry_points

    return any(one.value == "pytest_gpuperf.plugin" for one in entry_points(group="pytest11"))


def tried(folder: Path, case: Case, gpus: int) -> Found:
    """Judge with the variables of a case."""
    print(f"\n=== {case.name}", flush=True)
    results = folder / "results.json"
    status, seconds = run(folder, case.variables, f"--gpus={gpus}", "--explain", f"--gpuperf-json={results}")
    verdicts = json.loads(results.read_text())["verdicts"]
    moved = [one for one in verdicts if one.get("explanation") is not None]
    for one in moved:
        told = one["explanation"]
        chosen = ", ".join(f"{name}: {now}, recorded {then}" for name, (then, now) in one["chosen"].items())
        print(f"{one['test']} {one['metric_name']}: {one['outcome']}, change {one['change']:+.1%}")
        print(f"    {told['found']} by {told['undone']}, then {told['value']}; {told['problem'] or 'no problem'}")
        print(f"    NCCL chose: {chosen or 'nothing else'}", flush=True)
    return Found(case, status != 0, seconds, moved)


def main() -> int:
    """Return 0 if each run that moved figures proved its variable."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--launches", type=int, default=5, help="of the baseline")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="NAME=VALUE ..., as the table has it"
    )
    parser.add_argument("--within", type=float, default=3600.0, help="seconds after which no other case begins")
    parser.add_argument("--out", type=Path, default=None, help="keep the tests, their record and the results there")
    chosen = parser.parse_args()
    began = time.monotonic()
    cases = [one for one in CASES if one.gpus <= chosen.gpus and (not chosen.only or one.name in chosen.only)]
    folder = chosen.out or Path(tempfile.mkdtemp(prefix="explain-check-"))
    folder.mkdir(parents=True, exist_ok=True)
    gpus = max(1, chosen.gpus)
    prepare(folder, chosen.gpus, cases)
    status, seconds = run(
        folder, {}, f"--gpus={gpus}", "--update-baselines=all", f"--launches={chosen.launches}", "--reason=check"
    )
    print(f"recorded with exit status {status} in {seconds:.0f} s", flush=True)
    for path in (folder / "baselines").glob("*.json"):
        launches = json.loads(path.read_text())["launches"].values()
        print(f"what NCCL chose, of {len(launches)} launches: {next(iter(launches)).get('nccl', 'not known')}")
    found = []
    for case in cases:
        if time.monotonic() > began + chosen.within:
            print(f"\n=== {case.name}: not tried, since {chosen.within:g} s are over", flush=True)
        else:
            found.append(tried(folder, case, gpus))
    print(f"\n{'variables':70}  red  metrics moved  named  proved  seconds")
    for one in found:
        red, named, proved = ("yes" if yes else "no" for yes in (one.red, one.named, one.proved))
        if not one.moved:
            named = proved = "-"
        print(f"{one.case.name:70}  {red:3}  {len(one.moved):13}  {named:5}  {proved:6}  {one.seconds:7.0f}")
    failed = [one for one in found if one.moved and not (one.red and one.named and one.proved)]
    return 1 if failed or status else 0


if __name__ == "__main__":
    sys.exit(main())
