"""What goes wrong with a cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A cluster cannot be used, and why; raised before any test runs."""


class NodeLostError(Exception):
    """A node did not answer any more; the message says how it was lost."""
