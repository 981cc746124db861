"""The page as text: what it holds, and that nothing that a test brings is more than text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html import unescape
from importlib.resources import files

from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo
from pytest_gpuperf.features.page.content import Content
from pytest_gpuperf.features.page.history import Recorded
from pytest_gpuperf.features.page.html import render_html
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.features.page.timelines import MOST, make_timelines
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.topology import Topology
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.results_file import Raced
from pytest_gpuperf.traces.profile import Lane
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.share import Share
from tests.page.examples import (
    CURVE,
    FAILED,
    KEY,
    MATRIX,
    PROFILE,
    RECORD,
    REGRESSED,
    SAME,
    SEARCH,
    SKIPPED,
    SUMMARY,
    TEST,
    TOPOLOGY,
    results,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7 * 7 }}\x1b[31m"
WHOLE = results(
    REGRESSED,
    SAME,
    ran=[FAILED, SKIPPED],
    curves=(CURVE,),
    matrices=(MATRIX,),
    profiles=(PROFILE,),
    topology=TOPOLOGY,
    searches=(SEARCH,),
)


def page(*runs: Run) -> str:
    return render_html(Content(runs or [Run("this run", WHOLE)]))


def markup(text: str) -> str:
    """The page without the scripts that run."""
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_the_page_says_what_the_run_came_to() -> None:
    text = page()
    assert "2 tests with metrics: 1 regressed. 2 tests on ranks: 1 failed, 1 skipped." in text
    for said in (
        "214.0 GB/s",
        "47.6 % of nv18",
        "-20.0 %",
        "rank 1 of 2 is in all_reduce",
        "needs 8 GPUs",
        "232.0 GB/s",
    ):
        assert said in text
    assert "327.7 MB/s at 32 KiB" not in text
    assert "3.277 GB/s at 32 KiB: its neighbours promise 100.0 GB/s" in text
    assert "1 pair slower by more than 10 %" in text


def test_the_page_says_which_figures_are_the_hosts_and_which_steps_wait() -> None:
    assert "bound by the host" not in page()
    late = replace(REGRESSED, metric=replace(REGRESSED.metric, host_bound=True))
    text = page(Run("this run", results(late)))
    assert "cuda_event, bound by the host" in text
    assert "which waits for the device" not in text
    waiting = replace(late, metric=replace(late.metric, waits=True))
    assert "cuda_event, bound by the host, which waits for the device" in page(Run("this run", results(waiting)))


def test_a_profile_has_a_timeline_and_the_times_of_its_ranks() -> None:
    text = page()
    assert "rank 1 has the most exposed communication: 600.0 us of 2.000 ms (30.0 %); 25.0 % by perf.overlap" in text
    assert "communication kernel: 1.000 ms from 500.0 us on" in text
    assert text.count("<g class=") == 8
    assert "gpuperf-profiles/overlap.json.gz" in text


def test_timelines_of_many_profiles_have_few_enough_intervals_together() -> None:
    lane = Lane(
        0, "compute", "stream 7", tuple((1e-6 * 1.003**number, 1e-9 * 1.003**number, "k") for number in range(2000))
    )
    many = [replace(PROFILE, test=str(number), lanes=(lane,)) for number in range(60)]
    bars = sum(len(row.bars) for timeline in make_timelines(many) for row in timeline.rows)
    assert MOST / 8 < bars <= MOST


def test_the_topology_is_a_picture_and_a_table() -> None:
    text = page()
    assert "3 x NVIDIA H200: NV18 between 1 pair, PIX between 1 pair, SYS between 1 pair" in text
    assert "GPU 0 and GPU 2: SYS" in text
    (picture,) = Content([Run("this run", WHOLE)]).pictures
    assert [line.kind for line in picture.lines] == ["far", "near", "nvlink"]
    assert picture.kinds == [("nvlink", "NV18"), ("near", "PIX"), ("far", "SYS")]
    assert picture.rows == [["X", "NV18", "SYS"], ["NV18", "X", "PIX"], ["SYS", "PIX", "X"]]
    assert len({(place.x, place.y) for place in picture.places}) == 3


def test_one_gpu_has_no_picture() -> None:
    alone = results(SAME, topology=Topology(("NVIDIA H100",), ()))
    assert Content([Run("this run", alone)]).pictures == []


def test_the_page_has_the_table_of_a_search_and_its_frontier() -> None:
    text = page()
    said = unescape(markup(text))
    assert "dp2 is the fastest of 3 configurations, 25.0 % ahead of tp2; 2 did not run" in said
    assert '<th scope="row">pp2</th><td>40.00 ms</td><td>204.8 ktoken/s</td><td>20.0 %</td><td>31.5 GiB</td>' in said
    assert '<td colspan="6">does not fit: needs 143.2 GiB, 139.8 GiB are there</td>' in said
    assert '"kind":"frontier","unit":"ms","memory_unit":"GiB","trials":[["dp2",60.0,20.0,true],' in text
    unknown = {**SEARCH, "trials": [{**row, "peak_bytes": None} for row in SEARCH["trials"]]}
    assert '"kind":"frontier"' not in page(Run("this run", results(SAME, searches=(unknown,))))


def test_the_verdict_on_the_machine_is_on_top_with_its_components_and_remarks() -> None:
    text = markup(page(Run("this run", replace(WHOLE, summary=SUMMARY))))
    assert '<p class="verdict unfit">unfit: collectives</p>' in text
    assert text.index("unfit: collectives") < text.index('<section id="components"') < text.index('id="failures"')
    assert '<a href="#components">Components</a>' in text
    assert '<th scope="col">what speaks for it</th>' in text
    for component, state, css, what in (
        ("host", "ok", "ok", "cores[2ranks] share 0.969x"),
        ("collectives", "slow", "slow", "curve[2ranks-send_recv] peak 23.60 GB/s (because: NCCL_P2P_DISABLE=1)"),
        ("network", "not judged", "not-judged", "no RDMA device"),
    ):
        row = f'<th scope="row">{component}</th><td><span class="badge {css}">{state}</span></td><td>{what}</td>'
        assert row in text
    assert '<ul class="remarks"><li>governor: the governor is powersave</li></ul>' in text


def test_a_verdict_without_remarks_has_no_list_of_them() -> None:
    fit = {**SUMMARY, "title": "fit", "verdict": "fit", "remarks": []}
    text = markup(page(Run("this run", replace(WHOLE, summary=fit))))
    assert '<p class="verdict fit">fit</p>' in text
    assert "Remarks" not in text
    remarks = {**SUMMARY, "verdict": "fit, with remarks"}
    assert '<p class="verdict fit">' in page(Run("this run", replace(WHOLE, summary=remarks)))


def test_a_run_that_nobody_summed_up_has_no_components() -> None:
    text = markup(page())
    assert 'id="components"' not in text
    assert 'href="#components"' not in text
    assert 'class="verdict' not in text


def test_of_several_runs_the_newest_verdict_leads() -> None:
    older = replace(WHOLE, summary={**SUMMARY, "title": "fit", "verdict": "fit"})
    text = page(Run("new", replace(WHOLE, summary=SUMMARY)), Run("old", older))
    assert '<p class="verdict unfit">unfit: collectives</p>' in text
    assert '<p class="verdict fit">' not in text
    assert '<p class="verdict fit">fit</p>' in page(Run("new", WHOLE), Run("old", older))


def test_pairs_of_hosts_have_their_names() -> None:
    rows = [[None, 40e9, 20e9], [40e9, None, 40e9], [20e9, 40e9, None]]
    hosts = {**MATRIX, "rows": rows, "names": ["gpu-a", "gpu-b", "gpu-c"]}
    text = unescape(markup(page(Run("this run", results(SAME, matrices=(hosts,))))))
    assert '<th scope="col">gpu-a</th><th scope="col">gpu-b</th><th scope="col">gpu-c</th>' in text
    assert '<tr><th scope="row">gpu-c</th><td class="slow"' in text
    assert "1 pair slower by more than 10 %" in text
    of_ranks = unescape(markup(page(Run("this run", results(SAME, matrices=(MATRIX,))))))
    assert '<th scope="row">2</th>' in of_ranks


def test_the_page_loads_nothing() -> None:
    text = page()
    own = markup(text)
    assert set(re.findall(r"(?:src|href)=(.)(.)", own)) == {('"', "#")}
    assert not re.search(r"url\(|@import|https?:", own)
    assert "default-src 'none'" in text


def test_no_form_sends_anything() -> None:
    assert "; form-action 'none'\"" in page()


def test_tooltips_are_escaped_whatever_is_in_them() -> None:
    script = (files("pytest_gpuperf.features.page") / "assets" / "page.js").read_text()
    shown = re.findall(r"\btip: (?!tip\()|tooltip\.formatter = \(item\) => (?!tip\(|item\.data\.tip;)", script)
    assert shown == []
    assert script.count("tip(") > 6
    assert re.findall(r"^.*<br>.*$", script, flags=re.MULTILINE) == [
        '  const tip = (...lines) => lines.map((line) => echarts.format.encodeHTML(line)).join("<br>");'
    ]


def test_a_number_beyond_json_is_left_out_of_a_chart() -> None:
    extreme = replace(REGRESSED, metric=Metric(1e-300, "s", "lower", trace=(1e300, 1e300)))
    assert '"trace":[null,null]' in page(Run("this run", results(extreme)))


def test_the_policy_names_the_scripts_that_are_there() -> None:
    text = page()
    named = set(re.findall(r"'sha256-([^']+)'", unescape(markup(text))))
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts} == named
    assert len(scripts) == 2


def test_names_from_outside_are_text_alone() -> None:
    bad = replace(REGRESSED, test=f"t.py::test_{HOSTILE}", metric_name=HOSTILE, against=HOSTILE)
    ran = Ran(HOSTILE, "failed", 1.0, HOSTILE, 1, HOSTILE, HOSTILE, ((HOSTILE, HOSTILE),))
    lane = Lane(0, "compute", HOSTILE, ((0.0, 1.0, HOSTILE),))
    hostile = results(
        bad,
        ran=[ran, replace(ran, test="s", outcome="skipped")],
        environment={HOSTILE: HOSTILE},
        curves=({**CURVE, "test": HOSTILE},),
        matrices=({**MATRIX, "name": HOSTILE},),
        profiles=(replace(PROFILE, test=HOSTILE, file=HOSTILE, lanes=(lane,)),),
        topology=replace(TOPOLOGY, gpus=(HOSTILE,) * 3),
        searches=({**SEARCH, "name": HOSTILE, "trials": [{**row, "name": HOSTILE} for row in SEARCH["trials"]]},),
        summary={**SUMMARY, "title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE] * 3], "remarks": [HOSTILE]},
    )
    text = markup(page(Run(HOSTILE, hostile)))
    assert text.count("<script") == 1  # the charts' data
    assert "<img" not in text
    assert "onerror=alert(2)&gt;" in text
    assert "{{ 7 * 7 }}" in text


def test_a_page_of_300_tests_is_below_5_mb() -> None:
    """Three figures a test, each with 200 samples of all digits, 25 launches and 50 commits."""
    starts = [f"2026-11-{day:02}T10:00:00Z-1-a" for day in range(1, 26)]
    record = replace(RECORD, launches=tuple(LaunchFigure(at, 9, 270e9 / 7 * day) for day, at in enumerate(starts, 20)))
    trace = tuple(213e9 / 7 * (100 + number) for number in range(200))
    metric = replace(REGRESSED.metric, trace=trace)
    many = [
        replace(REGRESSED, test=f"{TEST}-{number}", metric_name=name, metric=metric, baseline=record)
        for number in range(300)
        for name in ("busbw", "time", "peak")
    ]
    past = [Recorded(f"{number:040}", "2026-11-01T10:00:00+00:00", 1e11 / 7 * number) for number in range(50)]
    stored = Baselines(KEY, {}, {at: LaunchInfo(at[:20], "c0ffee" * 6 + "cafe", "gpu-a", {}) for at in starts}, {})
    history = {(one.test, one.metric_name): past for one in many}
    ran = [replace(FAILED, test=one.test, outcome="passed", text="", sections=()) for one in many[::3]]
    text = render_html(Content([Run("many", results(*many, ran=ran))], {KEY: stored}, {KEY: history}))
    assert 2_000_000 < len(text) < 5_000_000


def test_a_launch_and_a_commit_that_many_figures_share_are_on_the_page_once() -> None:
    others = [replace(REGRESSED, test=f"{TEST}-{number}") for number in range(3)]
    past = [Recorded("7ba55ceb3f60", "2026-11-01T10:00:00+00:00", 270e9), Recorded("c0ffee00cafe", "2026-11-02", 1e9)]
    launches = {"2026-11-01T10:00:00Z-1-a": LaunchInfo("2026-11-01T10:00:00Z", "feedbeef" * 5, "gpu-a", {})}
    history = {(one.test, "busbw"): past for one in others}
    content = Content([Run("now", results(*others))], {KEY: Baselines(KEY, {}, launches, {})}, {KEY: history})
    text = render_html(content)
    assert text.count("gpu-a feedbeeffeed") == 1
    assert text.count("7ba55ceb3f60") == 1
    drawings = json.loads(text.partition('id="drawings">')[2].partition("</script>")[0])
    chart = drawings["charts"]["f2-0"]
    first = chart["launches"][0]
    assert (drawings["moments"][first[0]], first[1]) == (["2026-11-01T10:00:00Z", "gpu-a feedbeeffeed"], 271.0)
    assert [(drawings["moments"][place][0], center) for place, center in chart["history"]] == [
        ("2026-11-01", 270.0),
        ("2026-11-02", 1.0),
    ]


def test_a_run_without_figures_has_a_page_too() -> None:
    assert "No test ran on ranks." in page(Run("empty", results()))
    assert "1 test on ranks: 1 skipped." in page(Run("empty", results(ran=[SKIPPED])))


def test_several_runs_are_shown_side_by_side_and_the_newest_leads() -> None:
    older = results(replace(REGRESSED, metric=replace(REGRESSED.metric, value=270e9)), at="2026-11-19T10:00:00Z")
    content = Content([Run("new", WHOLE), Run("old", older)])
    (figure,) = [
        figure
        for subject in content.subjects
        for test in subject.tests
        for figure in test.figures
        if figure.name == "busbw"
    ]
    assert figure.value == "214.0 GB/s"
    assert figure.drawing["runs"] == [["old", 270.0, "regressed"], ["new", 214.0, "regressed"]]


def test_hardware_of_two_keys_is_told_apart() -> None:
    other = results(replace(SAME, hardware_key="4x-b"), key="4x-b")
    text = page(Run("a", WHOLE), Run("b", other))
    assert f"<h1>{KEY}, 4x-b</h1>" in text
    assert "· 4x-b</span>" in text


def test_what_differs_from_the_baselines_is_marked() -> None:
    recorded = results(SAME, environment={"torch": "2.10.0", "NCCL_ALGO": "Ring", "cuda": "13.0"}).candidate
    stored = Baselines(KEY, {}, recorded.launches, recorded.tests)
    (environment,) = Content([Run("a", WHOLE)], {KEY: stored}).environments
    assert environment.rows == [("torch", "2.11.0", "2.10.0"), ("NCCL_ALGO", "Ring", "")]


def test_the_charts_library_is_the_published_one() -> None:
    asset = (files("pytest_gpuperf.features.page") / "assets" / "echarts.min.js").read_bytes()
    notice = (files("pytest_gpuperf.features.page") / "assets" / "NOTICE-echarts.txt").read_text()
    assert hashlib.sha256(asset).hexdigest() in notice


def test_figures_without_a_record_that_are_as_expected_are_no_alarm() -> None:
    missing = replace(REGRESSED, outcome=Outcome.MISSING, baseline=None, change=None, bound=None, code=None)
    expected = replace(missing, reason=Reason.PLAUSIBLE, environment=None)
    text = page(Run("this run", results(expected)))
    assert "1 test with metrics, none of them worse." in text
    assert '<span class="badge missing passes">missing</span>' in text
    below = page(Run("this run", results(replace(expected, reason=Reason.BELOW))))
    assert "1 test with metrics: 1 missing." in below
    assert '<span class="badge missing">missing</span>' in below
    assert "missing passes" not in below.partition("</style>")[2]


def test_what_moved_and_what_could_not_be_judged_come_before_failures_and_tests() -> None:
    improved = replace(SAME, outcome=Outcome.IMPROVED, change=0.1)
    missing = replace(SAME, test="t.py::test_new", outcome=Outcome.MISSING, reason=Reason.NO_RECORD, baseline=None)
    text = markup(page(Run("this run", results(improved, missing, REGRESSED, ran=[FAILED, SKIPPED]))))
    places = [text.index(f'<section id="{name}"') for name in ("moved", "not-judged", "failures", "tests")]
    assert places == sorted(places)
    assert re.findall(r'<li><a href="#(f\d-0)">\s*<span class="badge (\w+)', text) == [
        ("f2-0", "regressed"),
        ("f0-0", "improved"),
    ]
    assert "214.0 GB/s: 20.0 % slower than 273.0 GB/s, because of the code" in text
    assert "Old: 273.0 GB/s in 5 launches, 271.0 GB/s to 275.0 GB/s. New: 214.0 GB/s.</title>" in text
    assert "1 test did not run" in text
    ((group, *others),) = [Content([Run("this run", results(missing, SAME))]).not_judged]
    assert (group.why, [row.test.name for row in group.rows], others) == ("no baseline", ["test_new"], [])


def test_launches_of_this_run_are_points_beside_those_of_the_baseline() -> None:
    slow = results(REGRESSED)
    again = replace(slow.candidate.launches["l"], at="2026-11-20T10:01:00Z")
    measured = slow.candidate.tests[TEST].metrics["busbw"]
    twice = replace(measured, launches=(*measured.launches, LaunchFigure("m", 9, 216e9)))
    tests = {TEST: replace(slow.candidate.tests[TEST], metrics={"busbw": twice})}
    candidate = replace(slow.candidate, launches={**slow.candidate.launches, "m": again}, tests=tests)
    text = page(Run("this run", replace(slow, candidate=candidate)))
    (places,) = re.findall(r'<path class="old" d="(\S+ .*?)"/><path class="regressed" d="(.*?)"/>', text)
    assert [drawn.count("M") for drawn in places] == [5, 2]


def test_a_figure_that_is_the_same_has_no_row_on_top() -> None:
    text = markup(page(Run("this run", results(SAME))))
    for name in ("moved", "not-judged", "failures"):
        assert f'id="{name}"' not in text
        assert f'href="#{name}"' not in text


def test_the_row_of_a_test_has_its_worst_figure() -> None:
    improved = replace(REGRESSED, metric_name="time", outcome=Outcome.IMPROVED)
    (row,) = Content([Run("this run", results(improved, REGRESSED))]).moved
    assert (row.figure.name, row.more) == ("busbw", 1)
    assert "busbw +1</span>" in page(Run("this run", results(improved, REGRESSED))).partition('id="tests"')[0]


def test_of_many_tests_that_moved_twelve_are_shown_at_once() -> None:
    many = [replace(REGRESSED, test=f"{TEST}{number}") for number in range(15)]
    section = page(Run("this run", results(*many))).partition('<section id="moved"')[2].partition("</section>")[0]
    first, _, rest = section.partition("<summary>3 more</summary>")
    assert (first.count("<li>"), rest.count("<li>")) == (12, 3)


def test_every_outcome_moved_or_is_judged_or_says_why_not() -> None:
    for outcome in Outcome:
        verdict = replace(REGRESSED, outcome=outcome, expected=None)
        content = Content([Run("this run", results(verdict))])
        fine = outcome in (Outcome.SAME, Outcome.RECORDED, Outcome.UNJUDGED)
        assert len(content.moved) + len(content.not_judged) == (0 if fine else 1), outcome


RACED = Raced("2026-11-20T10:00:00Z", "gpu-a", "HEAD~1", "7ba55cce" * 5, "c0ffee00" * 5, dirty=True)
CONTEST = replace(
    REGRESSED,
    metric_name="time",
    metric=Metric(7.185e-3, "s", "lower"),
    baseline=None,
    change=None,
    bound=None,
    against="HEAD~1",
    old=5.208e-3,
    code=Share(-0.376, (-0.415, -0.339), 4),
    environment=None,
)


def test_a_race_shows_both_arms() -> None:
    content = Content([Run("this run", replace(results(CONTEST), candidate=results().candidate, raced=RACED))])
    text = unescape(markup(render_html(content)))
    assert "measured nothing" not in text
    assert "2026-11-20T10:00:00Z · gpu-a · c0ffee00c0ff with uncommitted changes, against HEAD~1 (7ba55cce7ba5)" in text
    assert '<span class="change">+37.6 % time</span>' in text
    assert '<span class="value">5.208 ms → 7.185 ms</span>' in text
    ((figure,),) = [test.figures for subject in content.subjects for test in subject.tests]
    facts = {fact.name: fact.value for fact in figure.facts}
    assert facts["old code, HEAD~1 (7ba55cce7ba5)"] == "5.208 ms"
    assert facts["this code, c0ffee00c0ff with uncommitted changes"] == "7.185 ms"
    assert facts["change between the two codes"] == "+37.6 % time (+33.9 % to +41.5 %)"


def test_a_race_of_two_interpreters_names_the_other_one() -> None:
    raced = replace(RACED, against="/opt/new/bin/python", old_commit="", dirty=False)
    text = page(Run("this run", replace(results(CONTEST), raced=raced)))
    assert "c0ffee00c0ff, against /opt/new/bin/python" in text


def test_a_smoke_run_says_so_and_shows_no_rates() -> None:
    shown = replace(REGRESSED, outcome=Outcome.UNJUDGED, baseline=None, change=None, code=None, environment=None)
    smoke = replace(results(shown, replace(shown, metric_name="time"), ran=[SKIPPED]), smoke=True)
    text = markup(page(Run("this run", smoke)))
    assert "smoke: 1 perf test ran its body once, and nothing was timed. 1 test on ranks: 1 skipped." in text
    assert f"<li>{TEST}</li>" in text
    assert "214.0 GB/s" not in text
    assert "<dd>smoke · 2026-11-20T10:00:00Z" in text
    both = Content([Run("smoke", smoke), Run("real", WHOLE)])
    assert "214.0 GB/s" in render_html(both)
    assert "2 tests with metrics: 1 regressed." in both.sentence
