"""Beside plugins that order tests, rerun or repeat them: here, conftests do what those do."""

import json
import os
import re
from pathlib import Path

import pytest

from pytest_gpuperf.figures.metric import Metric
from tests.fake_gpus import without_ranks
from tests.scripted_arms import repeat
from tests.scripted_figures import STEADY, TESTS, figures
from tests.whole_run import run_pytest, write

pytestmark = pytest.mark.usefixtures("eight_gpus")

RECORDING = ("--gpus=2", "--update-baselines", "--reason=first")

# As pytest-order: after this plugin has put the launches in their order.
ORDERS = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    yield
    items.sort(key=lambda item: "test_b" not in item.name)
"""

# As pytest-rerunfailures.
RERUNS = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for last in (False, True):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            rerun = report.failed and not last
            if rerun:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
            if rerun:
                break
        else:
            return True
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
"""

# As pytest-retry.
RETRIES = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and report.failed:
        hook, other = item.ihook, pytest.Class.from_parent(item.session, name="Other")
        pytest.CallInfo.from_call(lambda: hook.pytest_runtest_teardown(item=item, nextitem=other), when="teardown")
        report.outcome = "retried"
        hook.pytest_runtest_logreport(report=report)
        item._initrequest()
        pytest.CallInfo.from_call(lambda: hook.pytest_runtest_setup(item=item), when="setup")
        call = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), when="call")
        again = pytest.TestReport.from_item_and_call(item, call)
        report.outcome, report.longrepr = again.outcome, again.longrepr
    return report
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Three perf tests."""
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=STEADY, b=STEADY, c=STEADY)
    return pytester


def listed(result: pytest.RunResult) -> list[str]:
    return [found[1] for line in result.outlines if (found := re.fullmatch(r"\S+::test_(\w(?:#\d)?)\[2ranks\]", line))]


def test_launches_follow_one_another_whoever_orders_the_tests(project: pytest.Pytester) -> None:
    project.makeconftest(ORDERS)
    launches = ["", "#2", "#3", "#4", "#5"]
    assert listed(project.runpytest_inprocess(*RECORDING, "--collect-only", "-q")) == [
        f"{test}{launch}" for launch in launches for test in "bac"
    ]


def test_launches_follow_one_another_with_new_tests_first(project: pytest.Pytester) -> None:
    other = project.makepyfile(test_other=TESTS.replace("test_a", "test_x"))
    os.utime(other, (2**33, 2**33))
    names = listed(project.runpytest_inprocess(*RECORDING, "--collect-only", "-q", "--nf"))
    assert names[:7] == ["x", "b", "c", "a", "b", "c", "x#2"]
    assert len(names) == 6 * 5


MIXED = """
import pytest

def test_plain(): pass

@pytest.mark.ranks(2, 4)
def test_speed(perf): pass

@pytest.mark.ranks(4)
def test_right(ranks): pass
"""


def test_in_each_launch_worlds_follow_one_another_and_other_tests_are_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ORDERS.replace('items.sort(key=lambda item: "test_b" not in item.name)', "items.reverse()"))
    pytester.makepyfile(test_it=MIXED)
    lines = pytester.runpytest_inprocess(*RECORDING, "--gpus=4", "--collect-only", "-q").outlines
    names = [line.partition("::")[2] for line in lines if "::" in line]
    assert sorted(names[:2]) == ["test_plain", "test_right[4ranks]"]
    assert names[2:] == [
        f"test_speed{launch}[{size}ranks]" for launch in ("", "#2", "#3", "#4", "#5") for size in (2, 4)
    ]


DESELECTS = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.originalname != "test_b"]
"""


def test_who_is_last_to_deselect_a_test_deselects_all_its_launches(project: pytest.Pytester) -> None:
    project.makeconftest(DESELECTS)
    names = listed(project.runpytest_inprocess(*RECORDING, "--collect-only", "-q"))
    assert names == [f"{test}{launch}" for launch in ("", "#2", "#3", "#4", "#5") for test in "ac"]


@pytest.mark.parametrize("plugin", [RERUNS, RETRIES], ids=["in the protocol", "in the report"])
def test_a_recorded_test_that_fails_is_not_run_until_it_passes(project: pytest.Pytester, plugin: str) -> None:
    project.makeconftest(plugin)
    figures(project, a=[100e9, None, 100e9], b=[100e9, 500e9, 100e9])  # the latter is above its limit
    result = project.runpytest_inprocess(*RECORDING)
    result.assert_outcomes(passed=13, failed=2)
    assert "14 metrics on 2x-nvidia-h200-nv18: 1 invalid, 13 recorded" in result.outlines
    told = [line.partition(": record")[0] for line in result.outlines if line.startswith("not written: ")]
    assert told == [f"not written: test_it.py::test_{name}[2ranks]: it failed in launch 2 of 5" for name in "ab"]


PASSES_LATER = """
import pytest
from pathlib import Path
from pytest_gpuperf import Metric

@pytest.mark.ranks(1)
def test_it(FIXTURE):
    attempts = Path(__file__).with_name("attempts")
    first = not attempts.exists()
    attempts.touch()
    assert not first
    if hasattr(FIXTURE, "check"):
        FIXTURE.check(time=Metric(1.0, "s", "lower"))
"""

# A plugin that comes later than this one's hooks.
RERUNS_LATE = (
    RERUNS.replace("def pytest_runtest_protocol", "def reruns")
    + """
class Late:
    pytest_runtest_protocol = staticmethod(reruns)

def pytest_sessionstart(session):
    session.config.pluginmanager.register(Late())
"""
)


def test_of_a_recording_other_tests_may_be_run_until_they_pass(project: pytest.Pytester) -> None:
    project.makeconftest(RERUNS_LATE)
    figures(project, a=[100e9, None, 100e9])
    project.makepyfile(test_other=PASSES_LATER.replace("FIXTURE", "ranks"))
    outcomes = project.runpytest_inprocess(*RECORDING).parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["rerun"]) == (15, 1, 1)


def test_launches_share_fixtures_of_a_wider_scope(project: pytest.Pytester) -> None:
    project.runpytest_inprocess(*RECORDING)
    log = (project.path / "log").read_text().splitlines()
    assert (log[0], log[-1], len(log)) == ("module up", "module down", 2 + 2 * 10)  # the others are of the test's own


def test_each_test_of_a_recording_is_announced_and_concluded(project: pytest.Pytester) -> None:
    calls = project.inline_run(*RECORDING)
    for hook in ("pytest_runtest_logstart", "pytest_runtest_logfinish"):
        assert len({call.nodeid for call in calls.getcalls(hook)}) == len(calls.getcalls(hook)) == 15


@pytest.mark.parametrize("plugin", [RERUNS, RETRIES], ids=["in the protocol", "in the report"])
def test_a_judged_test_that_fails_is_not_run_until_it_passes(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: str
) -> None:
    assert project.runpytest_inprocess(*RECORDING).ret == 0
    repeat(monkeypatch, lambda: {"busbw": Metric(90e9, "B/s", "higher", limit=450e9, clock="host")})
    project.makeconftest(plugin)
    figures(project, a=[None, 100e9], b=[90e9], c=[500e9, 100e9])
    result = project.runpytest_inprocess("--gpus=2", "--gpuperf-json=results.json")
    result.assert_outcomes(failed=3)
    assert "2 metrics on 2x-nvidia-h200-nv18: 1 invalid, 1 regressed" in result.outlines
    assert "RuntimeError: this launch came to nothing" in result.stdout.str()
    assert len(json.loads((project.path / "results.json").read_text())["verdicts"]) == 2


FAILS_ONCE = """
import pytest
from pathlib import Path

@pytest.mark.ranks(1)
def test_it(ranks, record_property):
    record_property("mine", 1)
    attempts = Path(__file__).with_name("attempts")
    first = not attempts.exists()
    attempts.touch()
    def program(ctx):
        assert not first
    ranks.run(program)
"""


def test_of_a_failed_attempt_nothing_stands_under_one_that_passed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        RERUNS
        + """
def pytest_itemcollected(item):
    item.user_properties.append(("theirs", 1))

def pytest_runtest_logreport(report):
    print("\\n" + report.outcome, report.when, [name for name, _ in report.user_properties])
"""
    )
    pytester.makepyfile(FAILS_ONCE)
    lines = pytester.runpytest_inprocess("--capture=no").outlines
    told = {line.partition(" [")[0]: line for line in lines if " call [" in line}
    assert "gpuperf_rank" in told["rerun call"]
    assert "gpuperf" not in told["passed call"]
    assert "['theirs', 'mine'" in told["passed call"]


@pytest.mark.parametrize("plugin", [RERUNS, RETRIES], ids=["in the protocol", "in the report"])
@pytest.mark.parametrize(
    ("fixture", "options"), [("ranks", ()), ("ranks", ("--gpus=2",)), ("perf", ("--gpus=2", "--smoke"))]
)
def test_what_is_not_judged_may_be_run_until_it_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugin: str, fixture: str, options: tuple[str, ...]
) -> None:
    without_ranks(monkeypatch)
    pytester.makeconftest(plugin)
    pytester.makepyfile(PASSES_LATER.replace("FIXTURE", fixture))
    outcomes = pytester.runpytest_inprocess(*options).parseoutcomes()
    assert (outcomes["passed"], outcomes.get("failed")) == (1, None)


# As pytest-cov, which gathers what other processes have written by then.
GATHERS = """
import os
from pathlib import Path
import pytest

def has_ended(pid):  # and so has written all that it ever will, also if its parent has not taken notice yet
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    yield
    for pid in Path(__file__).with_name("pids").read_text().split():
        print("ended" if has_ended(pid) else "alive")
"""

TELLS_ITS_RANKS = """
import os
from pathlib import Path
import pytest

@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", [1, 2])
def test_it(ranks, n):
    pids = ranks.run(lambda ctx: os.getpid())
    Path(__file__).with_name("pids").write_text(" ".join(map(str, pids)))
"""


def test_ranks_have_ended_when_other_plugins_gather_what_they_left(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(GATHERS)
    pytester.makepyfile(TELLS_ITS_RANKS)
    result = pytester.runpytest_inprocess("--capture=no")
    result.assert_outcomes(passed=2)
    assert sum(line.endswith("ended") for line in result.outlines) == 2


HOLDS = """
import weakref
import pytest

class Held: pass

REFERENCES = []

@pytest.mark.ranks(1)
@pytest.mark.parametrize("n", [1, 2])
def test_it(perf, n):
    held = Held()
    REFERENCES.append(weakref.ref(held))
    assert False
"""

COUNTS = """
import gc
from tests import fake_gpus
import pytest

patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
fake_gpus.without_ranks(patch)

def pytest_sessionfinish():
    import sys, test_it
    for name in ("last_value", "last_exc", "last_traceback"):
        setattr(sys, name, None)
    gc.collect()
    print("\\nheld:", sum(reference() is not None for reference in test_it.REFERENCES), "of", len(test_it.REFERENCES))
"""


@pytest.mark.parametrize(
    "options", [(), ("--update-baselines", "--reason=x", "--launches=5")], ids=["judged", "recorded"]
)
def test_what_a_failed_perf_test_had_at_hand_is_let_go(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path, {"test_it.py": HOLDS, "conftest.py": COUNTS})
    lines = run_pytest(tmp_path, "--gpus=2", "--capture=no", *options).result.outlines
    assert f"held: 0 of {10 if options else 2}" in lines
