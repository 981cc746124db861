"""Opens the arms of one race: their checkouts, their settings, and their end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from pytest_gpuperf.features.racing.arms.blueprint import Blueprint
from pytest_gpuperf.features.racing.arms.building import build_in
from pytest_gpuperf.features.racing.arms.child_arm import ChildArm, Setting
from pytest_gpuperf.features.racing.arms.folder import RaceFolder, remove_leftovers
from pytest_gpuperf.features.racing.arms.messages import Start
from pytest_gpuperf.features.racing.arms.node_checkout import NodeCheckout
from pytest_gpuperf.features.racing.arms.redirect import VARIABLE, Redirect
from pytest_gpuperf.features.racing.arms.redirected import NAME as REDIRECTED
from pytest_gpuperf.features.racing.arms.worktree import Worktree, prune
from pytest_gpuperf.ranks.hash_seed import VARIABLE as HASH_SEED
from pytest_gpuperf.repository import Repository
from pytest_gpuperf.run.nodes import KeptOnNodes, Lending, NothingKept, RunNodes

_NOT_INHERITED = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_", "COV_CORE_", VARIABLE)
NONE: Mapping[str, str] = MappingProxyType({})


class Arms:
    """The arms of one run; a context manager that closes them."""

    def __init__(
        self,
        blueprint: Blueprint,
        tests: Sequence[str],
        nodes: RunNodes | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Opens none.

        Args:
            blueprint: the run that the arms repeat.
            tests: node ids of all tests that they may be asked for; their files are collected.
            nodes: that the arms have their ranks on; None for this machine.
            say: prints a line while the run goes on.
        """
        self._nodes = nodes
        self._say = say
        self._blueprint = blueprint
        self._tests = tuple(tests)
        self._folder: RaceFolder | None = None
        self._arms: list[ChildArm] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def present(self, python: str | None = None, variables: Mapping[str, str] = NONE) -> ChildArm:
        """The working tree as it is.

        Args:
            python: another interpreter than this one.
            variables: to change in its environment; an empty value removes the variable.

        Raises:
            CannotRace: the temporary folder cannot be written.
        """
        other = [
            *([] if python is None else [python]),
            *(f"{name}={value}" if value else f"{name} not set" for name, value in variables.items()),
        ]
        name = f"the present code with {', '.join(other)}" if other else "the present code"
        return self._make_arm(name, self._make_folder(), None, python, lambda: None, variables)

    def of(self, commit: str, python: str | None = None, build: str | None = None) -> ChildArm:
        """A commit, in a worktree of its own.

        Args:
            commit: a hash, branch or tag.
            python: another interpreter than this one.
            build: a command of the shell that is run in the worktree first.

        Raises:
            CannotRace: the commit is gone, cannot be checked out, or the command fails.
        """
        repository = Repository.of(self._blueprint.rootdir)
        folder = self._make_folder()
        if remove_leftovers():
            prune(repository)
        worktree = Worktree.of(repository, commit, folder)
        try:
            name = f"the old code ({worktree.commit[:12]})"
            if build is not None:
                build_in(worktree.folder, build, folder / "build.log")
            redirect = Redirect.of(repository.top, worktree.folder)
            there = self._keep_on_nodes(repository, worktree, build)
        except BaseException:
            worktree.close()
            raise

        def remove() -> None:
            for line in there.close():
                self._say(f"a checkout of {worktree.commit[:12]} may be left in the temporary folder of a node: {line}")
            worktree.close()

        try:
            return self._make_arm(name, folder, redirect, python, remove, of_node=there.told)
        except BaseException:
            remove()
            raise

    def _keep_on_nodes(self, repository: Repository, worktree: Worktree, build: str | None) -> KeptOnNodes:
        """The commit on the other nodes of the run."""
        if self._nodes is None:
            return NothingKept()
        return self._nodes.keep(NodeCheckout.of, str(repository.top), worktree.commit, str(worktree.folder), build)

    def close(self) -> None:
        """Ends all arms, and removes what they left."""
        arms, self._arms = self._arms, []
        for arm in arms:
            arm.hang_up()  # all of them first, so that they end side by side
        for arm in arms:
            arm.close()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _make_folder(self) -> Path:
        if self._folder is None:
            self._folder = RaceFolder.new()
        folder = self._folder.path / str(len(list(self._folder.path.iterdir())))
        folder.mkdir()
        return folder

    def _make_arm(
        self,
        name: str,
        folder: Path,
        redirect: Redirect | None,
        python: str | None,
        remove: Callable[[], None],
        variables: Mapping[str, str] = NONE,
        of_node: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> ChildArm:
        blueprint = self._blueprint
        root, directory = (
            _move_to_worktree(blueprint.rootdir, redirect),
            _move_to_worktree(blueprint.directory, redirect),
        )
        files, unknown = _list_files(name, root, self._tests)
        ini = None if blueprint.inipath is None else _move_to_worktree(blueprint.inipath, redirect)
        config = () if ini is None or not ini.is_file() else ("-c", str(ini))
        # Without pytest's cache there is no such key, and strict settings refuse it.
        cache = () if "no:cacheprovider" in blueprint.plugins else (f"cache_dir={folder / 'cache'}",)
        overrides = (*blueprint.ini, *cache)
        plugins = (*blueprint.plugins, "no:terminal")
        start = Start(
            name=name,
            options={**blueprint.options, "override_ini": list(overrides)},
            args=(*(word for plugin in plugins for word in ("-p", plugin)), *config, f"--rootdir={root}", *files),
            on_path=(str(directory),) if blueprint.directory_on_path else (),
            repository=redirect.repository if redirect is not None else os.path.realpath(root),
        )
        hashes = {HASH_SEED: blueprint.hash_seed} if blueprint.hash_seed else {}
        changed = {**os.environ, **hashes, **variables}
        environ = {
            name: value
            for name, value in changed.items()
            if not name.startswith(_NOT_INHERITED) and (value or name not in variables)
        }
        if redirect is not None:
            redirect.hand_over(environ)
        if self._nodes is not None:
            environ.update(self._nodes.lend(Lending([REDIRECTED], hashes, of_node)))
        setting = Setting(
            python=sys.executable if python is None else str(python),
            directory=directory if directory.is_dir() else root,
            environ=environ,
            log=folder / "printed.log",
            start=start,
            unknown=unknown,
            idle=not files,
        )
        arm = ChildArm(name, setting, remove)
        self._arms.append(arm)
        return arm


def _move_to_worktree(path: Path, redirect: Redirect | None) -> Path:
    """Return the path's place in the worktree; a path outside of the repository stays."""
    return path if redirect is None or not redirect.covers(str(path)) else Path(redirect.map_path(str(path)))


def _list_files(name: str, root: Path, tests: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The files to collect, and the tests whose files are not there, with the reason."""
    files: dict[str, None] = {}
    unknown = {}
    for test in tests:
        file = root / test.partition("::")[0]
        if file.is_file():
            files[str(file)] = None
        else:
            unknown[test] = f"{name} has no such test: there is no file {file}"
    return list(files), unknown
