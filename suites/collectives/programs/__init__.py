"""What runs on the ranks: one collective at a time, and several that are in flight together."""
