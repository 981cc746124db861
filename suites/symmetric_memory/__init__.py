"""Symmetric memory: every rank reads and writes every rank's buffer, by PyTorch's operations and by plain copies."""
