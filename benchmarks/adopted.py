"""Runs tests of another harness on that harness and on our ranks, and compares outcomes and times.

    python benchmarks/adopted.py                       # the tests that the installed torch wheel brings, on gloo
    python benchmarks/adopted.py --ranks 2 -k reduce   # some of them, on 2 ranks
    python benchmarks/adopted.py path/to/test_file.py  # a file of yours instead, unchanged

Both runs are of pytest with the same file and the same options, one after the other; the second has
``--adopt-classes``. Nothing in the file knows of this plugin.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

# Binds the tests that are in the wheel to a class that pytest finds, as torch's own repository does.
WHEEL = """
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the tests."""

    outcomes: Mapping[str, str]
    """By test."""
    seconds: float
    """Time of the whole process, its imports included."""
    seconds_of_tests: Mapping[str, float]


def main(arguments: Sequence[str]) -> int:
    """Runs both and prints the comparison; 1 if a test that passes there does not pass here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="test files (default: the tests of the torch wheel)")
    parser.add_argument("--ranks", type=int, default=4, help="WORLD_SIZE for the wheel's tests (default 4)")
    parser.add_argument("--backend", default="gloo", help="BACKEND for the wheel's tests (default gloo)")
    parser.add_argument("--gpus", default="0", help="as pytest takes it")
    parser.add_argument("-k", default="", help="as pytest takes it")
    chosen = parser.parse_args(arguments)
    environ = {"BACKEND": chosen.backend, "WORLD_SIZE": str(chosen.ranks)}
    with tempfile.TemporaryDirectory() as folder:
        files = [file.resolve() for file in chosen.files]
        if not files:
            files = [Path(folder) / "test_wheel.py"]
            files[0].write_text(WHEEL)
        options = ["--gpus", chosen.gpus, *(["-k", chosen.k] if chosen.k else [])]
        here = run(files, Path(folder), [*options, "--adopt-classes"], environ)
        there = run(files, Path(folder), options, environ)
    print("\n".join(compared(there, here)))
    return 1 if lost(there, here) else 0


def run(files: Sequence[Path], folder: Path, options: Sequence[str], environ: Mapping[str, str]) -> Run:
    """Runs pytest on the files."""
    report = folder / "report.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
        *("--import-mode=prepend", f"--rootdir={files[0].parent}", f"--junitxml={report}"),
        *options,
        *map(str, files),
    ]
    report.unlink(missing_ok=True)  # the other run's, which must not be taken for this one's
    meeting = folder / "meeting"  # the one test that opens its group by INIT_METHOD expects no file there
    meeting.unlink(missing_ok=True)
    environ = {**environ, "INIT_METHOD": f"file://{meeting}"}
    print("running", " ".join(options), file=sys.stderr, flush=True)
    start = time.monotonic()
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if not report.exists():
        raise SystemExit(f"pytest wrote no report; it printed:\n{done.stdout}\n{done.stderr}")
    return read(ElementTree.parse(report), seconds)


def read(report: ElementTree.ElementTree[ElementTree.Element], seconds: float) -> Run:
    """The outcomes and times of pytest's JUnit report."""
    outcomes, times = {}, {}
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcomes[name] = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        times[name] = float(case.get("time", 0))
    return Run(outcomes, seconds, times)


def lost(there: Run, here: Run) -> list[str]:
    """The tests that pass on their own harness and not here."""
    return [name for name, outcome in there.outcomes.items() if outcome == "passed" != here.outcomes.get(name)]


def compared(there: Run, here: Run) -> list[str]:
    """The table, the differences, and the ratios of times."""
    kinds = ("passed", "skipped", "failure", "error")
    counts = {title: Counter(one.outcomes.values()) for title, one in (("own harness", there), ("here", here))}
    lines = [f"{'':14}" + "".join(f"{kind:>9}" for kind in kinds) + f"{'seconds':>10}"]
    for title, one in (("own harness", there), ("here", here)):
        cells = "".join(f"{counts[title][kind]:>9}" for kind in kinds)
        lines.append(f"{title:14}{cells}{one.seconds:>10.1f}")
    names = list({**there.outcomes, **here.outcomes})
    different = [name for name in names if there.outcomes.get(name) != here.outcomes.get(name)]
    lines += [f"  {there.outcomes.get(name)} there, {here.outcomes.get(name)} here: {name}" for name in different]
    lines.append(f"tests that pass there and not here: {len(lost(there, here))}")
    lines.append(f"whole runs: {there.seconds / here.seconds:.1f}x faster here")
    both = [name for name, outcome in there.outcomes.items() if outcome == "passed" == here.outcomes.get(name)]
    of_tests = [sum(one.seconds_of_tests[name] for name in both) for one in (there, here)]
    if both and of_tests[1]:
        mean = [1000 * seconds / len(both) for seconds in of_tests]
        lines.append(
            f"the {len(both)} tests that pass in both: {mean[0]:.0f} ms there, {mean[1]:.0f} ms here on average, "
            f"{of_tests[0] / of_tests[1]:.1f}x faster"
        )
    return [re.sub(r"\s+$", "", line) for line in lines]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
