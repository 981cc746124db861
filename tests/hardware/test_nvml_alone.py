"""A vendor's library is called by two modules: one for runs, one for the diagnosis of a machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_gpuperf

PACKAGE = Path(pytest_gpuperf.__file__).parent
OF_NVML = re.compile(r"pynvml\b|nvml[A-Z]|NVML_|NVMLError")


def names(tree: ast.AST) -> Iterator[str]:
    """Every name that code uses; not those in comments and texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported):
                yield from (alias.name for alias in imported)
            case ast.ImportFrom(module=str(module)):
                yield module
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def calls_nvml(source: str) -> bool:
    return any(OF_NVML.match(name) for name in names(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import pynvml",
        "from pynvml import nvmlInit",
        "nvml.nvmlInit()",
        "x = nvml.NVML_SUCCESS",
        "raise nvml.NVMLError",
    ],
)
def test_a_call_of_nvml_is_seen(source: str) -> None:
    assert calls_nvml(source)


def test_two_modules_call_nvml() -> None:
    found = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")) if calls_nvml(path.read_text())]
    assert found == [Path("hardware/nvml.py"), Path("hardware/nvml_inspection.py")]
