"""What 500 tests on one pool leave behind, in pytest's process, in the forkserver and in each rank.

    python benchmarks/leak_curves.py [--tests 500] [--ranks N] [--gpus N] [--json FILE]

A real pytest run of ``leak_module.py``. Every 50 tests it counts open file descriptors and threads, resident
(RSS) and proportional (PSS) memory, process groups that torch knows, keys in the ranks' store, and the
memory in use on each rank's GPU; of ranks also what malloc has given out, and what is resident outside the
heap. A count must be at the end what it was after 100 tests; memory may have grown by 5 MiB, and a GPU's may
differ by 2 MiB. Exit status 1 if anything is not flat. Of a rank that grew, the mappings of its memory that did
are listed.

Where malloc tells what it has given out (glibc 2.33), RSS and PSS of a rank with a GPU are shown and not judged. A
communicator of NCCL 2.28 has 31 MiB of zeroed memory for the machine's topology (ncclTopoSystem, src/graph/topo.h: 6
kinds of 576 nodes of 576 links), nearly all of which nobody looks at. Where malloc takes it from memory that was used
before, it writes the zeros and all is resident; else none is. As communicators come and go, RSS goes up and down by
that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.pytest_command import pytest_command

EVERY = 50  # tests between two samples
SETTLED = 100  # tests after which nothing may grow any more
MIB = 2**20

MODULE = Path(__file__).with_name("leak_module.py")


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a quantity may be, at the end, from what it was once settled."""

    above: int = 0
    below: int | None = 0
    """None where a decrease is welcome."""
    unit: int = 1

    def holds(self, change: int) -> bool:
        """Whether the change is within the bound."""
        return change <= self.above and (self.below is None or -change <= self.below)


MEMORY = Bound(above=5 * MIB, below=None, unit=MIB)
BOUNDS = {
    "fds": Bound(),
    "threads": Bound(),
    "groups": Bound(),
    "keys": Bound(),
    "rss": MEMORY,
    "pss": MEMORY,
    "malloc": MEMORY,
    "rest": MEMORY,
    "gpu": Bound(above=2 * MIB, below=2 * MIB, unit=MIB),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity of one process over the tests."""

    process: str
    quantity: str
    tests: tuple[int, ...]
    values: tuple[int, ...]
    judged: bool = True

    @property
    def change(self) -> int:
        """What came on top after the settled sample."""
        settled = next(value for tests, value in zip(self.tests, self.values, strict=True) if tests >= SETTLED)
        return self.values[-1] - settled

    @property
    def flat(self) -> bool:
        """Whether the change is within the quantity's bound, or needs not be."""
        return not self.judged or BOUNDS[self.quantity].holds(self.change)


def sampled(tests: int, ranks: int, gpus: int) -> list[str]:
    """Runs the tests and returns the samples, one JSON object a line.

    Raises:
        RuntimeError: a test failed; has pytest's output.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(MODULE, folder / "test_leaks.py")
        (folder / "pytest.ini").write_text("[pytest]\n")
        file = folder / "samples.jsonl"
        run = subprocess.run(
            pytest_command("-x", "-p", "no:cacheprovider", f"--gpus={gpus}", "test_leaks.py"),
            cwd=folder,
            env={
                **os.environ,
                "LEAK_TESTS": str(tests),
                "LEAK_RANKS": str(ranks),
                "LEAK_EVERY": str(EVERY),
                "LEAK_FILE": str(file),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if run.returncode:
            raise RuntimeError(f"the run that was to be sampled failed:\n{run.stdout}")
        return file.read_text().splitlines()


def curves(lines: Sequence[str]) -> list[Curve]:
    """The samples by process and quantity."""
    samples = [json.loads(line) for line in lines]
    tests = tuple(sample["tests"] for sample in samples)
    return [
        Curve(
            process,
            quantity,
            tests,
            tuple(sample["held"][process][quantity] for sample in samples),
            judged=quantity not in ("rss", "pss") or not {"gpu", "malloc"} <= held.keys(),
        )
        for process, held in samples[0]["held"].items()
        for quantity in held
    ]


def table(found: Sequence[Curve]) -> str:
    """The curves as text, a row each."""
    lines = [f"{'tests':<23}" + "".join(f"{tests:>8}" for tests in found[0].tests) + f"{'change':>9}"]
    for curve in found:
        unit = BOUNDS[curve.quantity].unit
        digits = 0 if unit == 1 else 1
        name = f"{curve.process} {curve.quantity}" + ("" if unit == 1 else " MiB")
        values = "".join(f"{value / unit:>8.{digits}f}" for value in curve.values)
        said = ("flat" if curve.flat else "NOT FLAT") if curve.judged else "not judged"
        lines.append(f"{name:<23}{values}{curve.change / unit:>+9.{digits}f}  {said}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a process's memory, as the kernel's smaps has it; sizes in bytes."""

    begin: int
    end: int
    file: str
    """Empty of anonymous memory."""
    resident: int


def growth(before: Sequence[Mapping], after: Sequence[Mapping]) -> list[tuple[int, Mapping]]:
    """The mappings with a quarter of a MiB more than was resident there before, and how much more; the most first."""
    grown = [
        (now.resident - sum(was.resident for was in before if was.begin < now.end and now.begin < was.end), now)
        for now in after
    ]
    return sorted(((more, now) for more, now in grown if more >= MIB // 4), key=lambda pair: -pair[0])


def grown_ranks(found: Sequence[Curve]) -> list[str]:
    """The ranks that have more memory than they had, each once."""
    grown = (curve.process for curve in found if curve.quantity in ("rss", "malloc", "rest") and not curve.flat)
    return [process for process in dict.fromkeys(grown) if process.startswith("rank")]


def where_it_grew(lines: Sequence[str], process: str) -> str:
    """Each mapping of a rank that has grown since it had settled, as text, a line each."""
    samples = [json.loads(line) for line in lines]
    settled = next(sample for sample in samples if sample["tests"] >= SETTLED)
    before, after = (
        [Mapping(*mapping) for mapping in sample["mappings"][process]] for sample in (settled, samples[-1])
    )
    return "\n".join(
        f"{process}: {more / MIB:.1f} MiB more in {now.begin:x}-{now.end:x} ({now.file or 'anonymous'}, "
        f"{(now.end - now.begin) / MIB:.1f} MiB)"
        for more, now in growth(before, after)
    )


def number_of_tests(text: str) -> int:
    """A number of tests that ends with a sample and has one more after it has settled."""
    tests = int(text)
    if tests <= SETTLED or tests % EVERY:
        raise argparse.ArgumentTypeError(f"must be a multiple of {EVERY} above {SETTLED}, got {tests}")
    return tests


def main() -> int:
    """Prints the table; 1 if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=number_of_tests, default=500)
    parser.add_argument("--ranks", type=int, help="world size; 2 if not given, or as many as --gpus")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ranks = options.ranks or options.gpus or 2
    lines = sampled(options.tests, ranks, options.gpus)
    found = curves(lines)
    print(f"{options.tests} tests on one pool of {ranks} ranks, {'nccl' if options.gpus else 'gloo'}")
    print(table(found))
    growing = [f"{curve.process} {curve.quantity}" for curve in found if not curve.flat]
    print(f"not flat: {', '.join(growing)}" if growing else "all flat")
    for process in grown_ranks(found):
        print(where_it_grew(lines, process) or f"{process}: no mapping of it grew by much")
    if options.json is not None:
        options.json.write_text(json.dumps([{**asdict(curve), "flat": curve.flat} for curve in found], indent=1) + "\n")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
