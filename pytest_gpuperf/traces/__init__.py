"""Traces of profiled steps: what each rank did when, joined into one file for all ranks, and what follows from it."""
