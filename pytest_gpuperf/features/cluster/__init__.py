"""Ranks on the nodes of a Ray cluster. Only ``--cluster`` imports Ray."""
