"""Puts the suites into the distributions: everything else about the package stands in pyproject.toml."""

from pathlib import Path
from shutil import copy2

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
ROOT = Path("pytest_gpuperf", "installed_suites")
"""The folder of the wheel that pytest takes for the root of the suites, as it takes a checkout."""
OF_A_CHECKOUT = ("table.py",)  # it is about the repository's pages


def suites() -> list[Path]:
    """Returns the files of the suites, relative to the checkout."""
    return [file.relative_to(HERE) for file in sorted((HERE / "suites").rglob("*.py"))]


class BuildWithSuites(build_py):
    """Copies the suites below a folder without ``__init__.py``, so that their modules are called as in a checkout."""

    def run(self) -> None:
        """Builds the package, then copies."""
        super().run()
        for file, target in self.copies().items():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(HERE / file, target)

    def copies(self) -> dict[Path, Path]:
        """Returns where each file goes; none in an editable installation, which has its checkout."""
        wanted = [] if self.editable_mode else suites()
        kept = [file for file in wanted if file.parent.name != "suites" or file.name not in OF_A_CHECKOUT]
        return {file: Path(self.build_lib, ROOT, file) for file in kept}

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Returns what was written, so that an uninstallation removes it."""
        return [*super().get_outputs(include_bytecode), *map(str, self.copies().values())]


class SourcesWithSuites(sdist):
    """Adds the suites to the source distribution.

    A MANIFEST.in would do that too. But then the metadata of an editable installation would list the suites as the
    plugin's own files, and pytest would take them for a part of the plugin.
    """

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copies the files of the distribution."""
        super().make_release_tree(base_dir, [*files, *map(str, suites())])


setup(cmdclass={"build_py": BuildWithSuites, "sdist": SourcesWithSuites})
