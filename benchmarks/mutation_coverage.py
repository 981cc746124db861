"""How many faults in communication tests notice, by kind, and what a fault costs.

    python benchmarks/mutation_coverage.py tests PATH ... [--seconds N] [--gpus N] [--json FILE]
    python benchmarks/mutation_coverage.py programs FOLDER [--view all|first|rank0] [--json FILE]
    python benchmarks/mutation_coverage.py groups [--copies N] [--gpus N] [--json FILE]

``tests`` runs test files with ``--mutate`` on CPUs, or on GPUs with ``--gpus N``. Drawn tests have five examples, which
are the same each time.
``programs`` runs the programs of a folder, each with the test that a user would write: all outputs on all ranks equal
those of one process. ``first`` compares only the first output, ``rank0`` all of rank 0 only: weaker tests show which
kinds find something that others do not. A file ``NN_name.py`` of the folder has ``WORLD``, ``LAYOUT``, ``reference()``
and ``program(ctx, wrong)``; ``check.py`` there has ``load`` and ``compare``, which cuts a reference for each rank.

``groups`` makes faults in asynchronous collectives on two groups that the ranks issue in different orders (in one order
on GPUs, where NCCL asks for it), and fails if one of them hangs.

*alone* counts unnoticed faults of a kind at sites whose other faults are all noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.pytest_command import pytest_command  # noqa: E402

TIMES_OF = """
import json
import os
import time

from pytest_gpuperf.features.mutating.mutating import Mutating
from pytest_gpuperf.run.launches import copy_for_launch
from pytest_gpuperf.run.pytest_internals import run_phases

judge = Mutating._judge


def judge_and_time(self, fault, tests):
    judged = judge(self, fault, tests)
    self._number += 1
    around, self._ranks.around = self._ranks.around, None
    began = time.monotonic()
    run_phases(copy_for_launch(tests[0].item, self._number), tests[0].item, log=False)
    bare = time.monotonic() - began
    self._ranks.around = around
    if len(tests) == 1:
        with open(os.environ["TIMES"], "a") as file:
            print(json.dumps([tests[0].name, bare, judged.seconds]), file=file)
    return judged


Mutating._judge = judge_and_time
"""
"""A conftest that runs the bare test after each fault, so that other work of the machine slows both down."""
TESTS = """
import os
import check
import pytest

VIEW = os.environ["VIEW"]


def judge(ranks, path):
    module = check.load(path)
    results = ranks.run(program, path)
    whole = {name: value.detach() for name, value in module.reference().items()}
    names = list(module.LAYOUT)[:1] if VIEW == "first" else module.LAYOUT
    for name in names:
        held = [result.get(name) for result in results]
        worst, pairs = check.compare(module.LAYOUT[name], whole[name], held, module.WORLD)
        if VIEW == "rank0":
            wanted, got = pairs[0]
            scale = max(float(wanted.double().abs().max()), 1e-300) if wanted.numel() else 1.0
            worst = float((wanted.double() - got.double()).abs().max()) / scale if wanted.numel() else 0.0
        assert worst <= getattr(module, "TOL", 1e-9), name


def program(ctx, path):
    held = check.load(path).program(ctx, False)
    return {name: value.detach().clone() for name, value in held.items()}


def made(path):
    @pytest.mark.ranks(check.load(path).WORLD, device="cpu")
    def test(ranks):
        judge(ranks, path)

    return test


for path in check.FILES:
    globals()["test_" + path.stem] = made(path)
"""

GROUPS = """
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(2)
def test(ranks):
    assert ranks.run(program) == [EXPECTED[0], EXPECTED[1]]


def program(ctx):
    groups = dist.new_group([0, 1]), dist.new_group([0, 1])
    found = []
    for issue in ISSUED:
        order = (1, 0) if ctx.rank and ctx.backend == "gloo" else (0, 1)
        works, outs = [], [None, None]
        for which in order:
            x = torch.arange(1.0, 5.0, device=ctx.device) * (1 + ctx.rank) + which
            outs[which] = torch.zeros(8, device=ctx.device)
            works.append(issue(x, outs[which], groups[which]))
        for work in works:
            work.wait()
        found.append([out.sum().item() for out in outs])
    return found


ISSUED = []
"""
ISSUES = (
    "dist.all_reduce(out[:4].copy_(x), group=group, async_op=True)",
    "dist.broadcast(out[:4].copy_(x), 1, group=group, async_op=True)",
    "dist.all_gather([out[:4], out[4:]], x, group=group, async_op=True)",
    "dist.all_gather_into_tensor(out, x, group=group, async_op=True)",
    "dist.all_to_all_single(out[:4], x, group=group, async_op=True)",
    "dist.reduce_scatter_tensor(out[:2], x, group=group, async_op=True)",
    "dist.reduce_scatter(out[:2], [x[:2], x[2:]], group=group, async_op=True)",
)
TIMES, ADDED = 1.3, 0.01  # what a fault may cost: times the bare test, and seconds
HUNG = 9.0  # seconds of a fault: all ranks wait until its time is up, which is 10 s


def main() -> int:
    """Runs the tests, and prints what became of the faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tests", "programs", "groups"])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--view", choices=["all", "first", "rank0"], default="all", help="what the tests compare")
    parser.add_argument("--seconds", type=float, default=0.0, help="for all faults (default: no limit)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results of pytest")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as pytest has it")
    parser.add_argument("--copies", type=int, default=6, help="of groups: how often each collective is issued")
    parser.add_argument("--gpus", type=int, default=0, help="of tests and groups: run on as many GPUs, with NCCL")
    options = parser.parse_args()
    if options.what == "programs" and options.gpus:
        parser.error("programs run on CPUs: leave out --gpus")
    if options.what != "groups" and not options.paths:
        parser.error(f"{options.what} needs a path")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = (options.json or folder / "results.json").absolute()
        if options.what == "programs":
            (folder / "test_programs.py").write_text(TESTS)
            (folder / "conftest.py").write_text(TIMES_OF)
            (folder / "times.jsonl").touch()
            (folder / "pytest.ini").write_text("[pytest]\n")
            where, paths = folder, ["test_programs.py"]
            path = os.pathsep.join([str(options.paths[0].absolute()), str(ROOT)])
            env = {"PYTHONPATH": path, "VIEW": options.view, "TIMES": str(folder / "times.jsonl")}
        elif options.what == "groups":
            (folder / "test_groups.py").write_text(_two_groups(options.copies))
            (folder / "pytest.ini").write_text("[pytest]\n")
            where, paths, env = folder, ["test_groups.py"], {}
        else:
            quick = ["--hypothesis-profile=quick", "--largest-worlds", "-m", "not perf and not long"]
            where, paths = ROOT, [*map(str, options.paths), *quick]
            env = {}
        paths += ["-k", options.k] if options.k else []
        paths += [f"--gpus={options.gpus}"]
        limit = f"--mutate={options.seconds:g}" if options.seconds else "--mutate"
        ran = _run([*paths, f"--gpuperf-json={results}", limit], where, env)
        found = json.loads(results.read_text())["features"]["mutating"]
        print(*_lines(found), sep="\n")
        if options.what == "programs":
            print(_cost([json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]))
        if options.what == "groups":
            faults = [one for site in found["sites"] for one in site["faults"]]
            hung = [one["kind"] for one in faults if one["seconds"] > HUNG]
            print(f"{len(faults)} faults, {len(hung)} hung")
            return int(bool(hung) or not faults)
    return ran


def _two_groups(copies: int) -> str:
    """Returns a test of which each line that issues a collective is a site."""
    lines = [
        f"ISSUED.append(lambda x, out, group: {issue})  # {number}" for number in range(copies) for issue in ISSUES
    ]
    expected = {rank: [_right(issue, rank) for _ in range(copies) for issue in range(len(ISSUES))] for rank in range(2)}
    return GROUPS + "\n".join(lines) + f"\nEXPECTED = {expected!r}\n"


def _right(issue: int, rank: int) -> list[float]:
    """Returns the sums of what a collective comes to on a rank, for both groups."""
    sums = []
    for which in range(2):
        x = [[part * (1 + one) + which for part in (1.0, 2.0, 3.0, 4.0)] for one in range(2)]
        total = [first + second for first, second in zip(*x, strict=True)]
        half = slice(2 * rank, 2 * rank + 2)
        match issue:
            case 0:
                sums.append(sum(total))
            case 1:
                sums.append(sum(x[1]))
            case 2 | 3:
                sums.append(sum(total))
            case 4:
                sums.append(sum(x[0][half]) + sum(x[1][half]))
            case _:
                sums.append(sum(total[half]))
    return sums


def _run(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> int:
    # Where CI is set, hypothesis draws the same examples each time.
    command = pytest_command("-p", "no:cacheprovider", "-rf", *arguments)
    return subprocess.run(command, cwd=folder, env={**os.environ, "CI": "1", **env}, check=False).returncode


def _lines(found: Mapping[str, Any]) -> list[str]:
    judged = {kind: Counter[str]() for site in found["sites"] for kind in (one["kind"] for one in site["faults"])}
    sites = Counter[str]()
    for site in found["sites"]:
        missed = [one["kind"] for one in site["faults"] if one["outcome"] == "unnoticed"]
        noticed = sum(one["outcome"] == "noticed" for one in site["faults"])
        sites["with faults"] += bool(missed or noticed)
        sites["guarded"] += bool(noticed and not missed)
        for one in site["faults"]:
            judged[one["kind"]][one["outcome"]] += 1
        if len(missed) == 1:
            judged[missed[0]]["alone"] += 1
    counted = found["noticed"] + found["unnoticed"]
    lines = [
        f"sites guarded: {sites['guarded']} of {sites['with faults']}",
        f"faults noticed: {found['noticed']} of {counted} ({100 * found['noticed'] / max(1, counted):.1f} %); "
        f"{found['equivalent']} equivalent, {found['not_made']} not made, {found['left_over']} left over",
        f"{'kind':32}noticed unnoticed alone equivalent",
    ]
    for kind, counts in sorted(judged.items()):
        shown = (counts["noticed"], counts["unnoticed"], counts["alone"], counts["equivalent"])
        lines.append(f"{kind:32}{shown[0]:7}{shown[1]:10}{shown[2]:6}{shown[3]:11}")
    return lines


def _cost(timed: Sequence[tuple[str, float, float]]) -> str:
    """Returns a line about bare tests and their next faults: the name, and the seconds of both."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for test, bare, fault in timed:
        pairs.setdefault(test, []).append((bare, fault))
    both = [tuple(map(statistics.median, zip(*some, strict=True))) for some in pairs.values()]
    if not both:
        return "cost: no test was timed"
    before, after = (statistics.median(seconds) for seconds in zip(*both, strict=True))
    ratio = statistics.median(statistics.median(fault / bare for bare, fault in some) for some in pairs.values())
    within = sum(fault <= TIMES * bare + ADDED for bare, fault in both)
    return (
        f"cost: {len(both)} tests, medians: bare {1e3 * before:.0f} ms, with a fault {1e3 * after:.0f} ms, "
        f"ratio {ratio:.2f}; {within} take at most {TIMES} times the bare test and {1e3 * ADDED:.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
