"""The page in a browser: filtered, opened, read by tools for people who do not see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.features.page.content import Content
from pytest_gpuperf.features.page.history import Recorded
from pytest_gpuperf.features.page.html import render_html
from pytest_gpuperf.features.page.page_file import write_page
from pytest_gpuperf.features.page.run import Run
from tests.arms.checkouts import commit
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
    TEST,
    TOPOLOGY,
    results,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # As root in a container, Chromium has no sandbox of its own.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def recorded(center: float) -> str:
    """A file of baselines with one figure."""
    metric = MetricBaseline("B/s", "higher", "cuda_event", (LaunchFigure("l", 9, center),))
    launches = {"l": LaunchInfo("2026-11-20T10:00:00Z", "c", "h", {})}
    return json.dumps(Baselines(KEY, {}, launches, {TEST: TestBaseline("h", {"busbw": metric})}).to_json())


@pytest.fixture(scope="module", params=["light", "dark"])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> tuple[Page, list[str]]:
    """The page, and what its console said."""
    folder = tmp_path_factory.mktemp("page")
    path = folder / "page.html"
    for center in (271e9, 273e9):
        commit(folder, {f"baselines/{KEY}.json": recorded(center)}, "recorded")
    older = results(REGRESSED, at="2026-11-19T10:00:00Z")
    drawn: Any = {"curves": (CURVE,), "matrices": (MATRIX,), "profiles": (PROFILE,), "topology": TOPOLOGY}
    drawn["searches"] = (SEARCH,)
    newer = results(REGRESSED, SAME, ran=[FAILED, SKIPPED], **drawn)
    write_page(path, [("old", older), ("new", newer)], folder / "baselines")
    page = browser.new_page(color_scheme=request.param)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    return page, said


def test_a_test_opens_and_shows_its_charts(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    test = page.locator("details.test").first
    assert test.locator("svg").count() == 0  # nothing is drawn that nobody looks at
    test.locator("summary").click()
    titles = test.locator(".chart-title").all_inner_texts()
    assert titles == [
        "Runs on this page",
        "Launches of the baseline, and this run",
        "The baseline over commits",
        "Samples in the order of time",
    ]
    assert test.locator("svg").count() == 4
    assert "against 273 GB/s" in str(test.locator("[role=img]").nth(1).get_attribute("aria-label"))
    test.locator("summary").click()
    assert not test.locator(".figure").first.is_visible()
    assert said == []


def test_curves_are_drawn_once_they_come_into_view(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    page.locator("#curves").scroll_into_view_if_needed()
    page.locator("#curves svg").wait_for()
    assert said == []


def test_a_timeline_opens_and_the_topology_is_there(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    assert page.locator("svg.topology[role=img] text").count() == 3
    timeline = page.locator("details.timeline")
    assert not timeline.locator("svg.lanes").is_visible()
    timeline.locator("summary").click()
    assert timeline.locator("svg.lanes").is_visible()
    bars = [bar.bounding_box() for bar in timeline.locator("g.compute rect").all()]
    assert len({(bar["x"], bar["width"]) for bar in bars if bar}) == 1
    assert len({bar["y"] for bar in bars if bar}) == 2  # a row of each rank
    timeline.locator("summary").click()
    assert said == []


def test_the_frontier_of_a_search_is_drawn_with_the_names_of_its_configurations(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    page.locator("#configurations").scroll_into_view_if_needed()
    page.locator("#configurations svg").wait_for()
    told = str(page.locator("#configurations [role=img]").get_attribute("aria-label"))
    assert "dp2 is the fastest with 20 ms and 60 GiB. On the frontier: dp2, pp2." in told
    drawn = page.locator("#configurations svg text").all_text_contents()
    assert {"dp2", "pp2", "GiB", "ms"} <= set(drawn)
    assert "tp2" not in drawn
    assert said == []


def test_tests_are_filtered_by_verdict_file_and_text(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    shown, tests = page.locator("#shown"), page.locator("details.test:visible")
    assert shown.inner_text() == "2 of 2 tests are shown"
    page.locator('[name=outcome][value="same"]').uncheck()
    assert (shown.inner_text(), tests.count()) == ("1 of 2 tests are shown", 1)
    page.locator('[name=outcome][value="same"]').check()
    page.locator("[name=text]").fill("overlap 2RANKS")
    assert [test.get_attribute("data-outcome") for test in tests.all()] == ["same"]
    page.locator("[name=text]").fill("")
    page.locator("[name=file]").select_option("suites/collectives/test_performance.py")
    assert [test.get_attribute("data-outcome") for test in tests.all()] == ["regressed"]
    page.locator("[name=file]").select_option("")
    assert said == []


def test_the_keyboard_opens_a_failure(opened: tuple[Page, list[str]]) -> None:
    page, _ = opened
    failure = page.locator("details.failure").first
    failure.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert failure.locator("pre").first.is_visible()


def test_names_from_outside_are_text_in_what_a_chart_shows(tmp_path: Path, browser: Browser) -> None:
    image = "<img src=x>"
    launches = tuple(replace(one, launch=f"{image}{number}") for number, one in enumerate(RECORD.launches))
    bad = replace(REGRESSED, metric_name=image, baseline=replace(RECORD, launches=launches))
    info = LaunchInfo("2026-11-01T10:00:00Z", image, image, {})
    stored = Baselines(KEY, {}, {one.launch: info for one in launches}, {})
    past = [Recorded(image, image, 2.7e11), Recorded(image, f"{image}2", 2.6e11)]
    rows = [{**row, "name": f"{image}{row['name']}"} for row in SEARCH["trials"]]
    measured = results(bad, searches=({**SEARCH, "trials": rows},), curves=({**CURVE, "test": image},))
    content = Content([Run(image, measured), Run(f"{image}2", measured)], {KEY: stored}, {KEY: {(TEST, image): past}})
    path = tmp_path / "page.html"
    path.write_text(render_html(content), encoding="utf-8")
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    page.locator("details.test summary").click()
    page.locator("#configurations svg").wait_for()
    fewest = len(launches) + len(past) + 1
    # A tooltip comes a moment after the mouse, and later on a busy machine.
    found = (shown for pause in (0, 50, 200, 1000) if len(shown := _hovered(page, image, pause)) >= fewest)
    assert next(found, []), "charts show no tooltips"
    assert page.locator("img").count() == 0
    assert said == []


def _hovered(page: Page, name: str, pause: int) -> list[str]:
    """What charts show with a name in it while the mouse is on one mark after the other, so many milliseconds each."""
    shown = []
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        for mark in chart.locator("path").all():
            box = mark.bounding_box()
            if box and 2 < box["width"] < 16 and 2 < box["height"] < 16:
                page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
                page.wait_for_timeout(pause)
                shown += chart.locator("div").all_inner_texts()
    return [text for text in shown if name in text]


def test_a_row_on_top_opens_its_test_also_if_a_filter_hides_it(opened: tuple[Page, list[str]]) -> None:
    page, said = opened
    test = page.locator("details.test").first
    regressed = page.locator('[name=outcome][value="regressed"]')
    for hidden in (False, True):
        regressed.set_checked(not hidden)
        assert test.is_visible() is not hidden
        page.locator("#moved a").first.click()
        assert test.locator(".figure").first.is_visible()
        regressed.check()
        test.locator("summary").click()
    assert said == []


def test_on_a_telephone_the_answer_is_on_the_first_screen_and_nothing_is_cut(
    opened: tuple[Page, list[str]],
) -> None:
    page, _ = opened
    usual = page.viewport_size
    page.set_viewport_size({"width": 400, "height": 800})
    # A busy browser resizes a page some frames after it was asked to.
    page.wait_for_function("innerWidth === 400")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    for part in ("#moved li", "#not-judged"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] < 800
    assert usual is not None
    page.set_viewport_size(usual)


def test_axe_finds_nothing(opened: tuple[Page, list[str]]) -> None:
    axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page, _ = opened
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    page.wait_for_timeout(200)
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
