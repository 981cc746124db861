"""The layer whose experts are spread over ranks, how tokens travel to them, and the race of these ways."""
