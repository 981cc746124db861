"""Tables of configurations in the terminal and in reports."""

from pytest_gpuperf.figures.search import DoesNotFit, Infeasible, Search, Trial
from pytest_gpuperf.report.searches import describe_searches, make_table
from tests.figures.test_search import ran
from tests.page.examples import SEARCH


def test_a_table_has_the_trials_that_ran_first() -> None:
    found = Search("degrees", (ran("a", 1.0, 5, 4), Trial("b", {}, why_not=Infeasible("no"))), tokens=10.0)
    table = make_table("t", found)
    assert table["world_size"] == 2
    assert [(row["name"], row["seconds"], row["rate"], row["peak_bytes"]) for row in table["trials"]] == [
        ("a", 1.0, 10.0, 5),
        ("b", None, None, None),
    ]


def test_a_table_is_sorted_marked_and_has_the_reasons() -> None:
    assert [line.text for line in describe_searches([SEARCH])] == [
        f"{SEARCH['test']} meshes: dp2 is the fastest of 3 configurations, 25.0 % ahead of tp2; 2 did not run; "
        "* needs less memory than all that are faster",
        "  configuration      time          tokens     MFU    memory  host memory",
        "  * dp2          20.00 ms  409.6 ktoken/s  40.0 %    60 GiB",
        "    tp2          25.00 ms  327.7 ktoken/s  32.0 %    60 GiB",
        "  * pp2          40.00 ms  204.8 ktoken/s  20.0 %  31.5 GiB        4 GiB",
        "    cp2: 3 layers make no 2 stages",
        "    dp2 whole: does not fit: needs 143.2 GiB, 139.8 GiB are there",
    ]


def test_what_is_unknown_has_no_column() -> None:
    table = make_table("t", Search("s", (ran("a", 1.0), ran("b", 2.0))))
    assert [line.text for line in describe_searches([table])] == [
        "t s: a is the fastest of 2 configurations, 100.0 % ahead of b",
        "  configuration     time",
        "    a            1.000 s",
        "    b            2.000 s",
    ]


def test_an_allocation_that_failed_says_at_least() -> None:
    tried = Trial("b", {}, why_not=DoesNotFit(3 * 1024**3, 1024**3, False))
    table = make_table("t", Search("s", (ran("a", 1.0), tried)))
    assert describe_searches([table])[-1].text == "    b: does not fit: needs at least 3 GiB, 1 GiB are there"
