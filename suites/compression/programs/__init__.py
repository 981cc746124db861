"""Averages of gradients that are compressed on their way, and what crosses the links."""
