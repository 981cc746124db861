"""Tests of communication coverage."""
