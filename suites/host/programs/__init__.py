"""Loads that wait for one another, copies by all cores of a node, and cores that work at the same time."""
