"""What perf tests measured, for pytest-benchmark: its table, its JSON, and what reads that."""
