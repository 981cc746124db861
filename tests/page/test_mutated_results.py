"""Pages of results of which one value is another: there is a page, or an error that names the place in the file."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines.results import ResultsError
from pytest_gpuperf.features import list_shown
from pytest_gpuperf.features.github.pull_request import make_comment
from pytest_gpuperf.features.page import html
from pytest_gpuperf.features.page.content import Content
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.report.results_file import Raced, Unchecked, load, write
from tests.page.examples import (
    CURVE,
    FAILED,
    MATRIX,
    PROFILE,
    REGRESSED,
    SAME,
    SEARCH,
    SKIPPED,
    SUMMARY,
    TOPOLOGY,
    results,
)

VALUES: tuple[Any, ...] = (None, True, 0, -1, 1.7e308, "a\n<b>", ["a", "b"], {"a": 1})
MISSING = object()


def whole(path: Path) -> dict[str, Any]:
    raced = Raced("2026-11-20T10:00:00Z", "host", "main", "a" * 40, "b" * 40, dirty=False)
    ran = results(
        REGRESSED,
        SAME,
        curves=(CURVE,),
        matrices=(MATRIX,),
        profiles=(PROFILE,),
        searches=(SEARCH,),
        topology=TOPOLOGY,
        ran=(FAILED, SKIPPED),
        raced=raced,
        summary=SUMMARY,
    )
    write(path, replace(ran, unchecked=(Unchecked("t.py::test_a", "energy"),)))
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to each value; of a list only the first item, since the others are alike."""
    if path:
        yield path
    if isinstance(data, dict):
        for key, item in data.items():
            yield from places(item, (*path, key))
    elif isinstance(data, list):
        for item in data[:1]:
            yield from places(item, (*path, 0))


def mutated(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return the data with another value at the place, or without it."""
    if not path:
        return value
    changed = copy.copy(data)
    if len(path) == 1 and value is MISSING:
        del changed[path[0]]
    else:
        changed[path[0]] = mutated(data[path[0]], path[1:], value)
    return changed


def outcome(path: Path, *, comments: bool) -> str:
    """Return what becomes of a file of results: drawn, refused, or the error that nobody should see."""
    try:
        html.render_html(Content([Run("run", load(path, list_shown()))]))
        if comments:
            make_comment(path)
    except ResultsError as error:
        return "refused" if str(error).startswith(f"results '{path}': ") else str(error)
    except Exception as error:  # whatever it is, the test names it
        return repr(error)
    return "drawn"


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a megabyte of scripts out of each page."""
    asset = html._read_asset
    monkeypatch.setattr(html, "_read_asset", lambda name: "" if name.endswith(".js") else asset(name))


@pytest.mark.usefixtures("light")
def test_each_mutation_is_drawn_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    data = whole(path)
    ends: Counter[str] = Counter()
    broken = []
    for place in places(data):
        for value in (MISSING, *VALUES):
            path.unlink()  # to cut a file that was written a moment ago waits for the disk
            path.write_text(json.dumps(mutated(data, place, value)))
            end = outcome(path, comments=place[0] == "verdicts")
            ends[end] += 1
            if end not in ("drawn", "refused"):
                broken.append((place, value, end))
    assert broken == []
    assert ends["drawn"] > 300
    assert ends["refused"] > 1000
