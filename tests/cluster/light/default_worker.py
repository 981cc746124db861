"""Ray's program of this name, whose forkserver is forked from a process that has imported torch, if there is one."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

from tests.warm_python import noted


def _main() -> None:
    subprocess.Popen = noted()  # type: ignore[misc,assignment]
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    program = Path(found.origin).parent / "_private" / "workers" / "default_worker.py"
    sys.argv[0] = str(program)
    if not sys.flags.safe_path:
        sys.path[0] = str(program.parent)  # in place of this folder
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    _main()
