"""A fault: one small patch of a module's source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What an engineer might really get wrong, as a patch of a program of the suites or of torch."""

    name: str
    """What is wrong, in a few words: ``a mean that is rounded to bfloat16``."""
    module: str
    """Whose source is patched: ``suites.collectives.programs.plain``, or ``torch.distributed.distributed_c10d``."""
    old: str
    """What the source holds exactly once; empty to add ``new`` at the module's end."""
    new: str
    equivalent: str = ""
    """Why no test can tell the program with the fault from the one without; empty if one can."""
    needs: str = ""
    """The package without which nothing runs what the fault is in, though tests of the subject run; empty if none."""
    gpus: bool = False
    """Whether only tests on GPUs can tell: it is tried if ``PYTEST_ADDOPTS`` has ``--gpus``."""

    @property
    def in_suites(self) -> bool:
        """Whether it is in a program of the suites; otherwise in a library, and only ranks have it."""
        return self.module.split(".")[0] == "suites"

    def applied_to(self, source: str) -> str:
        """Returns the module's source with the fault in it.

        Raises:
            ValueError: the source does not hold the text exactly once.
        """
        if not self.old:
            return f"{source}\n\n{self.new}\n"
        if (found := source.count(self.old)) != 1:
            raise ValueError(
                f"the fault {self.name!r} replaces {self.old!r}, which {self.module} holds {found} times, not once: "
                "copy the text from the module's source"
            )
        return source.replace(self.old, self.new)
