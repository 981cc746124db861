"""What an update of baselines says of itself."""

from pytest_gpuperf.baselines.losses import Loss
from pytest_gpuperf.baselines.merge import Merged
from pytest_gpuperf.baselines.schema import Anchor, Baselines
from pytest_gpuperf.report.recording_lines import update_lines
from tests.baselines.examples import KEY

LOSS = Loss("test_a", "busbw", "B/s", 300e9, 250e9, -1 / 6, 0.05)
DRIFT = Loss("test_b", "time", "s", 1.0, 1.1, -0.1, 0.05, Anchor(1.0, "abc123", "2026-11-01"))


def lines(merged: Merged) -> list[str]:
    return update_lines(merged, lambda test: f"accept {test}")


def test_an_update_that_left_nothing_says_nothing() -> None:
    assert lines(Merged(Baselines(KEY, {}), written=("test_a",))) == []


def test_each_test_that_was_left_is_accounted_for_and_losses_come_last() -> None:
    merged = Merged(
        Baselines(KEY, {}),
        unmoved=("a", "b"),
        present=("c",),
        unfit={"z": "why", "y": "because"},
        refused=(LOSS, DRIFT),
        accepted=(LOSS,),
        dropped=("w", "x"),
    )
    loss = "test_a busbw regressed: 300.0 GB/s -> 250.0 GB/s, 16.7 % worse, bound 5.0 %"
    drift = (
        "test_b time drifted from its anchor of 2026-11-01, commit abc123: 1.000 s -> 1.100 s, "
        "10.0 % worse, bound 5.0 %"
    )
    assert lines(merged) == [
        "2 tests left as they are: no centre moved by 0.5 %",
        "1 tests left as they are: they have baselines, and only new ones are asked",
        "gone with the metrics that were replaced: 'expected' of w: write it anew where it still holds",
        "gone with the metrics that were replaced: 'expected' of x: write it anew where it still holds",
        "not written: y: because",
        "not written: z: why",
        f"accepted: {loss}",
        f"not written: {loss}; accept it with: accept test_a",
        f"not written: {drift}; accept it with: accept test_b",
    ]
