"""The one error this package raises for a machine it cannot describe."""


class HardwareError(Exception):
    """The machine's GPUs cannot be described; the message says why and what to do."""
