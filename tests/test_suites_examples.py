"""How many examples the suites draw: a profile's are a drawn test's, and its variants share them."""

import re
from pathlib import Path

import pytest

from tests.whole_run import ROOT, run_pytest

TRANSPORTS = "suites/transports/test_correctness.py"
EXCHANGES = "suites/symmetric_memory/test_exchanges.py"
SIMULATION = "suites/pipeline_parallel/test_reference.py"
FILES = "suites/checkpoint/test_directory.py"


def test_variants_that_are_selected_share_the_examples(tmp_path: Path) -> None:
    selection = (
        "every_size and (2ranks-ring or 3ranks-ring or 2ranks-handoff_by_nccl) or one_stage_a_rank or zbv"
        " or damaged_file and (grown or missing)"
    )
    options = ("--hypothesis-profile=quick", "--hypothesis-show-statistics", "-k", selection)
    of = (TRANSPORTS, EXCHANGES, SIMULATION, FILES)
    run = run_pytest(ROOT, *of, "-o", f"gpuperf_leases={tmp_path}", *options)
    found = re.findall(r"::test_(\S+):.*?max_examples=(\d+)", run.text, re.DOTALL)
    assert {name: int(most) for name, most in found} == {
        "every_size[2ranks-ring]": 3,  # the others are not selected
        "every_size[3ranks-ring]": 3,
        "every_size[2ranks-handoff_by_nccl]": 5,
        # A third of five, for two: the simplest of all would be the only one.
        "damaged_file[2ranks-grown]": 2,
        "damaged_file[2ranks-missing]": 2,
        # These run no ranks, and draw as many as by default.
        "one_stage_a_rank[GPipe]": 50,
        "one_stage_a_rank[1F1B]": 50,
        "zbv_zero_bubble": 100,
    }


DRAWN = """
from hypothesis import given
from hypothesis import strategies as st

from pathlib import Path


@given(numbers=st.lists(st.integers(0, 1000), min_size=20))
def test_sum(numbers: list[int]) -> None:
    with Path(__file__).with_name("calls.txt").open("a") as calls:
        calls.write("x")
    assert sum(numbers) < 0
"""


@pytest.mark.parametrize("profile", ["quick", "ci", "suites", "thorough"])
def test_a_drawn_test_ends_with_its_first_failure(tmp_path: Path, profile: str) -> None:
    """To look for a smaller example takes many calls, which only one profile makes."""
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "suites" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "test_drawn.py").write_text(DRAWN, encoding="utf-8")
    run = run_pytest(tmp_path, "suites", "-p", "no:cacheprovider", f"--hypothesis-profile={profile}")
    assert run.outcomes == {"test_sum": "FAILED"}
    calls = len((folder / "calls.txt").read_text(encoding="utf-8"))
    command = 'pytest "suites/test_drawn.py::test_sum" --hypothesis-profile=thorough'
    if profile == "thorough":
        assert calls > 5
        assert command not in run.text
    else:
        assert calls <= 3
        assert command in run.text
