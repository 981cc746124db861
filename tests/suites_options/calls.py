"""Which library callables a suite names and which options it hands them, read from the suite's source.

A keyword counts for a callable if a call of it holds the keyword, or a positional argument in its place, with another
value than the default, as far as the source shows it. Programs also hand options on: they call with ``**options``, or
keep the callable in a variable. Then keywords of all calls of their own functions, and string keys of dictionaries,
count in that subject.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.suites_options.parts import Part, defaults, found, parameters

LIBRARIES = ("functools", "torch")
MADE_BY = {"suites.shared.training.zero_redundancy": "torch.distributed.optim.ZeroRedundancyOptimizer"}
"""Functions of the suites that return a class of a library."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the source of one suite names and calls."""

    named: dict[int, set[str]] = field(default_factory=dict)
    """Options of each library callable that the subject names, by the callable's ``id``."""
    handed_on: set[int] = field(default_factory=set)
    """The ``id`` of each callable that gets options from elsewhere."""
    loose: set[str] = field(default_factory=set)
    """Keywords of calls of the suite's own functions, and keys of its dictionaries."""
    methods: dict[str, dict[str, list[ast.expr]]] = field(default_factory=dict)
    """Values by keyword in the calls of each name behind a dot; ``#1`` is the first positional argument."""
    attributes: set[str] = field(default_factory=set)
    """All names behind a dot: methods, and operators such as ``torch.ops.symm_mem.one_shot_all_reduce``."""

    texts: set[str] = field(default_factory=set)
    """Strings that are identifiers: operators are looked up by them too."""

    def options(self, part: Part) -> set[str] | None:
        """Options that the subject gives to a part; None if it does not use the part."""
        if part.attribute:
            return self._of_attribute(part)
        given = self.named.get(id(part.target))
        if given is None:
            return None
        return given | self.loose if id(part.target) in self.handed_on else given

    def _of_attribute(self, part: Part) -> set[str] | None:
        used = self.attributes | self.texts if part.target is None else self.attributes
        if part.attribute not in used or (part.owner is not None and id(part.owner) not in self.named):
            return None
        places = [place for place in parameters(part.target) if place not in ("self", "cls")]
        names = {f"#{number}": place for number, place in enumerate(places, 1)}
        return {
            names.get(keyword, keyword)
            for keyword, values in self.methods.get(part.attribute, {}).items()
            if not all(_is_default(value, names.get(keyword, keyword), part.target) for value in values)
        }


def subjects(suites: Path) -> dict[str, Subject]:
    """All suites by name; what they share counts as one more."""
    return {
        folder.name: _read(sorted(folder.rglob("*.py")))
        for folder in sorted(suites.iterdir())
        if (folder / "__init__.py").is_file()
    }


def read_source(source: str) -> Subject:
    """What one module's source names and calls."""
    subject = Subject()
    _add(ast.parse(source), subject)
    return subject


def _read(files: Iterable[Path]) -> Subject:
    subject = Subject()
    for file in files:
        _add(ast.parse(file.read_text(encoding="utf-8")), subject)
    return subject


def _add(tree: ast.Module, subject: Subject) -> None:
    imports = dict(_imports(tree))
    for name in imports.values():
        if name.partition(".")[0] in LIBRARIES:
            subject.named.setdefault(id(found(name)), set())
    called: set[int] = set()  # names that are called where they stand
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            _add_call(node, imports, subject)
        elif isinstance(node, ast.Dict):
            subject.loose.update(
                key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )
        elif isinstance(node, ast.Attribute):
            subject.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            subject.texts.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (target := _target(node, imports)) is not None:
            subject.named.setdefault(id(target), set())
            if id(node) not in called:
                subject.handed_on.add(id(target))


def _add_call(node: ast.Call, imports: dict[str, str], subject: Subject) -> None:
    func, arguments = node.func, node.args
    target = _target(func, imports)
    if target is functools.partial and arguments:
        func, arguments = arguments[0], arguments[1:]
        target = _target(func, imports)
    keywords = {
        keyword.arg
        for keyword in node.keywords
        if keyword.arg is not None and not _is_default(keyword.value, keyword.arg, target)
    }
    if isinstance(func, ast.Attribute):
        values = [(f"#{number}", value) for number, value in enumerate(arguments, 1)]
        values += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None]
        for name, value in values:
            subject.methods.setdefault(func.attr, {}).setdefault(name, []).append(value)
    if target is None or not callable(target):
        subject.loose.update(keywords)
        return
    places = parameters(target)
    plain = [argument for argument in arguments if not isinstance(argument, ast.Starred)]
    placed = {place for place, value in zip(places, plain, strict=False) if not _is_default(value, place, target)}
    subject.named.setdefault(id(target), set()).update(keywords, placed)
    if any(keyword.arg is None for keyword in node.keywords) or len(plain) < len(arguments):
        subject.handed_on.add(id(target))


def _is_default(value: ast.expr, name: str, target: Any) -> bool:
    """Whether a value in a call is plainly what the callable has if the argument is left out."""
    default = defaults(target).get(name, inspect.Parameter.empty)
    if isinstance(value, ast.Constant):
        return type(value.value) is type(default) and bool(value.value == default)
    return isinstance(value, ast.Attribute) and value.attr == getattr(default, "name", None)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local names and what they stand for, of all imports, inside of functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield alias.asname or root, alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _target(node: ast.expr, imports: dict[str, str]) -> Any:
    """The library object that an expression names; None if it names none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = MADE_BY.get(imports.get(node.func.id, ""))
        return None if made is None else found(made)
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or imports.get(node.id, "").partition(".")[0] not in LIBRARIES:
        return None
    return found(".".join([imports[node.id], *reversed(names)]))
