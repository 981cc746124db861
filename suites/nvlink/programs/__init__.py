"""Copies between GPUs: rings of them, pairs one after the other, the paths of one pair, and orders of a ring."""
