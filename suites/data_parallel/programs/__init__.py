"""Replicas of a network that train together: what averages their gradients, and what a training step does besides."""
