"""Later launches of metrics that came out worse, and races of two codes."""
