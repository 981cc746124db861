"""``--update-baselines``: what perf tests measure becomes the baselines of the hardware."""
