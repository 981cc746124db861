"""Where the time of a launch goes: stacks of its ranks, and what they were doing."""
