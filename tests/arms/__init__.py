"""Tests of ``pytest_gpuperf.features.racing.arms``."""
