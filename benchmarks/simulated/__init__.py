"""Simulated suites: their noise, their way through the rule, and through other rules."""
