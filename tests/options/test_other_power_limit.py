"""Baselines of GPUs with another power limit: nothing is judged by them, and nothing recorded into them."""

import pytest

from tests.fake_gpus import limit, without_ranks
from tests.options.test_option_gpus import usage_error
from tests.options.test_option_resume import interrupt
from tests.options.test_option_resume import project as resumable
from tests.options.test_option_update_baselines import baselines, measure, project, record, run

__all__ = ["project", "resumable"]

pytestmark = pytest.mark.usefixtures("eight_gpus")

OTHER = "got GPUs with power_limit_w 600.0, expected power_limit_w 700.0"
CURE = (
    "measure with its power limit (nvidia-smi -pl 700), or keep baselines of these GPUs in a folder of their own "
    "(--baselines DIR)"
)


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


def refused(project: pytest.Pytester) -> str:
    what = "as when its metrics were measured: the two cannot be compared"
    return f"baselines '{baselines(project)}': {OTHER}, {what}: {CURE}"


def test_nothing_is_judged_by_them(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    record(project)
    limit(monkeypatch, watts=600.0)
    assert usage_error(run(project)) == refused(project)
    run(project, "--smoke").assert_outcomes(passed=1)
    limit(monkeypatch)
    run(project).assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["moved", "new", "all", "append"])
def test_nothing_is_recorded_into_them(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    record(project)
    before = baselines(project).read_bytes()
    measure(project, 310e9)
    limit(monkeypatch, watts=600.0)
    assert usage_error(run(project, f"--update-baselines={mode}", "--reason=x")) == refused(project)
    assert baselines(project).read_bytes() == before


def test_the_cure_works(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    record(project)
    limit(monkeypatch, watts=600.0)
    record(project, "--baselines=of-600-w").assert_outcomes(passed=5)
    run(project, "--baselines=of-600-w").assert_outcomes(passed=1)


def test_an_interrupted_recording_goes_on_at_the_same_limit_alone(
    resumable: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(resumable)
    limit(monkeypatch, watts=600.0)
    message = usage_error(record(resumable, "--resume"))
    assert message.endswith(
        f"{OTHER}, with which its recording began: go on on the same GPUs, or record anew with --no-resume"
    )
    limit(monkeypatch)
    record(resumable, "--resume")
    assert baselines(resumable).exists()
