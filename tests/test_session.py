"""Which modules travel to the ranks by value."""

import functools
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf import session as session_module
from pytest_gpuperf.leases.errors import LeaseError
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.report.console import Console
from pytest_gpuperf.session import CurrentTest, Session
from tests.fake_gpus import machine_of, without_memory


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    return made


class EditableFinder(MetaPathFinder):
    """Finds one package, as the finder of an editable install does."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, None) if fullname == "editable_package" else None


def test_what_is_installed_is_imported_even_below_the_rootdir(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pytestconfig.rootpath
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder()])
    monkeypatch.setattr(session_module, "_INSTALLED", (str(root / ".venv") + "/",))
    session = Session(pytestconfig, Options.from_config(pytestconfig), machine_of(0), Console(pytestconfig))
    try:
        installed = root / ".venv" / "lib" / "site-packages" / "no_such_package" / "module.py"
        travels = {
            "no_such_package.module": session._travels(module("no_such_package.module", installed)),
            "editable_package.core": session._travels(
                module("editable_package.core", root / "src" / "editable_package" / "core.py")
            ),
            "__main__": session._travels(module("__main__", root / "run.py")),
            "no_such_test": session._travels(module("no_such_test", root / "elsewhere" / "no_such_test.py")),
            "pytest_gpuperf": session._travels(module("pytest_gpuperf", root / "pytest_gpuperf" / "__init__.py")),
        }
    finally:
        session.close()
    assert travels == {
        "no_such_package.module": False,
        "editable_package.core": False,
        "__main__": False,
        "no_such_test": True,  # on no path that a rank could import it from
        "pytest_gpuperf": False,
    }


class StandingPools(Pools):
    """Ranks that are on two GPUs until they are retired."""

    there = True

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset({"GPU-0", "GPU-1"}) if self.there else frozenset()

    def retire_all(self) -> None:
        self.there = False


@pytest.mark.parametrize(
    ("launch", "last", "stay"),
    [(None, False, True), (None, True, False), (1, False, False)],
    ids=["between tests", "after the last", "after perf tests"],
)
def test_ranks_stay_on_their_gpus_between_correctness_tests_and_the_folder_says_so(
    request: pytest.FixtureRequest,
    pytester: pytest.Pytester,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launch: int | None,
    last: bool,
    stay: bool,
) -> None:
    without_memory(monkeypatch)
    monkeypatch.setattr(session_module, "Pools", StandingPools)
    config = pytester.parseconfig("-o", f"gpuperf_leases={tmp_path / 'leases'}")
    session = Session(config, Options.from_config(config), machine_of(2), Console(config))
    gpus = session.leasing.gpus(2, "test_x")
    session._current = CurrentTest(
        item=request.node,
        identity="test_x",
        marker=RanksMarker((2,)),
        timeout=60,
        group="group",
        seed=1,
        launch=launch,
        gpus=gpus,
    )
    session.end(last=last)
    alone = functools.partial(Leases(tmp_path / "leases").acquire, gpus, 2, holder="perf", timeout=0.05, alone=True)
    if stay:
        with pytest.raises(LeaseError, match=r"GPU-0, GPU-1 with idle ranks of .*'test_x'"):
            alone()
    else:
        alone().release()
    session.close()
    alone().release()
