"""Which lines of torch's Python code no test of the suites runs: options and inputs in which a fault would go unseen.

    python benchmarks/torch_coverage.py MODULE ... [--tests PATH ...]

Runs tests with coverage.py (https://coverage.readthedocs.io, not installed with this package) in every process, and
prints for each module the functions that no test enters, and the lines of others that no test runs. Lines that only
raise, assert or warn are left out. Threads that torch's C++ code starts are not traced, such as those in which gloo
calls functions that were given to ``Future.then``. A run takes about three times as long as without.

Example: ``python benchmarks/torch_coverage.py torch.distributed.checkpoint.filesystem --tests suites/checkpoint``.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
OUT, FILES = "TORCH_COVERAGE_OUT", "TORCH_COVERAGE_FILES"
SILENT = ("warn", "log", "debug")
"""What names of functions hold whose calls change nothing that a test sees."""

STARTED = f'''
import _thread, os, sys, time
import coverage

measured = coverage.Coverage(
    data_file=None, config_file=False, concurrency="thread", include=os.environ["{FILES}"].split(os.pathsep)
)
told = set()


def tell(pid):
    """Writes each line when it has been run: ranks may end at any moment, without a word."""
    file = os.open(os.path.join(os.environ["{OUT}"], str(pid)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        time.sleep(0.4)
        try:
            new = {{(name, line) for name, lines in measured._collector.data.items() for line in lines}} - told
        except RuntimeError:  # a line came meanwhile
            continue
        told.update(new)
        os.write(file, "".join(f"{{line}} {{name}}\\n" for name, line in new).encode())


def begin():
    _thread.start_new_thread(tell, (os.getpid(),))


os.register_at_fork(after_in_child=begin)
measured.start()
begin()
'''
"""Runs in each process when Python starts, as ``sitecustomize``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tests, prints what is missing, and returns pytest's exit status."""
    parser = argparse.ArgumentParser(description="lines of torch that no test of the suites runs")
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="a module of torch, by its dotted name")
    parser.add_argument("--tests", nargs="+", default=["suites"], help="what pytest runs (default: suites)")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("coverage") is None:
        parser.error("coverage is not installed: pip install coverage")
    sources = {module: _source_of(module) for module in given.modules}
    if missing := sorted(module for module, source in sources.items() if source is None):
        parser.error(f"{missing[0]} is no module with Python source: name one as torch.optim.adam")
    with tempfile.TemporaryDirectory(prefix="torch-coverage-") as folder:
        lines = Path(folder, "lines")
        lines.mkdir()
        Path(folder, "sitecustomize.py").write_text(STARTED, encoding="utf-8")
        files = os.pathsep.join(str(source) for source in sources.values())
        path = os.pathsep.join([folder, str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environ = {**os.environ, OUT: str(lines), FILES: files, "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-m", "not perf", "-p", "no:cacheprovider", "-q", *given.tests]
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
        ran = _ran(lines)
    for module, source in sources.items():
        assert source is not None
        print("\n".join(report(module, source.read_text(encoding="utf-8"), ran[str(source)])))
    return done.returncode


def report(name: str, source: str, ran: set[int]) -> Iterator[str]:
    """A line for the module, one for each function that was not entered, and lines that were not run in the others.

    Args:
        name: of the module.
        source: its text.
        ran: numbers of the lines that were run.
    """
    silent = _silent(ast.parse(source))
    text = source.splitlines()
    functions = [(code.co_qualname, _lines(code) - silent) for code in _codes(compile(source, name, "exec"))]
    functions = [(function, lines) for function, lines in functions if lines]
    numbers = {number for _, lines in functions for number in lines}
    yield f"{name}: {len(numbers & ran)} of {len(numbers)} lines"
    for function, lines in functions:
        if not lines & ran:
            yield f"  {function}: not entered"
        elif left := sorted(lines - ran):
            yield f"  {function}: {len(left)} of {len(lines)} lines not run"
            yield from (f"    {number}: {text[number - 1].strip()}" for number in left)


def _source_of(module: str) -> Path | None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin) if found is not None and (found.origin or "").endswith(".py") else None  # type: ignore[arg-type]


def _ran(folder: Path) -> defaultdict[str, set[int]]:
    ran: defaultdict[str, set[int]] = defaultdict(set)
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            number, _, name = line.partition(" ")
            ran[name].add(int(number))
    return ran


def _codes(code: CodeType) -> Iterator[CodeType]:
    """All functions within, in order; comprehensions and lambdas count with the lines around them."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if not inner.co_name.startswith("<"):
                yield inner
            yield from _codes(inner)


def _lines(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}


def _silent(tree: ast.Module) -> set[int]:
    """Lines of docstrings, of errors and of what is only told."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        said = isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant)
            or (isinstance(node.value, ast.Call) and any(word in ast.unparse(node.value.func) for word in SILENT))
        )
        if said or isinstance(node, ast.Raise | ast.Assert):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return lines


if __name__ == "__main__":
    sys.exit(main())
