"""The terminal's overview: one line a test."""

from dataclasses import replace
from typing import Any

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.headline import group_by_test
from pytest_gpuperf.report.overview import LINES, Overview, describe_smoke
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.page.examples import CURVE
from tests.report.examples import COMMANDS, KEY, SAME, UNJUDGED

HEADER = "verdict         change       value  of limit  test"
RACED = replace(
    SAME,
    outcome=Outcome.REGRESSED,
    change=-0.1,
    against="7ba55cc",
    code=Share(-0.11, (-0.12, -0.1), 4),
    environment=Share(0.01, (0.0, 0.02), 3),
)


def texts(*verdicts: Verdict, **settings: Any) -> list[str]:
    return [line.text for line in Overview(verdicts, COMMANDS, **settings).lines()]


def test_no_figure_is_no_line() -> None:
    assert texts() == []


def test_a_test_has_one_line_below_its_file() -> None:
    time = replace(SAME, metric_name="time", metric=Metric(1e-3, "s", "lower"))
    assert texts(time, SAME, replace(SAME, test="u.py::test_c")) == [
        HEADER,
        "t.py",
        "  same     -0.5 % GB/s  354.0 GB/s    78.7 %  test_a busbw +1",
        "u.py",
        "  same     -0.5 % GB/s  354.0 GB/s    78.7 %  test_c",
        f"3 metrics on {KEY}: 3 same",
    ]


def test_what_is_odd_comes_first_with_the_reason() -> None:
    assert texts(SAME, replace(RACED, test="z.py::test_z"))[:9] == [
        "verdict            change       value  of limit  test",
        "z.py::test_z",
        "  regressed  -10.0 % GB/s  354.0 GB/s    78.7 %  busbw",
        "    10.0 % slower than 356.0 GB/s, because of the code",
        "    spread 2.4 % over 2 launches; a loss of 5.0 % is seen",
        "    code -11.0 % GB/s (-12.0 % to -10.0 % in 4 launches of each), against 7ba55cc",
        "    environment +1.0 % GB/s (+0.0 % to +2.0 % in 3 launches), against the baseline",
        '    bisect with: pytest "z.py::test_z" --gpus 8 --bisect=7ba55cc',
        "t.py",
    ]


def test_what_another_judge_misses_comes_first_in_its_words() -> None:
    missing = replace(SAME, test="z.py::test_z", outcome=Outcome.MISSING, reason=Reason.OWN_WORDS, detail="no contract")
    lines = texts(SAME, missing)
    assert lines[1] == "z.py::test_z"
    assert lines[3] == "    no contract"


def test_a_row_of_the_longest_outcome_stands_in_its_columns() -> None:
    header, _, row, *_ = texts(replace(RACED, outcome=Outcome.ENVIRONMENT))
    assert row.index("354.0 GB/s") + len("354.0 GB/s") == header.index("value") + len("value")


def test_of_several_figures_the_worst_stands_for_the_test_and_each_that_is_odd_is_named() -> None:
    unraced = replace(RACED, against="", code=None, environment=None, baseline=None)
    slower = replace(unraced, metric_name="time", change=-0.3)
    lines = texts(SAME, slower, replace(unraced, metric_name="algbw", detail="x"))
    assert [line.split()[-1] for line in lines if line.startswith("  regressed")] == ["time", "algbw"]
    assert "    not raced: x" in lines


def test_a_missing_record_is_a_line_of_its_file_like_any_other() -> None:
    missing = [replace(SAME, test=f"t.py::test_{number}", outcome=Outcome.MISSING, change=None) for number in range(70)]
    lines = texts(*missing)
    assert len(lines) == 73
    assert lines[2] == "  missing  354.0 GB/s    78.7 %  test_0"


def test_more_than_a_screen_of_what_is_the_same_is_counted_by_file() -> None:
    many = [replace(SAME, test=f"{file}.py::test_{number}") for file in "ab" for number in range(LINES // 2)]
    assert len(texts(*many)) == LINES + 4
    one_more = texts(*many, replace(SAME, test="a.py::test_x"))
    assert one_more == [
        f"same: {LINES // 2 + 1} tests of a.py (-v lists them)",
        f"same: {LINES // 2} tests of b.py (-v lists them)",
        f"{LINES + 1} metrics on {KEY}: {LINES + 1} same",
    ]


def test_figures_that_nobody_judges_come_last() -> None:
    shown = replace(UNJUDGED, test=SAME.test)
    assert texts(shown, replace(shown, metric_name="joules", metric=Metric(2.0, "J", "lower")), SAME)[1:-1] == [
        "t.py",
        "  same     -0.5 % GB/s  354.0 GB/s    78.7 %  test_a",
        "not judged:",
        "  t.py::test_a: time 27.00 us, joules 2.000 J",
    ]
    many = [replace(UNJUDGED, test=f"t.py::test_{number}") for number in range(LINES + 1)]
    assert texts(*many)[0] == f"not judged: metrics of {LINES + 1} tests (-v lists them)"


def test_a_sweep_is_one_line_with_a_picture() -> None:
    peak = replace(SAME, test=CURVE["test"], metric_name="peak")
    (line,) = [line for line in texts(peak, curves=[CURVE]) if line.startswith("  same")]
    assert line.endswith("test_curve[2ranks-send_recv] ▁▂▃▃▄▅▆▆▇█ 10.00 us to 52.43 GB/s, half at 256 KiB, 1 dip")
    (line,) = [line for line in texts(peak, curves=[CURVE], ascii_only=True) if line.startswith("  same")]
    assert line.isascii()


def test_on_a_narrow_terminal_the_picture_of_a_sweep_has_a_line_of_its_own_and_the_test_keeps_its_name() -> None:
    peak = replace(SAME, test=CURVE["test"], metric_name="peak")
    lines = texts(peak, curves=[CURVE], width=80)
    assert lines[2:4] == [
        "  same     -0.5 % GB/s  354.0 GB/s    78.7 %  test_curve[2ranks-send_recv]",
        "    ▁▂▃▃▄▅▆▆▇█ 10.00 us to 52.43 GB/s, half at 256 KiB, 1 dip",
    ]
    assert len(texts(peak, curves=[CURVE], width=200)) == len(lines) - 1


def test_on_a_narrow_terminal_figures_that_nobody_judges_are_as_many_as_fit() -> None:
    shown = [replace(UNJUDGED, metric_name=f"kelvin_of_{number}") for number in range(16)]
    (line,) = [line for line in texts(*shown, width=80) if "kelvin" in line]
    assert line == "  t.py::test_b: kelvin_of_0 27.00 us, kelvin_of_1 27.00 us +14"
    assert texts(*shown)[1].endswith("kelvin_of_15 27.00 us")
    (line,) = [line for line in texts(*shown, width=20) if "kelvin" in line]
    assert line.endswith(": kelvin_of_0 27.00 us +15")


def test_on_a_terminal_names_are_shortened_and_numbers_never() -> None:
    long = replace(SAME, test=f"t.py::test_{'a' * 100}[2ranks]")
    row = texts(long, width=80)[2]
    assert len(row) == 80
    assert row.endswith("[2ranks]")
    assert "354.0 GB/s" in texts(long, width=20)[2]


def test_the_headline_is_what_a_person_asks_for() -> None:
    time, speedup = Metric(1e-3, "s", "lower"), Metric(1.2, "x", "higher")
    figures = [
        replace(SAME, metric_name="time", metric=time),
        replace(SAME, metric_name="speedup", metric=speedup),
        SAME,
        replace(UNJUDGED, test=SAME.test, metric=speedup),
    ]
    (test,) = group_by_test(figures)
    assert (test.headline.metric_name, test.headline.outcome) == ("speedup", Outcome.SAME)
    (test,) = group_by_test([figures[0], SAME])
    assert test.headline is SAME
    (test,) = group_by_test([SAME, replace(figures[0], outcome=Outcome.REGRESSED)])
    assert test.headline.metric_name == "time"


def test_a_smoke_run_that_breaks_a_limit_says_so() -> None:
    assert describe_smoke([]) == []
    broken = replace(UNJUDGED, outcome=Outcome.INVALID)
    assert [line.text for line in describe_smoke([UNJUDGED, broken])] == [
        "1 perf test ran and handed over 2 metrics; --smoke judges none",
        f"2 metrics on {KEY}: 1 invalid, 1 unjudged",
    ]
