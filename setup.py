"""Puts the suites into the wheel: everything else about the package stands in pyproject.toml."""

from pathlib import Path
from shutil import copy2

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
ROOT = Path("pytest_gpuperf", "installed_suites")
"""The folder of the wheel that pytest takes for the root of the suites, as it takes a checkout."""
OF_A_CHECKOUT = ("layout.py", "table.py", "test_layout.py")  # they are about the repository's pages


class BuildWithSuites(build_py):
    """Copies the suites below a folder without ``__init__.py``, so that their modules are called as in a checkout."""

    def suites(self) -> list[Path]:
        """Returns their files, relative to the checkout."""
        files = sorted((HERE / "suites").rglob("*.py"))
        return [
            file.relative_to(HERE) for file in files if file.parent.name != "suites" or file.name not in OF_A_CHECKOUT
        ]

    def run(self) -> None:
        """Builds the package, then copies."""
        super().run()
        if self.editable_mode:
            return
        for file in self.suites():
            target = Path(self.build_lib, ROOT, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(HERE / file, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Returns what was written, so that an uninstallation removes it."""
        ours = [] if self.editable_mode else [str(Path(self.build_lib, ROOT, file)) for file in self.suites()]
        return [*super().get_outputs(include_bytecode), *ours]


setup(cmdclass={"build_py": BuildWithSuites})
