"""Tests of ``pytest_gpuperf.traces``."""
