"""Which modules travel to the ranks by value."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.run import packing


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    return made


class EditableFinder(MetaPathFinder):
    """Finds one package, as the finder of an editable install does."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, None) if fullname == "editable_package" else None


def test_what_a_node_lacks_travels_though_this_process_can_import_it(tmp_path: Path) -> None:
    made = packing.Packing(tmp_path, lambda package: package == "only_here")
    travels = {
        name: made._travels(module(name, tmp_path / name / "__init__.py"))
        for name in ("only_here", "everywhere", "pytest_gpuperf", "__main__")
    }
    assert travels == {"only_here": True, "everywhere": False, "pytest_gpuperf": False, "__main__": False}
    assert made._travels(module("only_here", tmp_path / "only_here.py"))


def test_installed_suites_travel_to_nodes_that_cannot_import_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_INSTALLED", (f"{tmp_path}/",))
    root = tmp_path / "lib" / "site-packages" / "pytest_gpuperf" / "installed_suites"
    made = packing.Packing(root, lambda package: package == "suites")
    program = module("suites.example.programs", root / "suites" / "example" / "programs.py")
    assert made._travels(program)
    assert not made._travels(module("torch", tmp_path / "lib" / "site-packages" / "torch" / "__init__.py"))
    assert not packing.Packing(tmp_path / "elsewhere", lambda package: True)._travels(program)


@pytest.mark.parametrize("name", ["_cython_3_0_12", "cython_runtime"])
def test_what_modules_of_cython_share_is_made_anew_on_ranks(name: str) -> None:
    shared = ModuleType(name)
    shared.__spec__ = None
    assert not packing._is_put_in_by_hand(name, shared)


def test_what_is_installed_is_imported_even_below_the_rootdir(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pytestconfig.rootpath
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder()])
    monkeypatch.setattr(packing, "_INSTALLED", (str(root / ".venv") + "/",))
    made = packing.Packing(root)
    installed = root / ".venv" / "lib" / "site-packages" / "no_such_package" / "module.py"
    travels = {
        "no_such_package.module": made._travels(module("no_such_package.module", installed)),
        "editable_package.core": made._travels(
            module("editable_package.core", root / "src" / "editable_package" / "core.py")
        ),
        "__main__": made._travels(module("__main__", root / "run.py")),
        "no_such_test": made._travels(module("no_such_test", root / "elsewhere" / "no_such_test.py")),
        "pytest_gpuperf": made._travels(module("pytest_gpuperf", root / "pytest_gpuperf" / "__init__.py")),
    }
    assert travels == {
        "no_such_package.module": False,
        "editable_package.core": False,
        "__main__": False,
        "no_such_test": True,  # on no path that a rank could import it from
        "pytest_gpuperf": False,
    }


def test_a_node_that_is_lost_meanwhile_is_not_the_programs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(package: str) -> bool:
        raise LaunchError(f"node gpu-b is lost: {package}")

    monkeypatch.setitem(sys.modules, "only_here", module("only_here", tmp_path / "only_here.py"))
    with pytest.raises(LaunchError, match=r"^node gpu-b is lost: only_here$") as raised:
        packing.Packing(tmp_path, lacks).pack((len, ([],), {}), len)
    assert not hasattr(raised.value, "__notes__")
