"""Ranks for what runs in rank processes."""

from tests.ranks.conftest import call, pool, torch_client

__all__ = ["call", "pool", "torch_client"]
