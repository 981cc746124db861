"""Tests of pytest_gpuperf.features.fleet and of what is printed of it."""
