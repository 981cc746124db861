"""The kinds of what tests show that every run collects; features add theirs by ``pytest_gpuperf_shows``."""

from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.matrices import MATRICES
from pytest_gpuperf.report.searches import SEARCHES

KINDS = (CURVES, MATRICES, SEARCHES)
"""In the order of the summary."""
