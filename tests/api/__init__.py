"""Tests of ``pytest_gpuperf.api``."""
