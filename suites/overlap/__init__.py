"""Gradient all_reduce hidden under backward: DistributedDataParallel's buckets against all_reduces after it."""
