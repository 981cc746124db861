"""Tests of other harnesses on our ranks: their classes stay as they are, and only their processes are replaced."""

PUBLIC = {"on_ranks": "settings"}
