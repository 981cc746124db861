"""The kinds of what tests show that every run collects; features add theirs by ``pytest_gpuperf_shows``."""

import pytest

from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.matrices import MATRICES
from pytest_gpuperf.report.searches import SEARCHES
from pytest_gpuperf.report.shown import Shown

KINDS = (CURVES, MATRICES, SEARCHES)
"""In the order of the summary."""


def collect_kinds(config: pytest.Config) -> tuple[Shown, ...]:
    """Returns the kinds that tests of a run can show, those of features behind those of the core."""
    added = [kind for kinds in config.hook.pytest_gpuperf_shows() for kind in kinds]
    return (*KINDS, *sorted(added, key=lambda kind: kind.name))
