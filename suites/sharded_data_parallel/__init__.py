"""Sharded data parallelism: parameters, gradients and optimizer state split over ranks; against the whole model."""
