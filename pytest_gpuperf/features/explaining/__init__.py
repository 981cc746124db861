"""``--explain``: which variables moved the metrics of a run."""

NEEDS = ("racing",)
"""The run with other variables is an arm of a race."""
