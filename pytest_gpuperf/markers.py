"""The markers ``ranks`` and ``perf``: what they take, and clear words for what they do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pytest

from pytest_gpuperf.figures.metric import Scope
from pytest_gpuperf.ranks.hash_seed import VARIABLE as HASH_SEED
from pytest_gpuperf.ranks.hash_seed import is_seed
from pytest_gpuperf.ranks.nccl_debug import LOGGED
from pytest_gpuperf.ranks.spec import AGENT_STORE, GPU, ISOLATIONS, LAUNCHER_VARIABLES, OF_RANK, VISIBLE

MARKERS = (
    "ranks(*world_sizes, timeout=None, device=None, isolation='group', env=None, largest=False, nccl_log=False, "
    "launcher_env=False, nodes=None, per_node=None): run "
    "the test once for each world size, its programs on so many ranks; timeout is in seconds and for each run; "
    "device='cuda' or 'cpu' binds the test to one kind; isolation='process' gives it processes of its own, 'file' "
    "those of its test file, 'group' a process group on warm ones; env is a dict of environment variables for its "
    "ranks, which are then its own, and {rank} in a value is the rank's number, {gpu} its GPU, {rank==2} is 1 on "
    "rank 2 and 0 on all others; largest=True leaves out, on GPUs, what is smaller than the "
    "largest world that they hold; nccl_log=True keeps NCCL's log, which ctx.nccl_log() reads; launcher_env=True sets "
    "RANK, MASTER_ADDR and the other variables of torchrun and leaves the process group to the program; "
    "nodes deals the ranks evenly to so many nodes of a "
    "cluster, or to all of them ('all'), per_node puts so many on each; without world sizes these say how many ranks "
    "there are",
    "perf: a performance test; it measures one launch and is judged against this hardware's baseline; a test that uses "
    "the fixture perf has this marker",
    "depends(scope, *metrics): what metrics of a perf test depend on: 'gpu' for one GPU, 'pair' for two, 'host' for "
    "the host with its sockets and disks, 'gpus' (the default) for all GPUs of the test; without names all its metrics",
)
_KEYWORDS = (
    "timeout",
    "device",
    "isolation",
    "env",
    "largest",
    "nccl_log",
    "launcher_env",
    "nodes",
    "per_node",
)
SCOPES: tuple[Scope, ...] = get_args(Scope)
_DEVICES = ("cuda", "cpu")
ALL: Final = "all"
"""As a number of nodes: those that the run has."""


@dataclass(frozen=True, slots=True)
class RanksMarker:
    """A checked ``ranks`` marker."""

    world_sizes: tuple[int, ...]
    timeout: float | None = None
    """Seconds; None for the configured default."""
    device: str | None = None
    """``cuda`` or ``cpu`` where the test is bound to one; None for what the run uses."""
    isolation: str = "group"
    """``process`` if the ranks must be the test's own; ``file`` if they may be those of its test file."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of the ranks' environment, sorted by name; ``{rank}``, ``{rank==2}`` and ``{gpu}`` in a value are each
    rank's own."""
    largest: bool = False
    """Whether, on GPUs, no world runs that is smaller than the largest that they hold."""
    launcher_env: bool = False
    """Whether ranks have the environment of a launcher and open their process group themselves."""
    nodes: int | Literal["all"] | None = None
    """On how many nodes the ranks are, as many on each; ``all``: those of the cluster; None if it does not matter."""
    per_node: int | None = None
    """How many ranks each node has; None if that does not matter."""

    def choose_sizes(self, gpus: int, nodes: int = 1, *, largest: bool = False) -> tuple[int, ...]:
        """The world sizes that are tests of a run.

        Those that need more GPUs are among them, to be skipped with the reason.

        Args:
            gpus: how many the run uses; 0 for gloo.
            nodes: how many nodes it has.
            largest: whether the run has only the largest world of each test, on CPUs as well.
        """
        on_cpus = not gpus or self.device == "cpu"
        if not self.world_sizes:
            on_each = 1 if on_cpus else gpus // nodes
            return ((self.choose_nodes(nodes) or nodes) * (self.per_node or max(1, on_each)),)
        if not largest and (on_cpus or not self.largest):
            return self.world_sizes
        room = gpus // nodes * self.nodes if isinstance(self.nodes, int) and nodes > 1 else gpus
        most = math.inf if self.per_node is None else self.per_node * nodes
        fitting = [size for size in self.world_sizes if size <= most and (on_cpus or size <= room)]
        least = max(fitting, default=0)
        return tuple(size for size in self.world_sizes if size >= least)

    def choose_nodes(self, nodes: int) -> int | None:
        """On how many nodes the ranks are to be in a run that has so many; None if that does not matter."""
        return nodes if self.nodes == ALL else self.nodes

    @property
    def own_processes(self) -> bool:
        """Whether no other test may use the ranks."""
        return self.isolation == "process"


def parse_ranks(mark: pytest.Mark, nodeid: str) -> RanksMarker:
    """The marker's meaning.

    Raises:
        ValueError: an argument that cannot be meant; names the test.
    """
    return check_ranks(mark.args, mark.kwargs, f"{nodeid}: marker ranks")


def check_ranks(sizes: tuple[Any, ...], keywords: Mapping[str, Any], where: str) -> RanksMarker:
    """World sizes and keywords of the marker ``ranks``, or of what takes the same.

    Args:
        sizes: world sizes.
        keywords: by name.
        where: they stand, as errors name it.

    Raises:
        ValueError: an argument that cannot be meant.
    """
    unknown = sorted(set(keywords) - set(_KEYWORDS))
    if unknown:
        known = f"{', '.join(_KEYWORDS[:-1])} and {_KEYWORDS[-1]}"
        raise ValueError(f"{where} has no keyword {unknown[0]!r}; it takes world sizes, and {known}")
    nodes, per_node = (
        _parse_nodes(keywords.get("nodes"), sizes, where),
        _parse_count(keywords.get("per_node"), "per_node", where),
    )
    if not sizes and nodes is None and per_node is None:
        raise ValueError(f"{where} names no world size; write for example @pytest.mark.ranks(2, 4)")
    for size in sizes:
        if type(size) is not int or size < 1:
            raise ValueError(f"{where} takes world sizes of 1 or more as integers, got {size!r}")
    if len(set(sizes)) != len(sizes):
        raise ValueError(f"{where} names a world size twice: {', '.join(map(str, sizes))}")
    for size in sizes:
        for one, name in ((nodes, "nodes"), (per_node, "per_node")):
            uneven = isinstance(nodes, int) and per_node is not None and size != nodes * per_node
            if isinstance(one, int) and (size % one or uneven):
                raise ValueError(f"{where} cannot deal {size} ranks evenly with {name}={one}")
    return RanksMarker(
        world_sizes=sizes,
        timeout=_parse_timeout(keywords.get("timeout"), where),
        device=_parse_choice(keywords.get("device"), _DEVICES, "device", where),
        isolation=_parse_choice(keywords.get("isolation"), ISOLATIONS, "isolation", where) or "group",
        env=_parse_environment(
            keywords.get("env"), _parse_flag(keywords.get("nccl_log", False), "nccl_log", where), where
        ),
        largest=_parse_flag(keywords.get("largest", False), "largest", where),
        launcher_env=_parse_launcher_env(keywords, where),
        nodes=nodes,
        per_node=per_node,
    )


def find_ranks_marker(node: pytest.Item | pytest.Function, nodeid: str) -> RanksMarker | None:
    """The closest ``ranks`` marker of the node, checked; None if there is none."""
    mark = node.get_closest_marker("ranks")
    return None if mark is None else parse_ranks(mark, nodeid)


def find_scope(node: pytest.Item, figure: str) -> Scope:
    """Return what a metric of a test depends on, by the closest marker ``depends`` that names it, or names none.

    Raises:
        ValueError: a marker that cannot be meant; names the test.
    """
    for mark in node.iter_markers("depends"):
        given, *figures = mark.args or (None,)
        scope = next((scope for scope in SCOPES if scope == given), None)
        if scope is None or mark.kwargs or not all(isinstance(name, str) for name in figures):
            known = ", ".join(map(repr, SCOPES))
            raise ValueError(
                f"{node.nodeid}: marker depends takes one of {known} and names of metrics, got {mark.args!r}: write "
                "for example @pytest.mark.depends('gpu', 'read')"
            )
        if not figures or figure in figures:
            return scope
    return "gpus"


def _parse_nodes(value: Any, sizes: Sequence[int], where: str) -> int | Literal["all"] | None:
    if value == ALL:
        if sizes:
            raise ValueError(
                f"{where} takes nodes={ALL!r} without world sizes, which the cluster's nodes say, got "
                f"{', '.join(map(str, sizes))}"
            )
        return ALL
    if isinstance(value, str):
        raise ValueError(f"{where} takes nodes as an integer of 1 or more, or {ALL!r}, got {value!r}")
    return _parse_count(value, "nodes", where)


def _parse_count(value: Any, keyword: str, where: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{where} takes {keyword} as an integer of 1 or more, got {value!r}")
    return value


def _parse_timeout(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{where} takes a timeout in seconds above 0, got {value!r}")
    return float(value)


def _parse_choice(value: Any, known: tuple[str, ...], keyword: str, where: str) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in known):
        *others, last = (f"{keyword}={one!r}" for one in known)
        raise ValueError(f"{where} takes {', '.join(others)} or {last}, got {value!r}")
    return value


def _parse_launcher_env(keywords: Mapping[str, Any], where: str) -> bool:
    wanted = _parse_flag(keywords.get("launcher_env", False), "launcher_env", where)
    both = sorted((LAUNCHER_VARIABLES - {AGENT_STORE}).intersection(keywords.get("env") or {})) if wanted else []
    if both:
        raise ValueError(f"{where} takes env without {both[0]}, which launcher_env=True sets")
    return wanted


def _parse_flag(value: Any, keyword: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where} takes {keyword}=True or {keyword}=False, got {value!r}")
    return value


def _parse_environment(value: Any, nccl_log: bool, where: str) -> tuple[tuple[str, str], ...]:
    logged = LOGGED if nccl_log else {}
    if value is None:
        return tuple(sorted(logged.items()))
    if not isinstance(value, dict):
        raise ValueError(f"{where} takes env as a dict of strings, got {value!r}")
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"{where} takes env with names that a variable can have, got {name!r}")
        if not isinstance(text, str):
            raise ValueError(f"{where} takes env with strings as values, got {name}={text!r}: write {str(text)!r}")
        if "\0" in text:
            raise ValueError(f"{where} takes env with values that a variable can have, got {name}={text!r}")
        if "{rank" in OF_RANK.sub("", text):
            raise ValueError(
                f"{where} takes env with {{rank}} or, for one rank apart, {{rank==2}} in a value, got {name}={text!r}"
            )
    if not is_seed(OF_RANK.sub("0", value.get(HASH_SEED, ""))):
        raise ValueError(
            f"{where} takes env with {HASH_SEED} as a whole number up to 4294967295, 'random' or '{{rank}}', got "
            f"{value[HASH_SEED]!r}"
        )
    if value.get(VISIBLE, GPU) != GPU:
        raise ValueError(
            f"{where} cannot set {VISIBLE} to {value[VISIBLE]!r}: a test has the GPUs that it leased; write {GPU!r} to "
            "show each rank its own GPU alone"
        )
    return tuple(sorted({**value, **logged}.items()))
