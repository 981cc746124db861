"""Tests of pytest_gpuperf.fleet and of what is printed of it."""
