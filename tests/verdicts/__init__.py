"""Tests of pytest_gpuperf.verdicts."""
