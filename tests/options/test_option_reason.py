"""``--reason``: why baselines were recorded."""

import pytest

from pytest_gpuperf.baselines.json_files import load
from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error
from tests.options.test_option_update_baselines import KEY, TEST

pytestmark = pytest.mark.usefixtures("eight_gpus")


def test_it_is_of_a_recording_only(pytester: pytest.Pytester) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", "--reason=because"))
    assert message == "--reason is stored with recorded baselines: add --update-baselines"


@pytest.mark.parametrize("options", [(), ("--reason=",), ("--reason", "  ")])
def test_a_recording_needs_it(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", "--update-baselines", *options))
    assert message == "--update-baselines keeps beside the metrics why they changed: add --reason TEXT"


def test_it_is_kept_in_the_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TEST)
    (pytester.path / "figures.txt").write_text("3e11")
    result = pytester.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason", "NCCL 2.28.9")
    result.assert_outcomes(passed=5)
    stored = load(pytester.path / "baselines" / f"{KEY}.json", KEY)
    assert stored is not None
    assert [update.reason for update in stored.updates] == ["NCCL 2.28.9"]
