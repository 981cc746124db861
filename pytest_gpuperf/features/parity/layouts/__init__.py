"""Splits a model by torch's own parallel APIs, and compares each layout with one device."""
