"""Private names of other packages stand in a few modules, each behind a function of its own.

A new version of such a package changes these names without a word. Here they are few, and each of them is tested:
so a run of the tests with the oldest and with the newest version tells whether it still does what is relied on.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_gpuperf"
ENUMS = ("_value_",)  # which enum documents for those who write a __new__
ALLOWED = {
    "features/adopted/deepspeed_internals.py",
    "features/adopted/torch_testing_internals.py",
    "features/mutating/c10d_internals.py",
    "features/cluster/ray_internals.py",
    "features/parity/dispatch_internals.py",
    "parser_internals.py",
    "ranks/accelerate_internals.py",
    "ranks/cloudpickle_internals.py",
    "ranks/cython_internals.py",
    "ranks/multiprocessing_internals.py",
    "ranks/os_internals.py",
    "torch_internals.py",
    "run/hypothesis_internals.py",
    "run/mock_internals.py",
    "run/pytest_internals.py",
}
# What Python's own library has under such names, found by getattr(), changes with Python alone.
PYTHONS = {"_target"}
OTHERS = ("_pytest", "hypothesis.internal")


_OUR_FIELDS = {"_control", "_meshes", "_place"}
"""Fields of a dataclass of ours that another module of ours sets."""


def private_names(source: str) -> list[tuple[int, str]]:
    """Lines and names, as far as they can be told apart from a module's own without running it."""
    tree = ast.parse(source)
    own, pythons = _own(tree), _pythons_modules(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found += [(node.lineno, name) for name in _imported(node) if _is_foreign(name) and _is_private(name)]
        elif isinstance(node, ast.Attribute) and _is_hidden(node.attr) and node.attr not in own:
            of = node.value
            if not (isinstance(of, ast.Name) and of.id in {"self", "cls", *pythons}):
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.keyword) and _is_hidden(node.arg or "") and node.arg not in own | _OUR_FIELDS:
            found.append((node.value.lineno, str(node.arg)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if re.fullmatch(r"[\w.]+", text) and _is_private(text) and text not in own | PYTHONS:
                found.append((node.lineno, text))
    return sorted(found)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names]


def _is_foreign(name: str) -> bool:
    package = name.partition(".")[0]
    return package not in sys.stdlib_module_names and package != PACKAGE.name


def _is_private(name: str) -> bool:
    return name.startswith(OTHERS) or any(map(_is_hidden, name.split(".")))


def _is_hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_", *ENUMS)


def _own(tree: ast.Module) -> set[str]:
    """Names that the module defines: of functions, classes, variables, and attributes that it sets on ``self``."""
    return set(_defined(tree))


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id == "self":
                yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def _pythons_modules(tree: ast.Module) -> set[str]:
    names = (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)
    return {alias.asname or alias.name for alias in names if not _is_foreign(alias.name)} - {PACKAGE.name}


MODULES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]


def test_private_names_of_other_packages_stand_in_modules_of_their_own() -> None:
    assert set(MODULES) > ALLOWED
    found = {
        module: names
        for module in MODULES
        if module not in ALLOWED and (names := private_names((PACKAGE / module).read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from _pytest.runner import runtestprotocol", "_pytest.runner.runtestprotocol"),
        ("from torch._C import _distributed_c10d", "torch._C._distributed_c10d"),
        ("from torch.utils._pytree import tree_flatten", "torch.utils._pytree.tree_flatten"),
        ("import torch._dynamo", "torch._dynamo"),
        ("from hypothesis.internal import scrutineer", "hypothesis.internal.scrutineer"),
        ("item._fixtureinfo", "_fixtureinfo"),
        ("item.session._setupstate.teardown_exact(None)", "_setupstate"),
        ("raise pytest.skip.Exception('why', _use_item_location=True)", "_use_item_location"),
        ("getattr(item, '_fixtureinfo', None)", "_fixtureinfo"),
        ("FIND = '_find_imported_submodules'", "_find_imported_submodules"),
        ("module.startswith('_pytest.')", "_pytest."),
        ("sys.modules.get('hypothesis.internal.scrutineer')", "hypothesis.internal.scrutineer"),
        ("name.startswith('_global_')", "_global_"),
    ],
)
def test_a_private_name_is_found(source: str, name: str) -> None:
    assert private_names(source) == [(1, name)]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(1)",
        "import _thread",
        "from pytest_gpuperf.run import _here",
        "class A:\n    def _f(self): return self._g\ndef f(a): return a._f()",
        "class A:\n    _kept: int = 0\ndef f(a): return a._kept",
        "def f(_kept): pass\nf(_kept=1)",
        "'''_pytest is named in a sentence.'''",
        "print(f'{__name__} {_}')",
        "member._value_ = 1",
    ],
)
def test_what_is_a_modules_own_or_pythons_is_none(source: str) -> None:
    assert private_names(source) == []
