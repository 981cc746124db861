"""Accepts this machine with one fault after the other, and says which component each acceptance named first.

    python benchmarks/acceptance/faults.py [--only NAME ...] [--out FOLDER]

Needs GPUs, and the package installed. An acceptance with a fault runs the tests that see such faults alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENOUGH = "nothing_is_corrupted or under_load or tiers or cores or pcie_of_each or bus_bandwidth or test_step"
"""Tests that see these faults: others would be slow, too, and the GPUs are dear."""
MOST = 120.0  # seconds of one acceptance; then it is interrupted, and says what it has
BUSY_GPU = """
import torch
a = torch.randn(8192, 8192, device="cuda:1", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(64):
        a @ a
    torch.cuda.synchronize(1)
"""
BUSY_PCIE = """
import torch
side = torch.cuda.Stream("cuda:1")
up, down = (torch.empty(2**28, dtype=torch.uint8, device="cuda:1") for _ in range(2))
there, back = (torch.empty(2**28, dtype=torch.uint8, pin_memory=True) for _ in range(2))
print("ready", flush=True)
with torch.cuda.device(1):
    while True:
        for _ in range(8):
            up.copy_(there, non_blocking=True)
            with torch.cuda.stream(side):
                back.copy_(down, non_blocking=True)
        torch.cuda.synchronize()
"""
BUSY_CORE = "print('ready', flush=True)\nwhile True: pass"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    expected: str
    """The component that is to be named first."""
    environ: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    """Programs that run meanwhile."""
    cores: int | None = None
    """Cores that the acceptance may use; None for all."""


def faults() -> dict[str, Fault]:
    """Return all faults by name."""
    cores = len(os.sched_getaffinity(0))
    return {
        "none": Fault(""),
        "NCCL_P2P_DISABLE=1": Fault("collectives", {"NCCL_P2P_DISABLE": "1"}),
        "NCCL_MAX_NCHANNELS=4": Fault("collectives", {"NCCL_MAX_NCHANNELS": "4"}),
        "a process keeps GPU 1 busy": Fault("matrix units, power, clocks", beside=(BUSY_GPU,)),
        "a process fills PCIe of GPU 1": Fault("PCIe", beside=(BUSY_PCIE,)),
        "two cores": Fault("host", cores=2),
        "half of the cores are busy": Fault("host", beside=(BUSY_CORE,) * (cores // 2)),
        "products of rank 1 take 5 % longer": Fault("matrix units, power, clocks", {"GPUPERF_FAULT": "products"}),
        "a bit flips in 1 of 10^4 sums": Fault("numbers", {"GPUPERF_FAULT": "sums"}),
    }


@contextlib.contextmanager
def beside(programs: tuple[str, ...]) -> Iterator[None]:
    """Run programs until the end of the block; they have begun when it begins."""
    running = [subprocess.Popen([sys.executable, "-c", one], stdout=subprocess.PIPE) for one in programs]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == b"ready"
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def accepted(name: str, fault: Fault, out: Path) -> tuple[str, bool, float]:
    """Accept the machine with a fault; return the verdict's title, whether it is as expected, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "in_ranks.py", Path(folder, "sitecustomize.py"))
        environ = {**os.environ, **fault.environ, "PYTHONPATH": folder}
        environ["PYTEST_ADDOPTS"] = f"-k '{ENOUGH}'" if name != "none" else ""
        results = out / f"{name.replace(' ', '_').replace('^', '').replace('%', 'percent').replace('=', '_')}.json"
        command = [sys.executable, "-m", "pytest_gpuperf", "accept", "--quick", f"--gpuperf-json={results}"]
        few = set(sorted(os.sched_getaffinity(0))[: fault.cores])
        pinned: Callable[[], None] | None = None if fault.cores is None else lambda: os.sched_setaffinity(0, few)
        began = time.monotonic()
        with beside(fault.beside):
            process = subprocess.Popen(
                command, env=environ, cwd=folder, preexec_fn=pinned, stdout=subprocess.PIPE, text=True
            )
            try:
                printed, _ = process.communicate(timeout=MOST)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                printed, _ = process.communicate()
        seconds = time.monotonic() - began
    print(f"=== {name}: exit status {process.returncode}, {seconds:.0f} s", printed, sep="\n", flush=True)
    title = str(json.loads(results.read_text())["summary"]["title"])
    named = title.partition(": ")[2]
    return title, named.startswith(fault.expected) if fault.expected else not named, seconds


def main() -> None:
    """Try the faults, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of faults, or their beginnings")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the results")
    options = parser.parse_args()
    lines = []
    for name, fault in faults().items():
        if options.only and not any(name.startswith(one) for one in options.only):
            continue
        try:
            title, well, seconds = accepted(name, fault, options.out)
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            title, well, seconds = repr(error), False, 0.0
        lines.append(f"{'found' if well else 'MISSED':7} {name:36} {seconds:4.0f} s  {title}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
