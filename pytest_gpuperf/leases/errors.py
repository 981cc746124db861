"""The one error this package raises for a lease that cannot be had."""


class LeaseError(Exception):
    """Resources of the machine cannot be leased; the message says what was wanted, what is in the way, and the cure."""
