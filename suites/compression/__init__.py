"""Gradients that cross the links in bfloat16: how much sooner they arrive, and how far off they are."""
