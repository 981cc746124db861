"""Serving: continuous batching, prefill and decode on ranks of their own, and prefixes that ranks share."""
