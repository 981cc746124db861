"""Journals with a value that no run writes: its line is left out and counted, and the others are recovered."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.features.profiling.lines import PROFILES
from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.report.matrices import MATRICES
from pytest_gpuperf.report.properties import make_unchecked_properties, make_verdict_properties
from pytest_gpuperf.report.run_journal import RunJournalError, read_journal
from pytest_gpuperf.report.searches import SEARCHES
from pytest_gpuperf.traces.profile import Profile
from tests.page.examples import CURVE, KEY, MATRIX, SEARCH
from tests.report.examples import SAME

VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "", "text", [], [1], [[1]], {}, {"a": 1})
HEAD: dict[str, Any] = {"hardware_key": KEY, "match": {"gpu_count": 2}, "gpus": 2, "rootpath": "."}


def report(when: str = "call", **more: Any) -> dict[str, Any]:
    """Return a phase of a test as pytest serializes it."""
    properties = [
        *make_verdict_properties([SAME]),
        *make_unchecked_properties(["energy"]),
        *CURVES.carry([CURVE]),
        *MATRICES.carry([MATRIX]),
        *SEARCHES.carry([SEARCH]),
        *PROFILES.carry([make_plain(Profile("t.py::test_a", "measure", "trace.json"))]),
        ("gpuperf_candidate", json.dumps({"no": "baselines"})),
    ]
    kept = properties[:-1] if when == "call" else []
    return {
        "nodeid": "t.py::test_a",
        "location": ["t.py", 3, "test_a"],
        "keywords": {RANKS_KEYWORD: 1},
        "outcome": "passed",
        "longrepr": None,
        "when": when,
        "sections": [["roll call", "rank 0"]],
        "duration": 0.5,
        "start": 1.0,
        "stop": 1.5,
        "user_properties": [list(one) for one in kept],
        "$report_type": "TestReport",
        **more,
    }


def mutations() -> Iterator[dict[str, Any]]:
    """Yield reports with one other value, or without one."""
    whole = report()
    for key in whole:
        yield {name: value for name, value in whole.items() if name != key}
        for value in VALUES:
            yield {**whole, key: value}
    for outcome in ("failed", "skipped"):
        for value in VALUES:
            yield {**whole, "outcome": outcome, "longrepr": value}
    for place in range(len(whole["user_properties"])):
        for value in VALUES:
            for text in (value, json.dumps(value), json.dumps([value])):
                changed = copy.deepcopy(whole)
                changed["user_properties"][place][1] = text
                yield changed


def journal(folder: Path, *lines: Any, head: Any = HEAD) -> Path:
    path = folder / "r.json.journal"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in ({"head": head}, *lines)))
    return path


def recovered(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_gpuperf", "recover", "r.json", "--junitxml=j.xml"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


def test_what_cannot_be_read_is_left_out_and_counted(tmp_path: Path) -> None:
    lines: list[Any] = [{"start": value, "location": value} for value in VALUES]
    lines += [*VALUES, *({"report": value} for value in VALUES)]
    for number, one in enumerate(mutations()):
        nodeid = f"t.py::test_{number}"
        named = {**one, "nodeid": nodeid} if one.get("nodeid") == "t.py::test_a" else one
        lines += [{"report": named}, {"report": report("teardown", nodeid=nodeid)}]
    skip = report("setup", nodeid="t.py::test_skips", outcome="skipped", longrepr=["t.py", 3, "Skipped: no GPUs"])
    lines += [{"report": skip}, {"report": report("teardown", nodeid="t.py::test_skips")}]
    lines += [{"report": report(nodeid="t.py::test_z")}, {"report": report("teardown", nodeid="t.py::test_z")}]
    journal(tmp_path, *lines)
    done = recovered(tmp_path)
    said = done.stdout + done.stderr
    assert "INTERNALERROR" not in said
    assert "Traceback" not in said
    assert done.returncode == 1
    assert "lines of its journal cannot be read and are left out" in said
    found = json.loads((tmp_path / "r.json").read_text())
    ran = {one["test"]: one["outcome"] for one in found["ran"]}
    assert ran["t.py::test_skips"] == "skipped"
    assert ran["t.py::test_z"] == "passed"
    assert 'name="test_skips"' in (tmp_path / "j.xml").read_text()


@pytest.mark.parametrize("name", HEAD)
def test_a_head_of_another_form_is_refused(tmp_path: Path, name: str) -> None:
    kind = type(HEAD[name])
    for value in ("\0", *VALUES):
        if type(value) is kind and (value != "\0" or name != "rootpath"):
            continue
        with pytest.raises(RunJournalError, match="has no first line that can be read"):
            read_journal(journal(tmp_path, head={**HEAD, name: value}))
    with pytest.raises(RunJournalError):
        read_journal(journal(tmp_path, head={key: value for key, value in HEAD.items() if key != name}))


def test_a_run_whose_rootdir_is_elsewhere_is_an_error(tmp_path: Path) -> None:
    journal(tmp_path, head={**HEAD, "rootpath": "/no/such/folder"})
    done = recovered(tmp_path)
    assert done.returncode == 1
    assert "error: journal 'r.json.journal' cannot be replayed: got exit code 4 of pytest" in done.stderr
    assert "whose rootdir '/no/such/folder' is here: recover on the machine of the run" in done.stderr
