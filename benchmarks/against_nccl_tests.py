"""Collectives as the plugin measures them, beside nccl-tests on the same GPUs and the same NCCL library in one run.

    python benchmarks/against_nccl_tests.py --nccl-tests DIR [--build] [--gpus N] [--ranks 2 4 8] [--quick] [--check]

DIR holds the sources of https://github.com/NVIDIA/nccl-tests, built; --build has make do so, against torch's NCCL.

Latency, 1 KiB to 1 MiB: CUDA graphs of 50 operations in both arms (-G and cuda_graph=True), without NCCL's provisions
for eager operations beside a graph; the target is a difference of at most 5 %. Bus bandwidth, 64 MiB to 1 GiB:
operations in a row; at most 1 %.
Both arms time bfloat16 sums and report the slowest rank; nccl-tests' in-place column stands for all_reduce and its
out-of-place column for the others, as the programs of suites/collectives work. The arms take turns, and the medians of
their turns are compared; the spread is the range of the turns over their median. Exit status 2 if nothing could be
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.nccl_tests import binaries, by_plugin
from benchmarks.nccl_tests.comparison import Row, Verdict, rows, summary, table
from benchmarks.nccl_tests.plan import OPERATIONS, SHARED_DEFAULTS, SWEEPS, ArmError, Plan, Turn
from pytest_gpuperf.hardware.device import Gpu, HardwareError
from pytest_gpuperf.hardware.machine import find_devices


def take_turns(turns: int, theirs: Callable[[], Turn], ours: Callable[[], Turn]) -> tuple[list[Turn], list[Turn]]:
    """Both arms once in each turn, each time the other one first.

    Raises:
        ArmError: An arm failed, or the two loaded different NCCL libraries.
    """
    arms = {"nccl-tests": theirs, "the plugin": ours}
    taken: dict[str, list[Turn]] = {name: [] for name in arms}
    for number in range(turns):
        for name in list(arms) if number % 2 == 0 else list(reversed(arms)):
            began = time.monotonic()
            taken[name].append(arms[name]())
            said = f"turn {number + 1} of {turns}: {name} took {time.monotonic() - began:.0f} s"
            print(said, file=sys.stderr, flush=True)
        one, other = (taken[name][-1].nccl for name in arms)
        if one != other:
            raise ArmError(
                f"the arms loaded different NCCL libraries, nccl-tests {one} and the plugin {other}, so their metrics "
                "cannot be compared: build nccl-tests with --build, and without a run path (rpath) to another NCCL"
            )
    return taken["nccl-tests"], taken["the plugin"]


def where(gpus: Sequence[Gpu], theirs: Turn, ours: Turn, turns: int) -> str:
    """What the figures are of."""
    defaults = (f"{name}={binaries.DEFAULTS[name]}" for name in ("NCCL_P2P_DIRECT_DISABLE", "NCCL_GRAPH_REGISTER"))
    both = {**SHARED_DEFAULTS, **os.environ}
    environ = [f"{name}={value}" for name, value in sorted(both.items()) if name.startswith("NCCL_")]
    kept = [text for text in defaults if text.partition("=")[0] not in os.environ]
    driver = find_devices().driver_version()
    return (
        f"{len(gpus)} x {gpus[0].name}, driver {driver}, torch {version('torch')}, {ours.tool}, "
        f"{theirs.tool}, NCCL {theirs.nccl} in both, medians of {turns} turns\n"
        f"both with {' '.join(environ)}; nccl-tests also with {' '.join(kept) or 'nothing else'}"
    )


def write(file: Path, header: str, found: Sequence[Row]) -> None:
    """Keeps every turn's figures, in SI units."""
    told = [
        {
            "op": row.point.op,
            "ranks": row.point.ranks,
            "nbytes": row.point.nbytes,
            "quantity": row.sweep.quantity,
            "nccl_tests": row.theirs,
            "plugin": row.ours,
            "difference": row.difference,
            "tolerance": row.sweep.tolerance,
            "verdict": row.verdict.name.lower(),
            "unfit": row.unfit,
        }
        for row in found
    ]
    file.write_text(json.dumps({"where": header.splitlines(), "rows": told}, indent=1) + "\n")


def parsed(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser, for its errors, and the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-tests", type=Path, required=True, metavar="DIR", help="nccl-tests' sources, built")
    parser.add_argument("--build", action="store_true", help="build them first, for the GPUs that are found")
    parser.add_argument("--gpus", type=int, help="GPUs to use; all that are visible if not given")
    parser.add_argument("--ranks", type=int, nargs="+", help="world sizes; the largest that fits if not given")
    parser.add_argument("--ops", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--turns", type=int, default=3, help="of each arm (default 3)")
    parser.add_argument("--quick", action="store_true", help="only the smallest and the largest size of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a row misses its target")
    return parser, parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a row misses its target and that was to be checked."""
    parser, options = parsed(argv)
    if options.turns < 1:
        parser.error(f"--turns must be 1 or more, got {options.turns}")
    for ranks in options.ranks or ():
        # Sizes are powers of two, and are shared out evenly.
        if ranks < 2 or ranks & (ranks - 1):
            parser.error(f"--ranks takes powers of two from 2 on, got {ranks}: other numbers do not divide the sizes")
    folder: Path = options.nccl_tests.resolve()
    nccl = binaries.torchs_nccl()
    try:
        if not options.build:
            tests = binaries.NcclTests.found(folder, os.environ, nccl)
        gpus = find_devices().visible(os.environ)
        wanted = max([options.gpus or 0, *(options.ranks or [2])])
        if wanted > len(gpus):
            parser.error(f"{wanted} ranks were asked for, each on a GPU of its own, and {len(gpus)} GPUs are visible")
        gpus = gpus[: options.gpus]
        if max(options.ranks or [2]) > len(gpus):
            parser.error(f"--ranks {max(options.ranks or [2])} does not fit on --gpus {options.gpus}")
        if options.build:
            binaries.build(folder, nccl, gpus[0].compute_capability)
            tests = binaries.NcclTests.found(folder, os.environ, nccl)
        return compared(options, tests, gpus)
    except (ArmError, HardwareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def compared(options: argparse.Namespace, tests: binaries.NcclTests, gpus: Sequence[Gpu]) -> int:
    """Lets the arms take their turns, and prints what comes of it; the exit status."""
    ranks = tuple(options.ranks or [1 << (len(gpus).bit_length() - 1)])
    sweeps = tuple(sweep.ends for sweep in SWEEPS) if options.quick else SWEEPS
    plan = Plan(tuple(options.ops), ranks, sweeps)
    theirs, ours = take_turns(
        options.turns, lambda: tests.turn(plan), lambda: by_plugin.turn(plan, f"--gpus={len(gpus)}")
    )
    found = rows(plan, theirs, ours)
    header = where(gpus, theirs[0], ours[0], options.turns)
    print(header, *table(found), summary(found), sep="\n")
    if options.json is not None:
        write(options.json, header, found)
    return int(options.check and any(row.verdict is not Verdict.MET for row in found))


if __name__ == "__main__":
    sys.exit(main())
