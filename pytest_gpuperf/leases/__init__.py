"""Who has which GPU or core of this machine: leases among processes, users and runs that know nothing of each other.

``leases.Leases`` gives them out. One file a resource is locked by its owner; ``queue`` keeps those who wait in order.
"""
