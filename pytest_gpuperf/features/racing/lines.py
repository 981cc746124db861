"""What a run says while it launches more: what for, how often at most, and how long that will take."""

from collections.abc import Sequence

from pytest_gpuperf.report.units import format_count


def describe_second_launch(tests: int) -> str:
    """A second launch of all tests begins, as the metrics of the first one moved all alike."""
    return f"the whole run moved alike: a second launch of {format_count(tests, 'test')} tells whether it does so again"


def describe_clearing(number: int, most: int, tests: Sequence[str], seconds: float) -> str:
    """A launch begins that may clear suspects against their records.

    Args:
        number: Of the launch, 1 and up.
        most: Launches before a race.
        tests: The suspects.
        seconds: That the launch will take.
    """
    return (
        f"worse than expected, launch {number} of at most {most} against the baseline ({format_duration(seconds)}): "
        f"{', '.join(tests)}"
    )


def describe_no_race(number: int, most: int, tests: Sequence[str], seconds: float) -> str:
    """A launch begins of suspects that cannot race, which the record decides alone.

    Args:
        number: Of the launch, 1 and up.
        most: Launches.
        tests: The suspects.
        seconds: That the launch will take.
    """
    takes = format_duration(seconds)
    return f"no race, launch {number} of at most {most} against the baseline ({takes}): {', '.join(tests)}"


def describe_block(number: int, most: int, against: str, tests: Sequence[str], seconds: float) -> str:
    """A block of a race begins: four launches.

    Args:
        number: Of the block, 1 and up.
        most: Blocks.
        against: What the present code races.
        tests: Those that race.
        seconds: That the block will take.
    """
    takes = format_duration(seconds)
    return f"race against {against}, block {number} of at most {most} (4 launches, {takes}): {', '.join(tests)}"


def describe_same_code(number: int, most: int, commit: str, tests: Sequence[str], seconds: float) -> str:
    """A launch begins of suspects whose code is that of their record.

    Args:
        number: Of the launch, 1 and up.
        most: Launches.
        commit: Of the record.
        tests: The suspects.
        seconds: That the launch will take.
    """
    beginning = f"timing the code of the baseline ({commit}), launch {number} of {most}"
    return f"{beginning} ({format_duration(seconds)}): {', '.join(tests)}"


def describe_bisect_step(commit: str, subject: str, tests: int, left: int) -> str:
    """A step of a bisection begins.

    Args:
        commit: That races the good one.
        subject: Of the commit.
        tests: How many race.
        left: Between how many commits the search still has to choose.
    """
    return (
        f"bisect: {format_count(tests, 'test')}, {format_count(left, 'commit')} left: {commit[:12]} {subject!r} races"
    )


def describe_bisection(test: str, commits: Sequence[str], skipped: Sequence[str] = ()) -> str:
    """What a bisection found.

    Args:
        test: Node id.
        commits: The first one that is slower; several if those between could not be raced.
        skipped: Why they could not.
    """
    if len(commits) == 1:
        return f"bisect: {test} is slower since {commits[0]}"
    return f"bisect: {test} is slower since one of {', '.join(commits)}; not decided between them: {'; '.join(skipped)}"


def format_duration(seconds: float) -> str:
    """Return about how long something takes."""
    return f"about {max(1.0, seconds):.0f} s"
