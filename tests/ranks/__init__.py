"""Running programs on ranks, without pytest in between."""
