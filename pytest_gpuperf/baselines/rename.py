"""Tests that have another name now keep their entries: of one test, or of all of a file, a class or a function."""

from collections.abc import Mapping
from dataclasses import replace

from pytest_gpuperf.baselines.merge import Stamp
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import Baselines, Update
from pytest_gpuperf.baselines.storage import Storage

_BELOW = ("::", "[")  # what follows a file or a class, and a function with parameters


class RenameError(Exception):
    """Entries cannot get the new name; nothing was changed."""


def rename(storage: Storage, old: str, new: str, stamp: Stamp) -> dict[str, dict[str, str]]:
    """Gives entries of every hardware another name; metrics and history stay, and an update says so.

    Args:
        storage: Of the baselines.
        old: The node id of a test without or with its parameters, of a class, or of a file.
        new: What takes its place at the beginning of these ids.
        stamp: What the files keep of the update.

    Returns:
        By place, the new node id of each old one.

    Raises:
        RenameError: No entry has the old name, or one has the new name already.
        BaselineError: A stored file cannot be used or written; those of other hardware may be written already.
    """
    places: dict[str, dict[str, str]] = {}
    affected = []
    for key in storage.hardware_keys():  # all of them are looked at before any is changed
        stored = storage.load(key)
        if stored is not None and (names := _map_names(stored, old, new, storage.where(key))):
            places[storage.where(key)] = names
            affected.append(key)
    if not affected:
        problem = f"no baselines have an entry of {cut(old)!r}, or of a test below it"
        raise RenameError(f'{problem}: name it as it stands under "tests", from the rootdir')

    def change(stored: Baselines | None) -> Baselines | None:
        return None if stored is None else _rename_tests(stored, _map_names(stored, old, new, "the baselines"), stamp)

    for key in affected:
        storage.update(key, change)
    return places


def _map_names(stored: Baselines, old: str, new: str, where: str) -> dict[str, str]:
    """The new names of these entries, by the old ones.

    Raises:
        RenameError: One of them is taken.
    """
    names = {test: new + test[len(old) :] for test in stored.tests if test == old or _is_below(test, old)}
    for before, after in sorted(names.items()):
        if after in stored.tests:
            problem = f"{cut(before)!r} cannot become {cut(after)!r}, which has an entry already in {where}"
            raise RenameError(f'{problem}: delete the one that is not needed, under "tests" there')
    return names


def _is_below(test: str, old: str) -> bool:
    return any(test.startswith(old + mark) for mark in _BELOW)


def _rename_tests(stored: Baselines, names: Mapping[str, str], stamp: Stamp) -> Baselines | None:
    if not names:
        return None
    tests = {names.get(test, test): entry for test, entry in stored.tests.items()}
    launches = [len(metric.launches) for name in names.values() for metric in tests[name].metrics.values()]
    update = Update(
        at=stamp.at,
        commit=stamp.commit,
        author=stamp.author,
        reason=stamp.reason,
        tests=tuple(sorted(names.values())),
        launches=max(launches, default=1),
    )
    return replace(stored, tests=tests, updates=(*stored.updates, update))
