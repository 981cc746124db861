"""Tests of pytest_gpuperf.hardware, on machines made up in memory."""
