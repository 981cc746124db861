"""Features of other packages: plugins that load late, judges with their own words, and names that clash."""

import os
import re
from pathlib import Path

import pytest

import pytest_gpuperf.features.day_zero.plugin as day_zero
import pytest_gpuperf.hooks as hooks
from pytest_gpuperf.baselines.plain import FieldError
from pytest_gpuperf.option_names import collect_options
from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.run_journal import make_journal_path
from tests.whole_run import WholeRun, environment, run_pytest, write

JUDGE = """
import pytest
from pytest_gpuperf.run.judging import Judged
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict

class Limit:
    shift, knows = None, False

    def __init__(self, seconds):
        self.seconds = seconds

    def conclude(self, test, body_hash, metrics):
        return [self.verdict(test, *item) for item in metrics.items()]

    def verdict(self, test, name, metric):
        slow = metric.value > self.seconds
        words = f"{'longer' if slow else 'no longer'} than {self.seconds:g} s\\nthe contract has it"
        outcome = Outcome.REGRESSED if slow else Outcome.SAME
        return Verdict(test, name, metric, outcome, "cpu", reason=Reason.OWN_WORDS, detail=words)

    def list_unchecked(self, test, body_hash, metrics):
        return []

def pytest_gpuperf_options():
    return {"--limit": {"type": float, "metavar": "SECONDS", "help": "no metric may be longer"}}

def pytest_gpuperf_judges(config):
    limit = config.option.gpuperf_limit
    return None if limit is None else Judged(Limit(limit), on_cpus=True)

def pytest_gpuperf_objection(item):
    return "the window is shut: wait" if item.name.startswith("test_shut") else None
"""
SECOND = """
from judge import Limit
from pytest_gpuperf.run.judging import Judged

def pytest_gpuperf_judges(config):
    return Judged(Limit(1.0), on_cpus=True)
"""
TAKEN = """
def pytest_addoption(parser):
    parser.addoption("--limit")
"""
TESTS = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(1)
def test_speed(perf):
    perf.check(time=Metric(2.0, "s", "lower"))
"""
SHUT = """
@pytest.mark.ranks(1)
def test_shut(perf): pass

@pytest.mark.ranks(1)
def test_broken(ranks, perf): ranks.run(lambda ctx: 1 / 0)
"""
NOTHING_GIVEN = ("-o", "gpuperf_leases=")
"""Puts the ini key that ``run_pytest`` gives back to its default, so that no run begins by it."""


def run_late(folder: Path, *args: str) -> WholeRun:
    """Runs with the feature, which comes after the plugin has registered its options."""
    path = os.pathsep.join([environment()["PYTHONPATH"], str(folder)])
    return run_pytest(folder, *args, env={"PYTEST_PLUGINS": "judge", "PYTHONPATH": path})


def test_a_judge_of_a_feature_has_its_own_words(tmp_path: Path) -> None:
    folder = write(tmp_path, {"judge.py": JUDGE, "test_it.py": TESTS + SHUT})
    done = run_late(folder, "--limit", "1.5")
    assert done.outcomes == {"test_speed[1rank]": "FAILED", "test_shut[1rank]": "ERROR", "test_broken[1rank]": "FAILED"}
    assert 'pytest "test_it.py::test_broken[1rank]" --smoke' in done.report("test_broken[1rank]")
    assert "time 2.000 s: longer than 1.5 s" in done.text
    assert "  the contract has it" in done.report("test_speed[1rank]")
    assert "baseline" not in done.text
    assert "with gloo\n" in done.text  # and no word of correctness only
    assert "the window is shut: wait" in done.text
    assert "--full-trace" not in done.text


def test_a_judge_of_a_feature_passes_and_judges_no_smoke(tmp_path: Path) -> None:
    folder = write(tmp_path, {"judge.py": JUDGE, "test_it.py": TESTS, "conftest.py": TAKEN})
    done = run_late(folder, "--gpuperf-limit=2.5")
    assert done.outcomes == {"test_speed[1rank]": "PASSED"}
    assert "1 same" in done.text
    done = run_late(folder, "--gpuperf-limit", "1.5", "--smoke")
    assert done.outcomes == {"test_speed[1rank]": "PASSED"}
    assert "with gloo; correctness only\n" in done.text


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("raise OSError('no room')", "raised OSError: no room (/"),
        ("import pytest; pytest.fail('no room')", "raised Failed: no room (/"),
        ("return False", ""),
    ],
)
def test_a_feature_that_cannot_write_fails_the_run_and_nothing_else(tmp_path: Path, ends: str, said: str) -> None:
    feature = f"def pytest_gpuperf_end():\n    {ends}"
    tests = f"{TESTS}\ndef test_wrong(): assert 0, 'so it is'"
    folder = write(tmp_path, {"conftest.py": feature, "test_it.py": tests})
    done = run_pytest(folder, "--smoke", "--gpuperf-json=r.json", "--report=page.html")
    assert "so it is" in done.report("test_wrong")
    assert (folder / "page.html").exists()
    assert not make_journal_path(folder / "r.json").exists()  # or the run would be taken for one that was killed
    assert said in done.text
    assert "results of 1 metric written" in done.text
    assert run_pytest(folder, "--smoke", "-k=speed").result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("raise OSError('no room')", "pytest_gpuperf_end raised OSError: no room (/"),
        ("return False", "conftest.py could not write what it has: the run fails"),
    ],
)
def test_a_feature_that_cannot_write_in_a_worker_fails_the_run(tmp_path: Path, ends: str, said: str) -> None:
    feature = (
        f"def pytest_gpuperf_end(config):\n    if not hasattr(config, 'workerinput'):\n        return True\n    {ends}"
    )
    folder = write(tmp_path, {"conftest.py": feature, "test_it.py": TESTS})
    done = run_pytest(folder, "--smoke", "-n1")
    assert re.search(rf"^gpuperf: gw0: .*{re.escape(said)}", done.text, re.M)
    assert done.result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_does_not_run_replaces_nothing_that_was_written(tmp_path: Path) -> None:
    feature = "def pytest_gpuperf_end(): raise OSError('asked')"
    folder = write(tmp_path, {"conftest.py": feature, "test_it.py": TESTS, "r.json": "whole", "r.json.journal": "kept"})
    done = run_pytest(folder, "--smoke", "--gpuperf-json=r.json", "--report=page.html", "--collect-only")
    assert done.result.ret == pytest.ExitCode.OK
    assert "asked" not in done.text
    assert ((folder / "r.json").read_text(), (folder / "r.json.journal").read_text()) == ("whole", "kept")
    assert not (folder / "page.html").exists()


def test_a_run_begins_if_an_option_of_a_feature_is_given(tmp_path: Path) -> None:
    feature = """
def pytest_gpuperf_options():
    kinds = {"action": "append"}, {"action": "count"}, {"action": "store_false"}, {"type": int, "default": "2"}
    return {f"--tag-{index}": kind for index, kind in enumerate(kinds)}
"""
    folder = write(tmp_path, {"judge.py": feature, "test_it.py": "def test_it(): pass"})
    assert "gpuperf: ranks" not in run_late(folder, *NOTHING_GIVEN).text
    assert "gpuperf: ranks" in run_late(folder, *NOTHING_GIVEN, "--tag-3=3").text


def test_a_run_that_is_refused_while_tests_are_collected_says_why(tmp_path: Path) -> None:
    feature = "import pytest\ndef pytest_gpuperf_check_options(): raise pytest.UsageError('no such project')"
    done = run_pytest(write(tmp_path, {"conftest.py": feature, "test_it.py": TESTS}), *NOTHING_GIVEN)
    assert done.result.ret == pytest.ExitCode.INTERRUPTED
    assert re.search(r"^_+ ERROR collecting test_it.py _+\nno such project\n=", done.text, re.M)


def test_only_one_feature_judges(tmp_path: Path) -> None:
    folder = write(tmp_path, {"judge.py": JUDGE, "test_it.py": TESTS, "conftest.py": SECOND})
    done = run_late(folder, "--limit=1.5")
    assert done.result.ret == pytest.ExitCode.USAGE_ERROR
    words = "one feature judges the metrics of a run, got judge.Limit and judge.Limit: drop the options of all but one"
    assert words in done.text


def test_a_feature_knows_better_what_is_expected() -> None:
    plugins = pytest.PytestPluginManager()
    plugins.add_hookspecs(hooks)

    class Feature:
        @staticmethod
        def pytest_gpuperf_expects() -> str:
            return "ours"

    plugins.register(Feature())
    plugins.register(day_zero)  # pluggy asks first who comes last
    assert plugins.hook.pytest_gpuperf_expects(machine=None, policy=None) == "ours"


@pytest.mark.parametrize(("name", "whose"), [("--smoke", "the core"), ("--mine", "two features")])
def test_options_of_one_name_are_refused(name: str, whose: str) -> None:
    plugins = pytest.PytestPluginManager()
    plugins.import_plugin("pytest_gpuperf.plugin")
    for _ in range(2):

        class Feature:
            @staticmethod
            def pytest_gpuperf_options() -> dict[str, dict[str, str]]:
                return {name: {"help": ""}}

        plugins.register(Feature())
    with pytest.raises(pytest.UsageError, match=f"^pytest_gpuperf_options: {name} is an option of {whose}: rename it"):
        collect_options(plugins)


def test_kinds_of_one_name_are_refused(tmp_path: Path) -> None:
    feature = "from pytest_gpuperf.report.curves import CURVES\ndef pytest_gpuperf_shows(): return [CURVES]"
    done = run_pytest(write(tmp_path, {"conftest.py": feature, "test_it.py": TESTS}), "--smoke")
    assert done.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "pytest_gpuperf_shows: two kinds have the name 'curves': rename one" in done.text


def test_a_value_of_another_form_is_refused_where_it_is_shown() -> None:
    with pytest.raises(FieldError, match=r"^gpuperf_shown_curves\[0\]: got \['test'\], expected a key"):
        CURVES.carry([{"test": "t"}])
