"""What one pytest run owns: its hardware, its pools, the test that runs, and what was measured."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuperf.machine import Machine
from pytest_gpuperf.markers import ranks_marker
from pytest_gpuperf.measurements import Measurements, Saved
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.failures import RanksSkipped
from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.pool import Pool, PoolSpec
from pytest_gpuperf.ranks.pools import Pools

_INSTALLED = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})


@dataclass(slots=True)
class CurrentTest:
    """The test that runs now, as far as its ranks are concerned."""

    item: pytest.Item
    identity: str
    """Node id, the same in each launch."""
    timeout: float
    gpus: tuple[str, ...]
    """UUIDs of the GPUs that the test may use; empty for gloo."""
    group: str
    """Name of its process groups: a test's own, or one for all perf tests of a launch."""
    seed: int
    launch: int | None
    """Number of a perf test's launch; None for other tests."""
    output: list[tuple[str, str]] = field(default_factory=list)


class Session:
    """State of one pytest process. Starts ranks when a test first needs them."""

    def __init__(self, config: pytest.Config, options: Options, machine: Machine) -> None:
        self.options = options
        self.machine = machine
        self.pools = Pools(Launcher())
        self.measurements = Measurements(options, machine, config.rootpath)
        self.saved: Saved | None = None
        """Where a recording went, once the run has ended."""
        self._root = os.path.join(config.rootpath, "")
        self._directories: set[str] = set()
        self._submodules = payload.SubmoduleCache()
        self._modules: tuple[int, tuple[ModuleType, ...]] = (-1, ())
        self._current: CurrentTest | None = None
        self._tests = 0
        self._launch: int | None = None

    @property
    def current(self) -> CurrentTest:
        """The test that runs now.

        Raises:
            RuntimeError: none does: the caller kept a fixture beyond its test.
        """
        if self._current is None:
            raise RuntimeError("ranks can be used while a test runs, and none does")
        return self._current

    def collected(self, items: Sequence[pytest.Item], config: pytest.Config) -> None:
        """Takes note of where the test modules lie: what lies beside them travels to the ranks by value."""
        self._directories = {str(item.path.parent) for item in items}
        for plugin in config.pluginmanager.get_plugins():
            file = getattr(plugin, "__file__", None)
            if file is not None and Path(file).name == "conftest.py":
                self._directories.add(str(Path(file).parent))

    def begin(self, item: pytest.Item, *, perf: bool, launch: int, identity: str) -> None:
        """A test begins."""
        marker = ranks_marker(item, item.nodeid)
        self._tests += 1
        gpus = () if marker is not None and marker.device == "cpu" else self.machine.gpu_uuids
        self._current = CurrentTest(
            item=item,
            identity=identity,
            timeout=self.options.timeout if marker is None or marker.timeout is None else marker.timeout,
            gpus=gpus,
            # Communicators belong to the launch: its perf tests share them, as one program would.
            group=f"launch {launch}" if perf else f"test {self._tests}",
            launch=launch if perf else None,
            seed=zlib.crc32(identity.encode()) >> 1,
        )

    def prepare(self, world_size: int) -> None:
        """Brings up the ranks and their process group, before the test's own time begins.

        Perf tests have the machine to themselves, and in each launch fresh processes.
        """
        launch = self.current.launch
        if launch is not None:
            if launch != self._launch:
                self.pools.retire_all()
                self._launch = launch
                self.measurements.begin_launch(launch, self._software(world_size))
            self.pools.retire_others(self._spec(world_size))
        self._pool(world_size)

    def end(self) -> None:
        """The test is over."""
        self._current = None

    def take_output(self) -> list[tuple[str, str]]:
        """What the test's ranks printed since the last call: title, text."""
        if self._current is None:
            return []
        output, self._current.output = self._current.output, []
        return output

    def record_command(self, identity: str) -> str:
        """The command that records a baseline for this test on this machine."""
        return f'pytest "{identity}" --gpus {len(self.machine.gpus)} --update-baselines'

    def closing_lines(self) -> list[str]:
        """What the run's summary says of a recording."""
        if not self.options.update_baselines:
            return []
        lines = [
            f"not written, since some of its {self.options.launches} launches failed: {test}"
            for test in self.measurements.incomplete()
        ]
        if self.saved is None:
            return [*lines, "no baselines written"]
        if self.saved.problem is not None:
            lines.append(self.saved.problem)
        return [*lines, f"baselines of {self.saved.tests} tests written to {self.saved.path}"]

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
    ) -> list[Any]:
        """Calls ``entry(context, *args, **kwargs)`` on every rank; the results in rank order."""
        __tracebackhide__ = True
        current = self.current
        with self._submodules.used():
            task = payload.dumps((entry, tuple(args), kwargs), by_value=self._by_value())
        pool = self._pool(world_size)
        try:
            payloads = pool.run(task, program=_name(program), seed=current.seed, timeout=current.timeout)
        except RanksSkipped as skipped:
            pytest.skip(str(skipped))
        finally:
            self._collect_output()
        return [payload.loads(data) for data in payloads]

    def _software(self, world_size: int) -> dict[str, str]:
        from pytest_gpuperf.timing.software import software  # loads torch, as every perf test's module has

        versions: list[dict[str, str]] = self.run(world_size, software, (), {}, software)
        return versions[0]

    def close(self) -> None:
        """Ends all ranks."""
        self.pools.close()

    def _spec(self, world_size: int) -> PoolSpec:
        return PoolSpec(world_size, self.current.gpus[:world_size])

    def _pool(self, world_size: int) -> Pool:
        current = self.current
        try:
            return self.pools.get(self._spec(world_size), current.group, current.timeout)
        finally:
            self._collect_output()

    def _collect_output(self) -> None:
        for spec, rank, stream, text in self.pools.output():
            self.current.output.append((f"{stream} of rank {rank} of {spec.world_size}", text))

    def _by_value(self) -> tuple[ModuleType, ...]:
        count, modules = self._modules
        if count != len(sys.modules):
            modules = tuple(module for module in list(sys.modules.values()) if self._travels(module))
            self._modules = len(sys.modules), modules
        return modules

    def _travels(self, module: ModuleType) -> bool:
        folder = os.path.dirname(getattr(module, "__file__", None) or "")
        if folder in self._directories:
            return True
        # Under --import-mode=importlib a test's package may be on no path that a rank could import it from.
        # What is installed can be imported, and a virtual environment may well lie below the rootdir.
        if not folder.startswith(self._root) or folder.startswith(_INSTALLED) or module.__name__ == "__main__":
            return False
        return not _importable(module.__name__.partition(".")[0])


def _importable(package: str) -> bool:
    # By whatever finder, since editable installs bring their own; importlib.util.find_spec would be content
    # with what is in sys.modules. pytest's finder rewrites assertions and asks the others.
    finders = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest.")]
    return any(finder.find_spec(package, None) is not None for finder in finders)


def _name(program: Callable[..., Any]) -> str:
    module = getattr(program, "__module__", None)
    name = getattr(program, "__qualname__", None) or repr(program)
    return f"{module}:{name}" if module else name
