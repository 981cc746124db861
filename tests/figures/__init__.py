"""Tests of ``pytest_gpuperf.figures``."""
