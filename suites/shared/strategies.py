"""What hypothesis draws in more than one suite: the plugin's own strategies, as the suites use them."""

from __future__ import annotations

from pytest_gpuperf import strategies
from pytest_gpuperf.strategies import FLOATS, INTEGERS, worlds

__all__ = ["FLOATS", "INTEGERS", "dtypes", "float_dtypes", "seeds", "shapes", "worlds"]

seeds = strategies.seeds()
dtypes = strategies.dtypes()
float_dtypes = strategies.dtypes(floating=True)
shapes = strategies.shapes()
