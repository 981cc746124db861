"""What a test on ranks costs with this plugin and with what others use, side by side in one run.

    python benchmarks/rank_cost.py [--ranks N] [--gpus N] [--turns 5] [--tests 3] [--json FILE]
    python benchmarks/rank_cost.py --cluster [--ranks N] [--turns 5] [--tests 3]

All do the same test: a process group, one all_reduce of four numbers, its result checked, the group
destroyed; on CPUs with gloo, with --gpus on GPUs with NCCL, each rank on its own. Where a row says that the
group is kept, the tests after the first only all_reduce. The peers, each as it is meant to be used:

- torch.multiprocessing.spawn for each test;
- MultiProcessTestCase and MultiProcContinuousTest of torch.testing._internal.common_distributed;
- a multiprocessing pool as DeepSpeed's tests use it, its mechanism rebuilt in a few lines: see
  ``arms/process_pool.py``.

The arms take turns, each a process of its own. A cost is the wall-clock time of a test, set-up and tear-down
included, of a process that has warmed up unless the row says otherwise; the median of all turns, with
quartiles. The last columns say how many times cheaper it is than the same run's MultiProcessTestCase and spawn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TIMEOUT = 600.0  # seconds for one turn of one arm
REFERENCES = {"vs MPTC": ("multi_process_test_case", "test"), "vs spawn": ("spawn", "test")}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the test: a module of ``benchmarks.arms``, and what it pays for."""

    module: str
    title: str
    rows: Mapping[str, str]
    """Labels by the names that the module gives its rows."""


ARMS = (
    Arm(
        "plugin",
        "pytest-gpuperf",
        {
            "warm": "warm pool, a group per test",
            "fresh": "fresh processes per test",
            "example": "one hypothesis example, group kept",
            "first": "first test: forkserver, ranks, group",
            "restart": "set-up after a rank was killed",
        },
    ),
    Arm(
        "adopted",
        "MultiProcessTestCase, adopted by pytest-gpuperf",
        {
            "first": "first test: forkserver, ranks, group",
            "adopted": "following tests, each opens a group",
            "native": "the same in a test without a class",
        },
    ),
    Arm("multi_process_test_case", "MultiProcessTestCase (MPTC)", {"test": "fresh processes per test"}),
    Arm(
        "multi_proc_continuous_test",
        "MultiProcContinuousTest",
        {"first": "first test of a class", "following": "following tests, group kept"},
    ),
    Arm(
        "process_pool",
        "mp.Pool as DeepSpeed uses it",
        {"fresh": "a pool per test", "reused": "following tests, pool and group kept"},
    ),
    Arm("spawn", "torch.multiprocessing.spawn", {"test": "fresh processes per test"}),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of an arm came to."""

    seconds: Mapping[str, Sequence[float]]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """A row's seconds over all turns."""

    seconds: tuple[float, ...]
    missing: str | None
    """Why there are none."""

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0], self.seconds[0]
        lower, median, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, median, upper

    @property
    def median(self) -> float | None:
        """None where there are no seconds."""
        return statistics.median(self.seconds) if self.seconds else None


Costs = Mapping[tuple[str, str], Cost]


def turn(arm: Arm, arguments: Sequence[str]) -> Turn:
    """Runs the arm once, in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.arms.{arm.module}", *arguments],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Turn({}, dict.fromkeys(arm.rows, f"did not end within {TIMEOUT:g} s"))
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        sys.stderr.write(done.stderr)
        return Turn({}, dict.fromkeys(arm.rows, lines[-1]))
    said = json.loads(done.stdout.splitlines()[-1])
    return Turn(said["seconds"], said["missing"])


def take_turns(turns: int, arguments: Sequence[str]) -> dict[str, list[Turn]]:
    """All arms once in each turn, each time another one first; an arm that failed gets no other turn."""
    taken: dict[str, list[Turn]] = {arm.module: [] for arm in ARMS}
    for number in range(turns):
        start = number % len(ARMS)
        for arm in ARMS[start:] + ARMS[:start]:
            before = taken[arm.module]
            if not before or before[-1].seconds:
                before.append(turn(arm, arguments))
    return taken


def costs(taken: Mapping[str, Sequence[Turn]]) -> Costs:
    """The turns by row; a row that failed in any turn has no seconds, since half a row would mislead."""
    found: dict[tuple[str, str], Cost] = {}
    for arm in ARMS:
        for row in arm.rows:
            missing = next((turn.missing[row] for turn in taken[arm.module] if row in turn.missing), None)
            seconds = () if missing else tuple(s for turn in taken[arm.module] for s in turn.seconds[row])
            found[arm.module, row] = Cost(seconds, missing)
    return found


def table(found: Costs) -> Iterator[str]:
    """The costs as lines of text."""
    yield f"{'ms per test':<42}{'median':>9}  {'quartiles':>17}{'n':>5}" + "".join(f"{name:>11}" for name in REFERENCES)
    for arm in ARMS:
        yield arm.title
        for row, label in arm.rows.items():
            cost = found[arm.module, row]
            if cost.missing is not None:
                yield f"  {label:<40}  not run: {cost.missing}"
                continue
            lower, median, upper = (second * 1e3 for second in cost.quartiles)
            ratios = "".join(f"{ratio(cost, found[reference]):>11}" for reference in REFERENCES.values())
            yield f"  {label:<40}{median:>9.2f}  {f'{lower:.2f}-{upper:.2f}':>17}{len(cost.seconds):>5}{ratios}"


def ratio(cost: Cost, reference: Cost) -> str:
    """How many times cheaper than the reference."""
    if cost.median is None or reference.median is None:
        return "-"
    return f"{reference.median / cost.median:.1f}x"


def machine(gpus: int) -> str:
    """What the figures are of."""
    import torch

    device = f"{gpus} x {torch.cuda.get_device_name()}" if gpus else f"{os.cpu_count()} cores of {platform.machine()}"
    return f"{device}, torch {version('torch')}, Python {platform.python_version()}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="world size; 2 if not given, or as many as --gpus")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tests", type=int, default=3, help="of each kind in a turn; five times as many of the cheap")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cluster", action="store_true", help="the plugin on raylets of this machine instead of peers")
    options = parser.parse_args()
    ranks = options.ranks or options.gpus or 2
    if options.cluster:
        from benchmarks.cluster_cost import NODES, compare  # which needs Ray

        if ranks % max(NODES):
            parser.error(f"each node has as many ranks: {ranks} ranks do not fit evenly on {max(NODES)} nodes")
        print(*compare(ranks, options.tests, options.turns), sep="\n")
        return
    if options.gpus and ranks > options.gpus:
        parser.error(f"each rank has its own GPU: {ranks} ranks do not fit on {options.gpus}")
    for interface in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(interface, "lo")  # the same for all; the plugin would set it for itself alone
    asked = [f"--ranks={ranks}", f"--gpus={options.gpus}", f"--tests={options.tests}"]
    found = costs(take_turns(options.turns, asked))
    where = f"{ranks} ranks, {'nccl' if options.gpus else 'gloo'}, {machine(options.gpus)}, {options.turns} turns"
    print(where, *table(found), sep="\n")
    if options.json is not None:
        rows = {
            f"{arm}: {row}": {"seconds": cost.seconds, "missing": cost.missing} for (arm, row), cost in found.items()
        }
        options.json.write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
