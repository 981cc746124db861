"""How many examples the suites draw: a profile's are a drawn test's, and its variants share them."""

import re
from pathlib import Path

from tests.whole_run import ROOT, run_pytest

SIMULATION = "suites/pipeline_parallel/test_reference.py"


def test_variants_that_are_selected_share_the_examples(tmp_path: Path) -> None:
    selection = "one_stage_a_rank or several_stages_a_rank and LoopedBFS or zbv"
    options = ("--hypothesis-profile=quick", "--hypothesis-show-statistics", "-k", selection)
    run = run_pytest(ROOT, SIMULATION, "-o", f"gpuperf_leases={tmp_path}", *options)
    found = re.findall(r"::test_(\S+):.*?max_examples=(\d+)", run.text, re.DOTALL)
    assert {name: int(most) for name, most in found} == {
        "one_stage_a_rank[GPipe]": 5,
        "one_stage_a_rank[1F1B]": 5,
        "several_stages_a_rank[LoopedBFS]": 10,  # the other variant is not selected
        "zbv_zero_bubble": 10,
    }
