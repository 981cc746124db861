"""Directives that write tables of the reference from the code, so that the two cannot differ.

``{gpuperf-options}`` and ``{gpuperf-ini}`` list what the plugin registers with pytest, ``{gpuperf-commands}`` the help
of each command, ``{gpuperf-outcomes}`` the table of verdicts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pytest_gpuperf import __main__ as command_line
from pytest_gpuperf.options import add_options
from pytest_gpuperf.verdicts.outcome import Effect, Outcome

COLUMNS = 100  # of a command's help
TESTS = {Effect.FAILS: "fails", Effect.SKIPS: "is skipped", Effect.PASSES: "passes"}


class Registered:
    """Stands in for pytest's parser, and keeps what the plugin registers."""

    def __init__(self) -> None:
        self.options: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self.keys: list[tuple[str, str, str]] = []
        add_options(self)  # type: ignore[arg-type]  # it needs these three methods alone

    def getgroup(self, *_: str) -> Registered:
        """Returns the group, which is this object too."""
        return self

    def addoption(self, *names: str, **settings: Any) -> None:
        """Keeps an option."""
        self.options.append((names, settings))

    def addini(self, name: str, text: str, *, default: str) -> None:
        """Keeps an ini key."""
        self.keys.append((name, text, default))


class Generated(SphinxDirective):
    """A directive without arguments whose nodes are made by ``entries``."""

    def run(self) -> list[nodes.Node]:
        """Returns the nodes."""
        return list(self.entries())

    def entries(self) -> Iterator[nodes.Node]:
        """Yields the nodes."""
        raise NotImplementedError

    def table(self, heads: list[str], rows: list[list[list[nodes.Node]]]) -> nodes.Node:
        """Returns a table; each cell is a list of inline nodes."""
        group = nodes.tgroup(cols=len(heads))
        group += [nodes.colspec(colwidth=1) for _ in heads]
        group += nodes.thead("", self.row([[nodes.Text(head)] for head in heads]))
        group += nodes.tbody("", *(self.row(row) for row in rows))
        return nodes.table("", group)

    @staticmethod
    def row(cells: list[list[nodes.Node]]) -> nodes.row:
        """Returns one row."""
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))

    def definition(self, term: list[nodes.Node], text: str) -> nodes.definition_list_item:
        """Returns a term with its explanation."""
        return nodes.definition_list_item(
            "", nodes.term("", "", *term), nodes.definition("", nodes.paragraph("", "", *self.inline(text)))
        )

    @staticmethod
    def inline(text: str) -> list[nodes.Node]:
        """Returns the text, with ``literals`` between single or double backquotes."""
        pieces = text.replace("``", "`").split("`")
        return [nodes.literal("", piece) if at % 2 else nodes.Text(piece) for at, piece in enumerate(pieces)]


class Options(Generated):
    """The options that the plugin registers with pytest."""

    def entries(self) -> Iterator[nodes.Node]:
        """Yields a list of options with their help."""
        found = nodes.definition_list()
        for names, settings in Registered().options:
            value = settings.get("metavar") or "|".join(settings.get("choices", ()))
            takes_one = settings.get("action") is None
            term: list[nodes.Node] = []
            for name in names:
                term += [nodes.Text(", ")] if term else []
                term.append(nodes.literal("", f"{name}={value}" if takes_one else name))
            found += self.definition(term, settings["help"])
        yield found


class IniKeys(Generated):
    """The ini keys that the plugin registers with pytest."""

    def entries(self) -> Iterator[nodes.Node]:
        """Yields a table."""
        yield self.table(
            ["key", "default", "meaning"],
            [
                [[nodes.literal("", name)], [nodes.literal("", default)] if default else [], self.inline(text)]
                for name, text, default in Registered().keys
            ],
        )


class Commands(Generated):
    """The help of each command of ``python -m pytest_gpuperf``."""

    def entries(self) -> Iterator[nodes.Node]:
        """Yields a section for each command."""
        with patch.dict(os.environ, COLUMNS=str(COLUMNS), NO_COLOR="1"):
            for name, parser in sorted(self.parsers().items()):
                section = nodes.section("", nodes.title("", name), ids=[f"command-{name}"], names=[name])
                section += nodes.literal_block("", parser.format_help(), language="text")
                yield section

    @staticmethod
    def parsers() -> dict[str, argparse.ArgumentParser]:
        """Returns the parser of each command."""
        actions = command_line._parser()._actions
        return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))


class Outcomes(Generated):
    """The verdicts, the worst first."""

    def entries(self) -> Iterator[nodes.Node]:
        """Yields a table."""
        yield self.table(
            ["verdict", "the test", "meaning"],
            [
                [[nodes.literal("", one.value)], [nodes.Text(TESTS[one.effect])], self.inline(one.meaning)]
                for one in Outcome
            ],
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directives."""
    app.add_directive("gpuperf-options", Options)
    app.add_directive("gpuperf-ini", IniKeys)
    app.add_directive("gpuperf-commands", Commands)
    app.add_directive("gpuperf-outcomes", Outcomes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
