"""Checkpoints of training: what is saved is what is loaded, on any ranks, and a save that fails loses nothing."""
