"""Which commit stands for a record, where present code is to be raced against what was recorded."""

import re
from collections import Counter
from collections.abc import Iterable

from pytest_gpuperf.baselines.schema import LaunchInfo

_COMMIT = re.compile(r"[0-9a-f]{7,64}")  # a file may hold any text, and git would take "--x" for an option


def commit_to_race(launches: Iterable[LaunchInfo]) -> str | None:
    """The commit that most launches measured as it is, since these make the record's centre.

    Args:
        launches: Of a record.

    Returns:
        The commit; of two with equally many launches that of the latest. None if no checkout was clean.
    """
    clean = [info for info in launches if not info.dirty and _COMMIT.fullmatch(info.commit)]
    counts = Counter(info.commit for info in clean)
    # ISO 8601 in UTC, all of one form: as text they are in the order of time.
    return max(clean, key=lambda info: (counts[info.commit], info.at)).commit if clean else None
