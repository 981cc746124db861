"""Tests of references: what healthy machines of a kind show."""
