"""What a recording replaces, and how many launches it needs."""

from enum import Enum

LEAST_LAUNCHES = 5  # below five the spread between launches is hardly known


class Mode(Enum):
    """Which entries an update replaces."""

    MOVED = "moved"
    """The missing, the stale, and those whose centre moved."""
    NEW = "new"
    """The missing alone: entries, and metrics of entries of the same body."""
    ALL = "all"
    """All that ran."""
    APPEND = "append"
    """None: adds launches to what is there."""
