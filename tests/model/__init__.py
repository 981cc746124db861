"""Tests of pytest_gpuperf.model: what it expects of hardware, held against what hardware was seen to do."""
