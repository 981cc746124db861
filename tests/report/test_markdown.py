"""The findings of a run as Markdown."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.features.github.markdown import escape, format_markdown
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.properties import make_verdict_properties
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import KEY, SAME, SKIPPED, UNJUDGED, report

MIB = 2**20
REGRESSED = replace(SAME, outcome=Outcome.REGRESSED, change=-0.163, test="t.py::test_c[a|b`c\n*d*]")

WHOLE = f"""\
### gpuperf

3 tests on ranks: 1 failed, 1 passed, 1 skipped

3 metrics on {KEY}: 1 regressed, 1 same, 1 unjudged

| verdict | value | baseline | change | spread | of limit | test and metric |
|---|--:|--:|--:|--:|--:|---|
| regressed | 354.0 GB/s | 356.0 GB/s | -16.3 % GB/s | 2.4 % | 78.7 % | <code>t.py::test_c&#91;a&#124;b&#96;c &#42;d&#42;&#93;</code> <code>busbw</code> |
| same | 354.0 GB/s | 356.0 GB/s | -0.5 % GB/s | 2.4 % | 78.7 % | <code>t.py::test_a</code> <code>busbw</code> |
| unjudged | 27.00 us |  |  |  |  | <code>t.py::test_b</code> <code>time</code> |

<details><summary>1 test did not run: no GPUs</summary>

- <code>t.py::test_d</code>

</details>

no baselines &#60;written&#62;
"""  # noqa: E501


def findings(*verdicts: Verdict, skips: int = 0) -> Findings:
    found = Findings()
    for number, verdict in enumerate(verdicts):
        outcome = "failed" if verdict.outcome is Outcome.REGRESSED else "passed"
        nodeid = verdict.test if number < 2 else verdicts[1].test
        found.pytest_runtest_logreport(
            report(nodeid=nodeid, outcome=outcome, user_properties=make_verdict_properties([verdict]))
        )
    for number in range(skips):
        found.pytest_runtest_logreport(report("setup", **SKIPPED, nodeid=f"t.py::test_d{number or ''}"))
    return found


def test_the_whole_summary() -> None:
    found = findings(SAME, REGRESSED, skips=1)
    found.verdicts.append(UNJUDGED)
    assert format_markdown(found, ["no baselines <written>"], MIB) == WHOLE


def test_figures_that_were_not_checked_are_in_it() -> None:
    found = findings(SAME)
    found.unchecked.append(("t.py::test_a", "<energy>"))
    said = "\n1 metric with a baseline was not checked: t.py::test_a &#60;energy&#62;\n"
    assert format_markdown(found, [], MIB).endswith(said)


def test_nothing_to_say_is_no_summary() -> None:
    assert format_markdown(Findings(), [], MIB) == ""


def test_tests_alone_are_counted() -> None:
    found = Findings()
    found.pytest_runtest_logreport(report())
    assert format_markdown(found, [], MIB) == "### gpuperf\n\n1 test on ranks: 0 failed, 1 passed, 0 skipped\n"


@pytest.mark.parametrize("limit", [700, 1000, 2000, 10_000])
def test_what_does_not_fit_is_left_out_and_counted(limit: int) -> None:
    many = findings(*(replace(SAME, test=f"t.py::test_ä[{i}]") for i in range(500)), skips=300)
    whole = format_markdown(many, ["closing"], MIB)
    text = format_markdown(many, ["closing"], limit)
    assert limit - 150 < len(text.encode()) <= limit
    rows = text.count("| same |")
    assert 0 < rows < 500
    # 500 rows and the table's head, one block of skips, one closing line.
    assert text.splitlines()[-1] == f"{500 - rows + 2} more lines are left out: GitHub takes 1 MiB for each step."
    assert whole.startswith(text.rpartition("\n\n")[0])
    assert text.count("<details>") == text.count("</details>")


def test_a_name_with_an_at_sign_notifies_nobody() -> None:
    metric = replace(UNJUDGED.metric, unit="@unit")
    found = findings(replace(UNJUDGED, metric=metric, metric_name="@someone", hardware_key="@key"))
    found.unchecked.append(("t.py::test_a", "@unchecked"))
    text = format_markdown(found, ["@closing"], MIB)
    assert text.count("@") == 5
    assert "@" not in re.sub("<code>.*?</code>", "", text)


@pytest.mark.parametrize("room", [0, -5, 20])
def test_without_room_nothing_is_written(room: int) -> None:
    assert format_markdown(findings(SAME), [], room) == ""


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("test_a_b.py::test_c[2ranks]", "test_a_b.py::test_c&#91;2ranks&#93;"),
        ("_a_ b__c", "&#95;a&#95; b&#95;&#95;c"),
        ("<b>&amp;|`*~$\\\"'", "&#60;b&#62;&#38;amp;&#124;&#96;&#42;&#126;&#36;&#92;&#34;&#39;"),
        ("a\r\nb\u2028c\x00d", "a b c d"),
    ],
)
def test_no_name_is_read_as_markdown_or_html(text: str, there: str) -> None:
    assert escape(text) == there


@given(st.text())
def test_escaped_text_stays_in_its_cell(text: str) -> None:
    assert not set(escape(text)) & set("|`<>*\n\r\\[]")
    assert len(escape(text).splitlines()) <= 1
