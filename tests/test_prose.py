"""The prose that users read: the length of its sentences, and the words that it avoids (tests/words.toml).

Sentences are counted without headings, tables, code, and lists of directives. Words are searched in all but code.
"""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.whole_run import ROOT

MEAN = 17.0
"""Words of a sentence, on average over a page."""
LONG = 30
LONG_SHARE = 0.04
"""Sentences of a page that may have more words than ``LONG``; one of a short page may."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_FENCE = re.compile(r"^( *)(```+|:::+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_NOT_PROSE = re.compile(r"^(#.*|\|.*|<!--.*-->|\([\w-]+\)=)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.|:) +", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9`])|[:;]\s*\n\n|\n\n")


@dataclass(frozen=True)
class Lengths:
    """Words of each sentence of a page."""

    words: tuple[int, ...]
    longest: str

    @property
    def complaint(self) -> str:
        """What is wrong; empty if nothing is."""
        long = sum(words > LONG for words in self.words)
        mean = statistics.fmean(self.words) if self.words else 0.0
        if mean <= MEAN and (long <= 1 or long <= LONG_SHARE * len(self.words)):
            return ""
        return (
            f"{len(self.words)} sentences of {mean:.1f} words on average ({MEAN:g} at most), {long} of more than "
            f"{LONG} ({LONG_SHARE:.0%} at most): split the longest: {self.longest!r}"
        )


def lengths(text: str) -> Lengths:
    """Counts the words of a page's sentences."""
    text = _NOT_PROSE.sub("\n", _FENCE.sub("\n\n", text))
    text = re.sub(r"`[^`]*`", "code", _LINK.sub(r"\1", text))
    sentences = [" ".join(piece.split()) for piece in _END.split(_ITEM.sub("\n\n", text)) if piece and piece.strip()]
    counted = [len(re.findall(r"\w[\w.,%'-]*", sentence)) for sentence in sentences]
    return Lengths(
        tuple(count for count in counted if count > 1), max(sentences, key=lambda one: len(one.split()), default="")
    )


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_a_page_is_read_once(page: str) -> None:
    complaint = lengths((ROOT / page).read_text(encoding="utf-8")).complaint
    assert not complaint, complaint


def test_sentences_are_counted_and_code_is_not() -> None:
    page = "# A heading of words\n\nOne two three. Four `five six` [seven eight](nine.md):\n\n```\ncode. Code.\n```\n"
    assert lengths(page).words == (3, 4)


def test_long_sentences_are_found() -> None:
    page = " ".join(["word"] * 31) + ". " + "A b c. " * 20 + " ".join(["More"] * 35) + "."
    assert "2 of more than 30" in lengths(page).complaint
    assert lengths("A b c. " * 60 + page).complaint == ""
    assert "of 18.0 words on average" in lengths(" ".join(["Word"] * 18) + ".").complaint


_WORDS = tomllib.loads((ROOT / "tests" / "words.toml").read_text(encoding="utf-8"))
_NOT_YET = ("CHANGELOG.md", "docs/suites/", "docs/evidence.md", "docs/dev/judging.md", "docs/dev/measurements.md")
"""Files and folders whose words are not searched yet."""


def avoided(text: str, words: Mapping[str, str]) -> list[str]:
    """Return a complaint for each line with a word that the list replaces."""
    return [
        f"line {number}: {found[0]!r}: say {instead}"
        for number, line in enumerate(text.splitlines(), 1)
        for word, instead in words.items()
        for found in re.finditer(rf"\b(?:{word})\b", line, re.IGNORECASE)
    ]


def prose(page: str) -> str:
    """Return a page with its lines, without code and the targets of links."""
    text = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), page)
    return re.sub(r"`[^`]*`", lambda code: "code" + "\n" * code[0].count("\n"), _LINK.sub(r"\1", text))


def texts(module: Path, *, docstrings: bool = True) -> Iterator[str]:
    """Yield the docstrings, messages and help texts of a module: its strings with a space."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    expressions = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_wanted = docstrings or id(node) not in expressions
        if is_wanted and isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


_NO_SUBJECT = re.compile(r"(Of|The same|That of|Those of)\b")


def headless(source: str) -> list[str]:
    """Return the first lines of the docstrings that begin with no subject: of functions, constants and fields."""
    found = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    texts = [one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text.partition("\n")[0] for text in texts if _NO_SUBJECT.match(text)]


@pytest.mark.parametrize("folder", ["pytest_gpuperf", "suites", "benchmarks", "tests"])
def test_docstrings_begin_with_a_subject_or_a_verb(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): headless(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_docstring_without_a_subject_is_found() -> None:
    source = 'SIZE = 4\n"""Of a block."""\n\ndef rows():\n    """Often the rows."""\n    return "Of a string"\n'
    assert headless(source) == ["Of a block."]


@pytest.mark.parametrize(
    "page", [name for page in PAGES if not (name := str(page.relative_to(ROOT))).startswith(_NOT_YET)]
)
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    assert avoided(prose((ROOT / page).read_text(encoding="utf-8")), _WORDS["everywhere"] | _WORDS["pages"]) == []


def test_the_code_uses_the_words_of_the_field() -> None:
    modules = sorted((ROOT / "pytest_gpuperf").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): avoided("\n".join(texts(path)), _WORDS["everywhere"]) for path in modules}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_messages_use_the_words_of_the_field() -> None:
    modules = sorted((ROOT / "pytest_gpuperf").rglob("*.py"))
    found = {str(path): avoided("\n".join(texts(path, docstrings=False)), _WORDS["messages"]) for path in modules}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_report_page_uses_the_words_of_the_field() -> None:
    template = (ROOT / "pytest_gpuperf" / "features" / "page" / "assets" / "page.html.j2").read_text(encoding="utf-8")
    shown = re.sub(r"\{[{%].*?[}%]\}|<[^>]*>", lambda code: "\n" * code[0].count("\n"), template, flags=re.DOTALL)
    assert avoided(shown, _WORDS["everywhere"] | _WORDS["messages"]) == []


def test_a_word_is_found_with_its_line_and_not_in_code() -> None:
    page = "A run tells.\n\n```\ntells\n```\n`tells` and\nBESIDE [it](beside.md)\n"
    assert avoided(prose(page), {"tell|tells": "show", "beside": "next to"}) == [
        "line 1: 'tells': say show",
        "line 7: 'BESIDE': say next to",
    ]
