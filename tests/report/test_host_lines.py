"""What the summary says of figures that are the host's."""

from dataclasses import replace

from pytest_gpuperf.report.host_lines import WAITS, describe_host_bound
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import SAME, UNJUDGED

FIRST = "2 metrics bound by the host: the GPU waited for Python, whose time scatters more than a GPU's"


def bound(verdict: Verdict, test: str, *, waits: bool = False) -> Verdict:
    return replace(verdict, test=test, metric=replace(verdict.metric, host_bound=True, waits=waits))


def test_figures_of_devices_are_no_line() -> None:
    assert describe_host_bound([SAME, UNJUDGED, replace(SAME, metric=replace(SAME.metric, waits=True))]) == []


def test_a_figure_that_is_the_hosts_is_named_with_what_makes_it_so() -> None:
    told = describe_host_bound([bound(SAME, "t.py::test_b", waits=True), SAME, bound(UNJUDGED, "t.py::test_a")])
    assert [line.text for line in told] == [
        FIRST,
        "  t.py::test_a time",
        "  t.py::test_b busbw: the step waits for the GPU, as .item() does and a copy from pageable memory; "
        'torch.cuda.set_sync_debug_mode("warn") says where',
    ]


def test_figures_of_one_test_are_one_line_unless_their_reasons_differ() -> None:
    one, other = bound(SAME, "t.py::test_a"), bound(UNJUDGED, "t.py::test_a")
    assert [line.text for line in describe_host_bound([one, other])] == [FIRST, "  t.py::test_a busbw, time"]
    waiting = bound(UNJUDGED, "t.py::test_a", waits=True)
    assert [line.text for line in describe_host_bound([waiting, one])] == [
        FIRST,
        "  t.py::test_a busbw",
        f"  t.py::test_a time{WAITS}",
    ]


def test_many_tests_are_counted_unless_all_are_asked_for() -> None:
    many = [bound(SAME, f"t.py::test_{number:02}") for number in range(12)]
    folded = describe_host_bound(many, fold=True)
    assert len(folded) == 12
    assert folded[-1].text == "  and 2 tests more (-v lists them)"
    assert len(describe_host_bound(many)) == 13
