"""What installed plugins cost a pytest run that uses none of them: CPU time and modules of one trivial test.

    python benchmarks/import_cost.py [--rounds 9] [--check]

Each round runs the test without third-party plugins, then with one plugin after the other. A row has the median of the
CPU time (user and system, of the pytest process) beyond that of the run without, and the modules that the plugin's
package has loaded when the run ends. With --check the exit status is 1 if this plugin loads more than 60 modules of
its own, or costs more than 0.1 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLUGINS = {
    "pytest_gpuperf": "pytest_gpuperf.plugin",
    "xdist": "xdist.plugin",
    "pytest_benchmark": "pytest_benchmark.plugin",
}
"""The module with the hooks, by package."""
MOST_MODULES, MOST_SECONDS = 60, 0.1
PROGRAM = """
import resource, sys, pytest
status = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]])
used = resource.getrusage(resource.RUSAGE_SELF)
modules = sum(name.split(".")[0] == sys.argv[1] for name in sys.modules)
print("\\n", int(status), used.ru_utime + used.ru_stime, modules)
"""


def run(folder: Path, package: str, *arguments: str) -> tuple[float, int]:
    """Returns the CPU seconds of a run of the trivial test, and how many modules of the package it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, package, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    status, seconds, modules = done.stdout.split()[-3:]
    if status != "0":
        sys.exit(f"pytest {' '.join(arguments)} ended with {status}:\n{done.stdout}")
    return float(seconds), int(modules)


def measure(rounds: int) -> dict[str, tuple[float, int]]:
    """Returns the median CPU seconds beyond a run without plugins, and the modules, of each package."""
    more: dict[str, list[float]] = {package: [] for package in PLUGINS}
    modules: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text("def test_it():\n    pass\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        for _ in range(rounds):
            without, _ = run(folder, "")
            for package, plugin in PLUGINS.items():
                seconds, modules[package] = run(folder, package, "-p", plugin)
                more[package].append(seconds - without)
    return {package: (statistics.median(seconds), modules[package]) for package, seconds in more.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if it was to be checked and this plugin costs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="default 9")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    costs = measure(options.rounds)
    print(f"{'plugin':<20}{'CPU seconds more':>18}{'modules':>10}")
    for package, (seconds, modules) in costs.items():
        print(f"{package:<20}{seconds:>18.3f}{modules:>10}")
    seconds, modules = costs["pytest_gpuperf"]
    return int(options.check and (modules > MOST_MODULES or seconds > MOST_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
