"""Programs of two levels, inside nodes and across them, and what a cluster is accepted by."""
