"""What `--profile` writes of an overlap test on real ranks, checked: kernels, arrows, clocks, exposed communication.

    python benchmarks/profile_check.py [--gpus 2] [--out DIR]

A matmul runs beside an all_reduce, on GPUs with NCCL; with --gpus 0 on CPUs with gloo. It fails unless each rank has
events of both in each step, unless arrows tie each collective across all ranks, and unless the ranks' clocks agree: no
collective ends on a rank before it has begun on all. It prints the exposed communication in the trace beside the figure
of `perf.overlap`; these differ by what they mean, so nothing is asserted of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLOCKS_AGREE = 100.0  # microseconds
STEPS = 3

TEST = """
import pytest, torch, torch.distributed as dist

def of(compute, communicate):
    def program(ctx, n, numel):
        a = torch.randn(n, n, device=ctx.device, dtype=torch.bfloat16 if ctx.device.type == "cuda" else None)
        x = torch.zeros(numel, device=ctx.device)
        def step():
            work = dist.all_reduce(x, async_op=True) if communicate else None
            out = [a @ a for _ in range(4)] if compute else []
            if work is not None:
                work.wait()
            return out, x
        return step
    return program

@pytest.mark.perf
@pytest.mark.ranks(WORLD)
def test_overlap(perf):
    found = perf.overlap(
        together=of(True, True), compute=of(True, False), communication=of(False, True),
        n=perf.sized(8192, smoke=256), numel=perf.sized(1 << 26, smoke=1 << 16),
    )
    perf.check(exposed=found.exposed)
"""


def run(folder: Path, gpus: int) -> Path:
    """Profile the test in the folder; return the file of results."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_overlap.py").write_text(TEST.replace("WORLD", str(gpus or 2)))
    results = folder / "results.json"
    how = [f"--gpus={gpus}"] if gpus else ["--smoke"]
    outputs = ["--profile=traces", f"--gpuperf-json={results}"]
    # A figure without a baseline is no pass; only the trace is checked here.
    subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *how, *outputs], cwd=folder, check=False)
    return results


def problems(trace: dict[str, Any], world_size: int, backend: str) -> list[str]:
    """Return what is wrong with a merged trace of the program that does both; print what was found."""
    events = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [event for event in events if event["ph"] == "X"]
    found = []
    if len(names) != world_size:
        found.append(f"{len(names)} processes, expected {world_size}: {names}")
    for process, name in names.items():
        own = [one for one in slices if one["pid"] == process]
        communicates = [one for one in own if _communicates(one, backend)]
        matmul = "aten::mm" if backend == "gloo" else ""
        computes = [one for one in own if (one["name"] == matmul if matmul else _is_kernel(one, nccl=False))]
        print(f"{name}: {len(own)} slices, {len(computes)} of compute, {len(communicates)} of communication")
        if len(computes) < STEPS or len(communicates) < STEPS:
            found.append(f"{name} has not compute and communication in each of {STEPS} steps")
    ties: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "collective":
            ties[event["id"]].append(_at(event, slices))
    whole = [parts for parts in ties.values() if len({part["pid"] for part in parts}) == world_size]
    print(f"{len(ties)} collectives tied, {len(whole)} of them across all {world_size} ranks")
    if len(whole) < STEPS:
        found.append(f"{len(whole)} collectives are tied across all ranks, expected {STEPS} or more")
    late = [max(one["ts"] for one in parts) - min(one["ts"] + one["dur"] for one in parts) for parts in whole]
    if late:
        print(f"no collective ended on a rank more than {max(0.0, *late):.1f} us before it had begun on all")
        if max(late) > CLOCKS_AGREE:
            found.append(f"the ranks' clocks differ by {max(late):.1f} us, expected {CLOCKS_AGREE:g} or less")
    return found


def _communicates(one: dict[str, Any], backend: str) -> bool:
    return bool(one["name"].startswith("gloo:all_reduce")) if backend == "gloo" else _is_kernel(one, nccl=True)


def _is_kernel(one: dict[str, Any], *, nccl: bool) -> bool:
    return one["cat"] == "kernel" and ("nccl" in one["name"].lower()) == nccl and "spin_kernel" not in one["name"]


def _at(point: dict[str, Any], slices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    around = [
        one
        for one in slices
        if one["tid"] == point["tid"] and one["ts"] <= point["ts"] + 0.002 and point["ts"] <= one["ts"] + one["dur"]
    ]
    return min(around, key=lambda one: one["dur"])


def main() -> int:
    """Return 0 if everything is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="keep the test, its results and its traces there")
    chosen = parser.parse_args()
    folder = chosen.out or Path(tempfile.mkdtemp(prefix="profile-check-"))
    folder.mkdir(parents=True, exist_ok=True)
    profiles = json.loads(run(folder, chosen.gpus).read_text())["shown"]["profiles"]
    (profile,) = [one for one in profiles if one["arm"] == "together"]
    if profile["problem"]:
        print(f"FAILED: {profile['problem']}")
        return 1
    trace = json.loads(gzip.decompress((folder / profile["file"]).read_bytes()))
    found = problems(trace, chosen.gpus or 2, "nccl" if chosen.gpus else "gloo")
    for rank in profile["ranks"]:
        share = rank["exposed"] / rank["communication"] if rank["communication"] else 0.0
        print(
            f"rank {rank['rank']}: step {1e6 * rank['step']:.1f} us, compute {1e6 * rank['compute']:.1f} us, "
            f"communication {1e6 * rank['communication']:.1f} us, of which exposed {share:.1%}"
        )
    print(f"perf.overlap: exposed {profile['overlap_exposed']:.1%}")
    lanes = profile["lanes"]
    print(f"timeline: {len(lanes)} lanes, {sum(len(lane['intervals']) for lane in lanes)} intervals, kinds", end=" ")
    print(sorted({lane["kind"] for lane in lanes}))
    print(f"open at https://ui.perfetto.dev: {folder / profile['file']}")
    print(*(f"FAILED: {one}" for one in found), sep="\n") if found else print("all as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
