"""What a command of ``python -m pytest_gpuperf`` raises if it cannot do what it was asked for."""


class CommandError(Exception):
    """The message names what was got, what was expected, and the cure; the command prints it and exits with 1."""
