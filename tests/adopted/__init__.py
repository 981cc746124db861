"""Tests of ``pytest_gpuperf.adopted``."""
