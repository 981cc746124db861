"""Tests of pytest_gpuperf.report."""
