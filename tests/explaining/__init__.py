"""Tests of ``--explain``."""
