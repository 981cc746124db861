"""Python processes that have torch from the start: they are forked from one that has imported it.

The tests start more than a hundred runs of pytest whose test files import torch, which takes longer than most of them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["torch"])


def run(
    module: Sequence[str], folder: Path, environ: Mapping[str, str], typed: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m`` with a module and its arguments, as ``subprocess.run`` does.

    Args:
        module: ``-m``, its name, and its arguments.
        folder: the working directory.
        environ: the whole environment.
        typed: what is typed at the terminal.
        timeout: seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    with tempfile.TemporaryDirectory() as told:
        files = [Path(told, name) for name in ("in", "out", "err")]
        files[0].write_text(typed)
        process = _FORKSERVER.Process(target=_main, args=(list(module[1:]), folder, dict(environ), files))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*module], timeout)
        code = process.exitcode
        process.close()
        return subprocess.CompletedProcess([*module], code, *(file.read_text() for file in files[1:]))


def _main(module: list[str], folder: Path, environ: dict[str, str], files: Sequence[Path]) -> None:
    for number, (file, flags) in enumerate(zip(files, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        opened = os.open(file, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    ours = environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*ours, *(path for path in sys.path if path not in ours)]
    sys.argv = module
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)
