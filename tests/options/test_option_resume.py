"""``--resume``: a recording that was interrupted goes on with what is missing."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.features.recording.journal import Journal
from pytest_gpuperf.features.recording.recording import Recording
from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error
from tests.options.test_option_update_baselines import KEY, NODE, TEST, baselines, measure, run
from tests.whole_run import environment

OTHER = "test_it.py::test_other[2ranks]"
# Each run that a test makes is told of in ran.txt; the second test does what a file says, once.
TESTS = (
    TEST.replace("    perf.check", '    tell("ran", "speed")\n    perf.check')
    + """
import time

def tell(name, text):
    with FIGURES.with_name(f"{name}.txt").open("a") as file:
        print(text, file=file)

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_other(perf, request):
    trap = FIGURES.with_name("trap.txt")
    tell("ran", "other")
    if "#3" in request.node.name and trap.exists():
        do = trap.read_text()
        trap.unlink()
        exec(do)
    perf.check(time=Metric(1.0, "s", "lower"))
"""
)

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    measure(pytester, 300e9)
    return pytester


def record(project: pytest.Pytester, *more: str) -> pytest.RunResult:
    return run(project, "--update-baselines", "--reason=x", *more)


def interrupt(project: pytest.Pytester, do: str = "raise KeyboardInterrupt") -> pytest.RunResult:
    """A recording that ends in the third of its five launches."""
    (project.path / "trap.txt").write_text(do)
    return project.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x", no_reraise_ctrlc=True)


def ran(project: pytest.Pytester) -> list[str]:
    """The tests that ran since the last call."""
    file = project.path / "ran.txt"
    lines = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def journal_of(project: pytest.Pytester) -> Path:
    return baselines(project).with_name(f".{KEY}.journal")


def assert_complete(project: pytest.Pytester) -> None:
    stored = load(baselines(project), KEY)
    assert stored is not None
    for node, name in ((NODE, "busbw"), (OTHER, "time")):
        assert len(stored.tests[node].metrics[name].launches) == 5
    assert not journal_of(project).exists()


def test_it_goes_on_with_the_launches_that_are_missing(project: pytest.Pytester) -> None:
    result = interrupt(project)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert (
        f"no baselines written: interrupted; what was measured is kept in {journal_of(project)}: "
        "go on with the same command and --resume"
    ) in result.outlines
    assert ran(project) == ["speed", "other"] * 3
    assert not baselines(project).exists()

    result = record(project, "--resume")
    result.assert_outcomes(passed=5, deselected=5)
    assert result.ret == pytest.ExitCode.OK
    assert ran(project) == ["other", "speed", "other", "speed", "other"]
    assert_complete(project)


def test_what_was_measured_is_not_dropped_unasked(project: pytest.Pytester) -> None:
    interrupt(project)
    ran(project)
    message = usage_error(record(project))
    assert message == (
        f"journal {str(journal_of(project))!r}: it keeps metrics of 3 of the 5 launches of this recording: go on with "
        "it by --resume, or drop it by --no-resume"
    )
    assert ran(project) == []
    assert record(project, "--no-resume").ret == pytest.ExitCode.OK
    assert ran(project) == ["speed", "other"] * 5
    assert_complete(project)
    assert record(project, "--no-resume").ret == pytest.ExitCode.OK  # there is nothing to drop


def test_nor_is_what_another_recording_measured(project: pytest.Pytester) -> None:
    interrupt(project)
    message = usage_error(record(project, "-k", "speed"))
    assert message == (
        f"journal {str(journal_of(project))!r}: it keeps metrics of 3 of the 5 launches of another recording: this "
        f"recording is without {OTHER}: go on with that one by its command and --resume, or drop it by --no-resume"
    )
    assert record(project, "--resume").ret == pytest.ExitCode.OK
    assert_complete(project)


def test_what_nobody_can_go_on_with_stops_no_recording(project: pytest.Pytester) -> None:
    interrupt(project)
    journal_of(project).write_text("not a journal\n")
    assert record(project).ret == pytest.ExitCode.OK
    assert not journal_of(project).exists()


def test_a_launch_that_goes_on_elsewhere_is_another_launch(project: pytest.Pytester) -> None:
    interrupt(project)
    record(project, "--resume")
    stored = load(baselines(project), KEY)
    assert stored is not None
    of_speed, of_other = (
        [figure.launch for figure in stored.tests[node].metrics[name].launches]
        for node, name in ((NODE, "busbw"), (OTHER, "time"))
    )
    assert of_speed[:2] == of_other[:2]
    assert of_speed[2] != of_other[2]  # the third, in the processes of the first run and of the second
    assert of_speed[3:] == of_other[3:]


def test_a_run_that_stops_at_its_first_failure_goes_on_too(project: pytest.Pytester) -> None:
    (project.path / "trap.txt").write_text("assert False")
    assert "go on with the same command and --resume" in record(project, "-x").stdout.str()
    assert record(project, "--resume").ret == pytest.ExitCode.OK
    assert_complete(project)


def test_a_run_that_came_to_its_end_leaves_nothing_to_go_on_with(project: pytest.Pytester) -> None:
    interrupt(project, "assert False").assert_outcomes(passed=9, failed=1)
    assert not journal_of(project).exists()
    message = usage_error(record(project, "--resume"))
    assert message == f"journal {str(journal_of(project))!r}: there is none, so nothing was interrupted: drop --resume"


def test_a_recording_that_was_killed_before_it_was_written_is_written_without_measuring(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "save", lambda self, interrupted: self._journal.close())
        record(project)
    ran(project)
    result = record(project, "--resume")
    assert result.ret == pytest.ExitCode.OK
    assert f"baselines of 2 tests written to {baselines(project)}" in result.outlines
    assert ran(project) == []
    assert_complete(project)


def test_what_is_in_the_journal_is_not_collected_again_by_collect_only(project: pytest.Pytester) -> None:
    interrupt(project)
    result = record(project, "--resume", "--collect-only", "-q")
    assert len([line for line in result.outlines if "::" in line]) == 10
    assert journal_of(project).exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--launches=6",),
            "its recording was of launches 5, this one is of 6: pass the same --launches, or record an",
        ),
        (("-k", "speed"), f"this recording is without {OTHER}: select the same tests, or record anew with --no-resume"),
    ],
)
def test_another_selection_is_refused(project: pytest.Pytester, options: tuple[str, ...], problem: str) -> None:
    interrupt(project)
    ran(project)
    assert problem in usage_error(record(project, "--resume", *options))
    assert ran(project) == []
    assert record(project, "--resume").ret == pytest.ExitCode.OK


def test_another_body_is_refused(project: pytest.Pytester) -> None:
    interrupt(project)
    project.makepyfile(test_it=TESTS.replace("samples=9", "samples=8"))
    assert f"this recording is with another body of {NODE}: " in usage_error(record(project, "--resume"))


def test_another_commit_is_refused(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.path.parent))
    monkeypatch.delenv("GITHUB_REF", raising=False)
    monkeypatch.setenv("GITHUB_SHA", "abc")
    interrupt(project)
    monkeypatch.setenv("GITHUB_SHA", "def")
    message = usage_error(record(project, "--resume"))
    assert "its recording was of commit 'abc', this one is of 'def': check that commit out, or record anew" in message


def test_other_software_is_refused_and_nothing_measured(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(project)
    ran(project)
    monkeypatch.setattr(
        "pytest_gpuperf.run.current_ranks.CurrentRanks._read_software", lambda self, size: {"torch": "2.14.0"}
    )
    result = record(project, "--resume")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "its launches ran with torch '2.13.0', now it is '2.14.0': install that version, or" in result.stdout.str()
    assert ran(project) == []
    without_ranks(monkeypatch)
    assert record(project, "--resume").ret == pytest.ExitCode.OK
    assert_complete(project)


def test_a_broken_journal_is_refused(project: pytest.Pytester) -> None:
    interrupt(project)
    journal_of(project).write_text("not a journal\n")
    assert "line 1 is broken: " in usage_error(record(project, "--resume"))


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_without_a_journal_a_recording_comes_to_its_end_and_says_so(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    room = iter(range(lines))

    def write(self: Journal, data: object) -> None:
        if next(room, None) is None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "_write", write)
    result = record(project)
    assert result.ret == pytest.ExitCode.OK
    problem = f"journal {str(journal_of(project))!r}: cannot be written: got OSError(28, 'No space left on device')"
    assert result.outlines.count(problem) == 1
    assert lines == 0 or not journal_of(project).exists()
    assert f"baselines of 2 tests written to {baselines(project)}" in result.outlines


MEANWHILE = """
import shutil
from pathlib import Path

def pytest_runtest_logstart():
    kept = Path(__file__).with_name("kept")
    if kept.exists():
        shutil.move(kept, {journal!r})
"""


def test_a_recording_that_waited_spares_what_another_one_left_meanwhile(project: pytest.Pytester) -> None:
    interrupt(project)
    ran(project)
    kept = journal_of(project).read_bytes()
    journal_of(project).rename(project.path / "kept")
    project.makeconftest(MEANWHILE.format(journal=str(journal_of(project))))
    result = record(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*it keeps metrics of 3 of the 5 launches of this recording: go on with it by*"])
    assert journal_of(project).read_bytes() == kept
    assert ran(project) == []


KILLED = """
import pytest
from tests import fake_gpus
patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
fake_gpus.without_ranks(patch)
"""


def test_a_recording_that_is_killed_outright_goes_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(KILLED)
    pytester.makeini("[pytest]\ngpuperf_leases = leases")
    measure(pytester, 300e9)
    (pytester.path / "trap.txt").write_text("tell('now', 'waiting'); time.sleep(60)")
    command = [sys.executable, "-m", "pytest", "--gpus=2", "--update-baselines", "--reason=x"]
    process = subprocess.Popen(command, cwd=pytester.path, env=environment(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (pytester.path / "now.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    lines = journal_of(pytester).read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines[1:]] == [1, 1, 2, 2, 3]
    ran(pytester)
    done = subprocess.run(
        [*command, "--resume"], cwd=pytester.path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert ran(pytester) == ["other", "speed", "other", "speed", "other"]
    assert_complete(pytester)
