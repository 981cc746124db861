"""The kinds of what tests show that every run collects; features add theirs by ``pytest_gpuperf_shows``."""

import pytest

from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.matrices import MATRICES
from pytest_gpuperf.report.searches import SEARCHES
from pytest_gpuperf.report.shown import Shown

KINDS = (CURVES, MATRICES, SEARCHES)
"""In the order of the summary."""


def collect_kinds(config: pytest.Config) -> tuple[Shown, ...]:
    """Returns the kinds that tests of a run can show, those of features behind those of the core.

    Raises:
        pytest.UsageError: two kinds have one name.
    """
    added = [kind for kinds in config.hook.pytest_gpuperf_shows() for kind in kinds]
    found = (*KINDS, *sorted(added, key=lambda kind: kind.name))
    names = [kind.name for kind in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise pytest.UsageError(f"pytest_gpuperf_shows: two kinds have the name {twice[0]!r}: rename one")
    return found
