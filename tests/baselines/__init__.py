"""Tests of ``pytest_gpuperf.baselines``."""
