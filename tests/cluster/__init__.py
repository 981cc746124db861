"""Tests of ranks on a Ray cluster."""
