"""How many examples the suites draw: a profile's are a drawn test's, and its variants share them."""

import re
from pathlib import Path

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
