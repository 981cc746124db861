"""Tables that code and recorded files fill, so that they cannot rot: options, markers, verdicts, baselines, faults."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from pytest_gpuperf import __main__ as command_line
from pytest_gpuperf.features import iterate_modules
from pytest_gpuperf.markers import MARKERS
from pytest_gpuperf.option_names import SHARED, NamedOptions, add_options, add_prefix
from pytest_gpuperf.verdicts.outcome import Outcome, Reason

_ROOT = Path(__file__).resolve().parents[1]


class _Parser:
    """Takes the options of the core and of the features, in pytest's place."""

    def __init__(self, of_features: NamedOptions) -> None:
        self.options: list[tuple[str, str]] = []
        self._groups = [SimpleNamespace(options=[])]  # a feature looks which names are taken
        self._anonymous = self._groups[0]
        self._prefixed = {add_prefix(name) for name in (*SHARED, *of_features)}
        self.keys: list[tuple[str, str]] = []

    def getgroup(self, *_: str) -> _Parser:
        """One group holds all options."""
        return self

    def addoption(self, *names: str, **settings: Any) -> None:
        """Takes an option with its help."""
        if names[-1] in self._prefixed:
            names = (names[-1].replace("--gpuperf-", "--"), names[-1])
        value = settings.get("metavar")
        shown = [f"`{name}`" for name in names if "=" not in name or len(names) == 1]
        if value and not str(settings.get("nargs", "")):
            shown = [f"`{names[0]}={value}`", *(f"`{name}`" for name in names[1:])]
        if settings.get("help") != argparse.SUPPRESS:
            self.options.append((", ".join(shown), settings["help"]))

    def addini(self, name: str, text: str, default: object = None, **_: Any) -> None:
        """Takes an ini key with its default."""
        self.keys.append((f"`{name}`", f"{text} (default: `{default or 'empty'}`)"))


def _registered() -> _Parser:
    features = [feature for _, feature in iterate_modules("plugin")]
    asked = [getattr(feature, "pytest_gpuperf_options", dict)() for feature in features]
    of_features = {name: settings for some in asked for name, settings in some.items()}
    parser = _Parser(of_features)
    add_options(parser, of_features)  # type: ignore[arg-type]
    for feature in features:
        getattr(feature, "pytest_addoption", lambda parser: None)(parser)
    return parser


def _options() -> Iterable[tuple[str, str]]:
    return _registered().options


def _keys() -> Iterable[tuple[str, str]]:
    return _registered().keys


def _outcomes() -> Iterator[tuple[str, str]]:
    for outcome in Outcome:
        yield f"`{outcome.value}`", f"{outcome.meaning} The test {outcome.effect.name.lower()}."


def _reasons() -> Iterator[tuple[str, str]]:
    told = ModuleAnalyzer.for_module(Reason.__module__).find_attr_docs()
    for reason in Reason:
        yield f"`{reason.value}`", " ".join(told["Reason", reason.name])


def _markers() -> Iterator[tuple[str, str]]:
    for line in MARKERS:
        name, _, text = line.partition(": ")
        yield f"`{name}`", text


def _records() -> Iterator[tuple[str, str]]:
    """Yield what each file of baselines has."""
    for path in sorted((_ROOT / "baselines").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        metrics = sum(len(test["metrics"]) for test in record["tests"].values())
        launches = record["launches"].values()
        days = sorted({launch["at"][:10] for launch in launches})
        gpus = {launch["gpus"] for launch in launches}
        yield (
            f"`{path.name}`",
            f"metrics: {metrics}, tests: {len(record['tests'])}, launches: {len(launches)}, machines: {len(gpus)}, "
            f"from {days[0]} to {days[-1]}",
        )


def _faults() -> Iterator[tuple[str, str]]:
    """Yield how many recorded faults came to each outcome."""
    entries = json.loads((_ROOT / "docs" / "suites" / "faults.json").read_text(encoding="utf-8"))
    meanings = {
        "caught": "A test of the subject fails.",
        "passed": "No test fails.",
        "equivalent": "No test could tell it from the right program.",
        "skipped": "It was not tried: it needs GPUs or a library.",
    }
    for outcome, number in Counter(entry["outcome"] for entry in entries).most_common():
        yield outcome, f"{number}. {meanings[outcome]}"


class _Commands(SphinxDirective):
    """The help of each command of ``python -m pytest_gpuperf``: ``{gpuperf-commands}``."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command."""
        actions = command_line._make_parser()._actions
        parsers = next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))
        with patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
            return [self._section(name, parser.format_help()) for name, parser in sorted(parsers.items())]

    @staticmethod
    def _section(name: str, text: str) -> nodes.Node:
        section = nodes.section("", nodes.title("", name), ids=[f"command-{name}"], names=[name])
        section += nodes.literal_block("", text, language="text")
        return section


class _Table(SphinxDirective):
    """A table with two columns: ``{gpuperf-table} options``."""

    required_arguments = 1
    tables: ClassVar = {
        "options": _options,
        "keys": _keys,
        "markers": _markers,
        "outcomes": _outcomes,
        "reasons": _reasons,
        "records": _records,
        "faults": _faults,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        lines = ["| name | meaning |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_cell(text)} |" for name, text in self.tables[self.arguments[0]]()]
        return self.parse_text_to_nodes("\n".join(lines))


def _cell(text: str) -> str:
    return " ".join(text.replace("%%", "%").replace("|", "\\|").replace("<", "\\<").split())


def _keep_colons(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from reading what is before a colon as the type of an attribute."""
    if what in ("attribute", "property") and lines:
        lines[0] = lines[0].replace(": ", " \N{EN DASH} ", 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("gpuperf-table", _Table)
    app.add_directive("gpuperf-commands", _Commands)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
