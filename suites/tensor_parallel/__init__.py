"""Tensor parallelism: layers split over ranks against the whole layer, and all-gather with matmul in one."""
