"""Data parallelism: each rank has the whole model and a part of the batch; against the whole batch."""
