"""Attention over a split sequence: its ways, and their race."""
