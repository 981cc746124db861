"""One rank that is slower than the others: what it costs all, and whether the figures name it."""
