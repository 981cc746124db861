"""Timing steps: clocks, warm-up, sampling and comparison, inside rank processes. Judges nothing."""
