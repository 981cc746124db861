"""How a Python process is started that has this very package, whatever else is named as it is on its path."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "__init__.py"
_LOAD = (
    "import sys; from importlib.util import module_from_spec, spec_from_file_location; "
    "spec = spec_from_file_location('pytest_gpuperf', sys.argv.pop(1)); "
    "sys.modules[spec.name] = package = module_from_spec(spec); spec.loader.exec_module(package); "
)
FIND_INSTALLED_FIRST = "import json; sys.path += [path for path in json.loads(sys.argv[1]) if path not in sys.path]; "
"""Adds a path, the command's first argument, behind what is installed.

A test folder may hold a module of the name of one that torch imports.
"""


def make_command(source: str, *args: str, python: str = sys.executable) -> list[str]:
    """The command that runs a line of Python; what it imports of this package is what this process has.

    Args:
        source: statements on one line.
        args: become ``sys.argv[1:]``.
        python: the interpreter.
    """
    # -P: not what lies in the working directory, whatever it is named.
    return [python, "-P", "-c", _LOAD + source, str(_PACKAGE), *args]
