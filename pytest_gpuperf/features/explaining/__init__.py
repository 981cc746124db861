"""``--explain``: which variables moved the figures of a run."""
