"""``--explain``: which variables moved the figures of a run."""

NEEDS = ("racing",)
"""The run with other variables is an arm of a race."""
