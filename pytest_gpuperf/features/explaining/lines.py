"""Says what ``--explain`` is going to try, and how long that takes."""

from collections.abc import Sequence

from pytest_gpuperf.features.racing.lines import format_duration
from pytest_gpuperf.report.units import format_count

_FEWEST_BLOCKS = 2  # of a race that accuses or clears a steady metric


def describe_start(
    variables: Sequence[str], figures: int, start: float, block: float, most_blocks: int, more_races: int
) -> str:
    """Return what ``--explain`` is going to try, and how long that takes.

    Args:
        variables: That differ from the record and can be put back.
        figures: How many moved.
        start: Seconds in which the processes of a race collect their tests.
        block: Seconds of four launches of their tests.
        most_blocks: Of a race.
        more_races: How many races at most find which of the variables matter.
    """
    usual, most = format_duration(start + _FEWEST_BLOCKS * block), format_duration(start + most_blocks * block)
    then = (
        f"; if they explain it, at most {format_count(more_races, 'race')} more of that length will find which of them"
        if more_races
        else ""
    )
    return (
        f"explain: {format_count(figures, 'metric')} moved and {', '.join(variables)} "
        f"{'differs' if len(variables) == 1 else 'differ'} from the baseline: a race with the baseline's "
        f"{'value' if len(variables) == 1 else 'values'} takes {usual} if launches are steady, at most {most}{then}"
    )


def describe_block(variables: Sequence[str], number: int, most: int, tests: Sequence[str], seconds: float) -> str:
    """A block of such a race begins: four launches.

    Args:
        variables: That have the record's values in one of the arms.
        number: Of the block, 1 and up.
        most: Blocks.
        tests: Those that race.
        seconds: That the block will take.
    """
    return (
        f"explain: {', '.join(variables)} as recorded, block {number} of at most {most} (4 launches, "
        f"{format_duration(seconds)}): {', '.join(tests)}"
    )
