"""Tests of ``pytest_gpuperf.arms``."""
