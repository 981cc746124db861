"""Tests of the parity fixture."""
