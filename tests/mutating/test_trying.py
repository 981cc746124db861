"""Progress is shown every ten seconds, with the time that is left."""

from pytest_gpuperf.features.mutating.trying import Trying


def test_lines_appear_every_ten_seconds_with_the_time_that_is_left() -> None:
    now, lines = [0.0], list[str]()
    trying = Trying(10, float("inf"), lines.append, lambda: now[0])
    for number in range(1, 11):
        now[0] = 4.0 * number
        trying.note_tried(unnoticed=number % 2 == 0)
    assert lines == [
        "--mutate: 3 of 10 faults tried, 1 unnoticed, 28 s left",
        "--mutate: 6 of 10 faults tried, 3 unnoticed, 16 s left",
        "--mutate: 9 of 10 faults tried, 4 unnoticed, 4 s left",
    ]


def test_a_long_run_has_fewer_lines() -> None:
    now, lines = [0.0], list[str]()
    trying = Trying(2000, float("inf"), lines.append, lambda: now[0])
    for number in range(1, 1001):
        now[0] = float(number)
        trying.note_tried(unnoticed=False)
    assert 30 < len(lines) < 40


def test_no_more_time_is_left_than_the_budget_has() -> None:
    now, lines = [0.0], list[str]()
    trying = Trying(100, 15.0, lines.append, lambda: now[0])
    now[0] = 12.0
    trying.note_tried(unnoticed=False)
    assert lines == ["--mutate: 1 of 100 faults tried, 0 unnoticed, 3 s left"]
