"""Tests of ``pytest_gpuperf.run``."""
