"""Megatron-Core's own layers and pipeline schedule against the same model in one process."""
