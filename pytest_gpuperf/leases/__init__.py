"""Leases of the GPUs and cores of this machine, among processes, users and runs that know nothing of each other.

``leases.Leases`` gives them out. One file a resource is locked by its owner; ``residents`` are those who share, or stay
idle; ``queue`` keeps those who wait in order.
"""
