"""Sequence parallelism: norms and dropout on a part of the sequence each, around tensor-parallel layers."""
