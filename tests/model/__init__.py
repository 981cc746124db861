"""Tests of the model of day zero: what it expects of hardware, held against what hardware was seen to do."""
