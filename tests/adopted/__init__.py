"""Tests of ``pytest_gpuperf.features.adopted``."""
