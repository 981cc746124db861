"""Binaries of nccl-tests that print what real ones print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.nccl_tests import binaries
from benchmarks.nccl_tests.plan import SWEEPS, Plan, Sweep
from pytest_gpuperf import KiB

SMALL = Sweep("latency", KiB, 2 * KiB, 2, cuda_graph=True, tolerance=0.05)

# Out of place 10 us and in place 20 us for 1 KiB, ten times as much for 1 GiB. FAKE says what goes wrong.
FAKE = f"""#!{sys.executable}
import json, os, sys
print("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809")
if "-h" in sys.argv:
    print("USAGE: x" + ("" if os.environ.get("FAKE") == "old" else " [-J,--output_file <file>]"))
    sys.exit()
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.path.join(os.path.dirname(__file__), "calls.jsonl"), "a") as calls:
    told = {{name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "LD_"))}}
    calls.write(json.dumps([os.path.basename(__file__), options, told]) + "\\n")
fake = os.environ.get("FAKE", "")
if fake == "fail":
    print("vm: Test NCCL failure common.cu:1585 'unhandled cuda error'")
    print("no such device", file=sys.stderr)
    sys.exit(3)
rows = []
for cycle in reversed(range(int(options["-N"]))):
    size = int(options["-b"])
    while size <= int(options["-e"]):
        us = (10 if size < 2**20 else 100) / (cycle + 1)
        wrong = 5 if fake == "wrong" and size == 1024 else 0
        rows.append((size, us, wrong))
        size *= int(options["-f"])
rows = rows[:1] if fake == "short" else rows
dtype = "float" if fake == "float" else options["-d"]
if "-J" in options:
    side = lambda us, size, wrong: {{"time": us, "alg_bw": 1.0, "bus_bw": size / us / 1e3, "nwrong": wrong}}
    results = [
        {{"size": size, "type": dtype, "out_of_place": side(us, size, wrong),
          "in_place": None if fake == "one column" else side(2 * us, size, None)}}
        for size, us, wrong in rows
    ]
    with open(options["-J"], "w") as file:
        json.dump({{"results": results, "out_of_bounds": {{"count": int(fake == "wrong")}}}}, file)
else:
    print("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    for size, us, wrong in rows:
        print(size, size // 2, dtype, "sum", -1, us, 1.0, size / us / 1e3, wrong, 2 * us, 1.0, size / us / 1e3, "N/A")
sys.exit(1 if fake == "wrong" else 0)
"""


def built(folder: Path, **environ: str) -> binaries.NcclTests:
    return binaries.NcclTests.found(folder, {"PATH": os.environ["PATH"], **environ}, Path("/torch/nccl"))


def calls(folder: Path) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in (folder / "build" / "calls.jsonl").read_text().splitlines()]


def plan(*ops: str, sweeps: tuple[Sweep, ...] = SWEEPS) -> Plan:
    return Plan(ops, (4,), sweeps)
