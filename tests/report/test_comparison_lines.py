"""What ``compare`` prints."""

from dataclasses import replace

from pytest_gpuperf.baselines.compare import Compared, Pair
from pytest_gpuperf.report.comparison_lines import format_comparison
from tests.baselines.examples import KEY, metric_baseline

FIRST, SECOND = metric_baseline(100e9, 102e9, 101e9), metric_baseline(99e9)
ALIKE = Pair("t.py::test_a[2ranks]", "busbw", FIRST, SECOND)
NOTHING = Compared(KEY, (), (), {})


def lines(compared: Compared) -> list[str]:
    found = format_comparison(compared, "a.json", "b.json")
    assert found[:3] == ["first: a.json", "second: b.json", ""]
    return found[3:]


def test_a_table_has_both_centres_their_change_and_launches() -> None:
    only = replace(ALIKE, name="x", second=None), replace(ALIKE, name="y", first=None)
    assert lines(replace(NOTHING, pairs=(ALIKE, *only))) == [
        "change       first       second      spread          launches  metric",
        "-2.0 % GB/s  101.0 GB/s  99.00 GB/s  1.0 %, unknown  3, 1      t.py::test_a[2ranks] busbw",
        "only first   101.0 GB/s              1.0 %           3         t.py::test_a[2ranks] x",
        "only second              99.00 GB/s  unknown         1         t.py::test_a[2ranks] y",
        f"1 metric in both on {KEY}, 1 only in the first, 1 only in the second",
        "most launches of both ran with the same versions and variables",
    ]


def test_figures_that_are_not_alike_say_why() -> None:
    other = replace(ALIKE, second=metric_baseline(1.0, unit="s"))
    text = lines(replace(NOTHING, pairs=(other,)))
    assert text[1].startswith("not alike  101.0 GB/s  1.000 s ")
    assert text[3] == "not alike: t.py::test_a[2ranks]: unit of busbw was 'B/s' and is 's'"


def test_other_bodies_and_what_launches_differ_in_come_last() -> None:
    differing = {"NCCL_PROTO": ("", "LL"), "nccl": ("2.28.9", "2.29.1")}
    assert lines(replace(NOTHING, other_bodies=("t.py::test_a",), differing=differing)) == [
        f"0 metrics in both on {KEY}, 0 only in the first, 0 only in the second",
        "another body in the second: t.py::test_a",
        "launches differ in NCCL_PROTO: not set in most of the first, LL in most of the second",
        "launches differ in nccl: 2.28.9 in most of the first, 2.29.1 in most of the second",
    ]
