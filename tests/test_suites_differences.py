"""A failing comparison of nested values names the first item that differs, and its rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.shared.differences import ABSENT, differences, in_words
from tests.whole_run import ROOT, run_pytest


@dataclass(frozen=True)
class Account:
    sent: dict[str, int]
    steps: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize(
    ("got", "expected", "found"),
    [
        ([[True, True], [True, False]], [[True] * 2] * 2, [((1, 1), False, True)]),
        ([1, 2, 3], [1, 2], [((2,), 3, ABSENT)]),
        ({"a": 1, "c": 3}, {"a": 1, "b": 2}, [(("b",), ABSENT, 2), (("c",), 3, ABSENT)]),
        ([Account({"gather": 8})], [Account({"gather": 4})], [((0, "sent", "gather"), 8, 4)]),
        ([(1, 2)], [[1, 2]], [((0,), (1, 2), [1, 2])]),
        ([Account({}, (1, 3))] * 2, [Account({}, (1, 3))] * 2, []),
    ],
    ids=["lists", "a longer one", "dictionaries", "dataclasses", "of another type", "alike"],
)
def test_items_that_differ(got: Any, expected: Any, found: list[Any]) -> None:
    assert list(differences(got, expected)) == found


def test_tensors_differ_unless_they_are_one() -> None:
    x = torch.ones(2)
    assert not list(differences([x], [x]))
    assert len(list(differences([x], [x.clone()]))) == 1


def test_words() -> None:
    found = list(differences([[1, 2], [3, 4]], [[1, 2], [5, 6]]))
    assert in_words(found, world_size=2) == [
        "rank 1, item 0: got 3, expected 5",
        "1 more differ, the next one is rank 1, item 1",
    ]
    assert in_words(found)[0] == "item 1, item 0: got 3, expected 5"
    assert in_words(list(differences("a" * 200, "b"))) == [f"the value: got '{'a' * 116}..., expected 'b'"]


SUITE = """
import pytest
from pytest_gpuperf import Context, Ranks


def program(ctx: Context) -> list[bool]:
    return [True, ctx.rank == 0]


@pytest.mark.ranks(2)
def test_nested(ranks: Ranks) -> None:
    assert ranks.run(program) == [[True] * 2] * 2
"""


def test_a_suites_assertion_names_the_rank(tmp_path: Path) -> None:
    """In a run: pytest's own text would be two nested lists."""
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "suites" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "test_nested.py").write_text(SUITE, encoding="utf-8")
    run = run_pytest(tmp_path, "suites", "-o", f"gpuperf_leases={tmp_path}", "-p", "no:cacheprovider")
    assert "E       assert rank 1, item 1: got False, expected True" in run.text
