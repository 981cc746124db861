"""Calls of ``torch.distributed`` in source files, so that those which no program makes can be listed.

What torch sends by itself, such as the gradients of DDP, is in no source of the user and cannot be listed.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest_gpuperf
from pytest_gpuperf.features.mutating.faults import Site

_PACKAGE = "torch.distributed"
_COMMUNICATES = re.compile(
    r"(all_gather|all_reduce|all_to_all|broadcast|i?recv|i?send|gather|reduce|reduce_scatter|scatter)"
    r"(_coalesced|_into_tensor|_object|_object_list|_single|_tensor)?(_autograd)?|batch_isend_irecv|permute_tensor"
)


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One call in the source."""

    file: str
    """Absolute path."""
    line: int
    end: int
    """Its last line."""
    operation: str


def list_user_files(modules: Iterable[ModuleType], root: Path) -> list[Path]:
    """The files of loaded modules below the root that are not installed packages."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    installed.append(Path(pytest_gpuperf.__file__).parent)
    found = set()
    for module in modules:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file)
        if path.is_relative_to(root) and not any(path.is_relative_to(folder) for folder in installed):
            found.add(path)
    return sorted(found)


def is_made(call: Call, sites: Iterable[Site]) -> bool:
    """Whether one of the sites is a line of the call."""
    return any(site.file == call.file and call.line <= site.line <= call.end for site in sites)


def iterate_calls(file: Path) -> Iterator[Call]:
    """The calls in one file that communicate; none if it cannot be read as Python."""
    try:
        text = file.read_text("utf-8")
        tree = ast.parse(text) if _PACKAGE.rpartition(".")[2] in text else None
    except (OSError, ValueError, SyntaxError):
        return
    if tree is None:
        return
    nodes = list(ast.walk(tree))
    names = dict(_list_imports(nodes))
    for node in nodes:
        if isinstance(node, ast.Call):
            module, _, function = _qualify(node.func, names).rpartition(".")
            if _COMMUNICATES.fullmatch(function) and module.startswith(_PACKAGE):
                yield Call(str(file), node.lineno, node.end_lineno or node.lineno, function)


def _list_imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names that imports bind, with what they stand for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (first, first) if alias.asname is None else (alias.asname, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _qualify(node: ast.expr, names: Mapping[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_qualify(node.value, names)}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""
