"""Each subject has the files that docs/dev/adding-a-suite.md names, and a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layout_of_suites import ASPECTS, HELPERS, OPTIONAL, REQUIRED, complaints, subjects

ROOT = Path(__file__).parents[1]
SUITES, DOCS = ROOT / "suites", ROOT / "docs"


@pytest.mark.parametrize("subject", subjects(SUITES))
def test_a_subject_is_like_the_others(subject: str) -> None:
    assert not complaints(SUITES, DOCS / "suites", subject)


def test_the_page_names_every_file_that_a_subject_may_have() -> None:
    page = (DOCS / "dev" / "adding-a-suite.md").read_text(encoding="utf-8")
    files = [*REQUIRED, *OPTIONAL, *(f"{name}.py" for name in HELPERS), *(f"test_{aspect}.py" for aspect in ASPECTS)]
    assert [file for file in files if f"`{file}`" not in page] == []
