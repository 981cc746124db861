"""Later launches of figures that came out worse, and races of two codes."""
