"""Tests of pytest_gpuperf.leases."""
