"""Whether what a timed step returned is right. Runs in rank processes, outside of what is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

Verify: TypeAlias = "Callable[[Context, Any, int], object]"
"""Takes the rank's context, what a step returned, and how many steps were taken since the inputs were prepared or put
back, this one included. Raises AssertionError if the output is wrong."""


class Verification:
    """The author's ``verify`` for one timed program on one rank."""

    def __init__(self, verify: Verify, context: Context, name: str) -> None:
        """Keeps the function and what messages call the program."""
        self._verify = verify
        self._context = context
        self._name = name

    @classmethod
    def of(cls, verify: Verify | None, context: Context, program: Callable[..., Any]) -> Verification | None:
        """The one for a program; None if its author gave no ``verify``."""
        return None if verify is None else cls(verify, context, getattr(program, "__qualname__", repr(program)))

    def __call__(self, output: Any, steps: int) -> None:
        """Looks at what the last of so many steps returned.

        Raises:
            AssertionError: it is wrong; names the program and the step.
        """
        try:
            self._verify(self._context, output, steps)
        except AssertionError as error:
            raise AssertionError(f"step {steps} of the timed program {self._name} went wrong: {error}") from error
