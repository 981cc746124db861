"""Loads of GPUs whose results are all compared."""
