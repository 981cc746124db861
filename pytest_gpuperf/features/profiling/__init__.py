"""Traces of what perf tests measured, for Perfetto, made after the last measurement."""

PUBLIC = {"ProfileWarning": "profiler"}
