"""Every command line option and ini key, read once into a frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.ranks.hash_seed import hash_seed, make_rank_seeds

if TYPE_CHECKING:
    from pytest_gpuperf.verdicts.rule import Policy

LEASES = Path("/tmp/gpuperf-leases")
"""The default folder of the leases. It does not depend on TMPDIR, because all runs of a machine must share it."""

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--gpus",
        {
            "default": "0",
            "metavar": "N|auto|0",
            "help": "run ranks with NCCL on N GPUs, or on all visible ones (auto); with gloo on CPUs (0, the default, "
            "and auto where there are none)",
        },
    ),
    (
        "--require-gpus",
        {
            "action": "store_true",
            "help": "fail tests that would be skipped because there are no or too few GPUs",
        },
    ),
    (
        "--no-numa-binding",
        {
            "action": "store_true",
            "help": "let the system place the ranks of perf tests, instead of on the cores of their GPU's NUMA node",
        },
    ),
    (
        "--largest-worlds",
        {
            "action": "store_true",
            "help": "run only the largest world of each test: of those that the GPUs hold, or of all on CPUs",
        },
    ),
    (
        "--hash-by-rank",
        {
            "action": "store_true",
            "help": "seed Python's hashes differently on each rank that measures nothing, as launchers do: finds "
            "collectives whose order comes from a set; ranks start afresh and slower, and stay warm",
        },
    ),
    (
        "--delay-ranks",
        {
            "default": None,
            "metavar": "random|SEED",
            "help": "delay the ranks of tests that do not measure at random, before their programs and before each "
            "collective, send and receive, to provoke races; the header tells the seed, which repeats the delays",
        },
    ),
    (
        "--smoke",
        {
            "action": "store_true",
            "help": "run the body of each perf test once with two samples and judge nothing; on gloo too",
        },
    ),
    (
        "--strict-baselines",
        {
            "action": "store_true",
            "default": None,
            "help": "fail metrics that have no baseline, whatever references or a model of the hardware expect (the "
            "default if the environment has CI)",
        },
    ),
    (
        "--no-strict-baselines",
        {
            "action": "store_false",
            "default": None,
            "help": "pass metrics that have no baseline, unless references or a model of the hardware expect others",
        },
    ),
    (
        "--gpuperf-json",
        {
            "default": None,
            "metavar": "FILE",
            "help": "write metrics and verdicts to FILE; `python -m pytest_gpuperf adopt FILE --reason TEXT` makes "
            "baselines of it",
        },
    ),
    (
        "--baselines",
        {
            "default": None,
            "metavar": "DIR",
            "help": "folder of the baselines, relative to the working directory (default: ini gpuperf_baselines)",
        },
    ),
    (
        "--environment",
        {
            "choices": ("fail", "warn"),
            "default": None,
            "help": "whether a run fails if the environment is slower, and not the code (default: fail; warn on GPUs "
            "that the baseline does not know)",
        },
    ),
    (
        "--undecided",
        {
            "choices": ("fail", "warn"),
            "default": None,
            "help": "whether a run fails if a metric is worse and nothing decided why (default: fail if the "
            "environment has CI)",
        },
    ),
)

INI: tuple[tuple[str, str, str], ...] = (
    ("gpuperf_baselines", "baselines", "folder of the baselines, relative to the rootdir"),
    (
        "gpuperf_timeout",
        "120",
        "seconds that one run of a program may take, unless its ranks marker says otherwise",
    ),
    (
        "gpuperf_example_timeout",
        "20",
        "the same for each example of a hypothesis test, so that one that hangs can shrink",
    ),
    (
        "gpuperf_grace",
        "2",
        "seconds that the other ranks get after the first failure, to fail too and to be asked where they are",
    ),
    (
        "gpuperf_lease_timeout",
        "3600",
        "seconds to wait for GPUs or cores that other tests on this machine have leased",
    ),
    ("gpuperf_leases", "", "folder of the leases, one for all users of the machine (default: /tmp/gpuperf-leases)"),
    ("gpuperf_minimum_slowdown", "0.05", "the smallest relative slowdown that a run must find if the noise allows it"),
    ("gpuperf_minimum_effect", "0.015", "the relative slowdown up to which no test fails, however sure the judge is"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    gpus: int | None
    """Number of GPUs; 0 for gloo on CPUs; None for all that are visible."""
    require_gpus: bool
    smoke: bool
    numa_binding: bool
    """Whether ranks that measure run on the cores of their GPU's NUMA node."""
    baselines: Path
    timeout: float
    """Seconds for a run."""
    example_timeout: float
    """Seconds for a run of a hypothesis test."""
    grace: float
    """Seconds that the other ranks get after the first failure."""
    lease_timeout: float
    """Seconds to wait for a lease."""
    leases: Path
    """Folder of the leases."""
    policy: Policy
    """What a verdict may get wrong, and which loss it must find."""
    strict_baselines: bool = True
    """Whether a metric without a baseline fails, whatever a model of the hardware says."""
    results: Path | None = None
    """The file of the results as JSON."""
    environment_fails: bool | None = None
    """Whether a run fails if the environment is slower; None: only on GPUs that the record knows."""
    undecided_fails: bool = False
    """Whether a run fails if a metric is undecided."""
    run: str | None = None
    """Names the run to all of its workers; None if it has one process."""
    largest_worlds: bool = False
    """Whether each test has only the largest of its worlds."""
    delay_seed: int | None = None
    """The seed of the delays of ranks; None for no delays."""
    hash_seed: str = ""
    """The value of PYTHONHASHSEED for all ranks of this machine; empty: each process has its own."""
    hashes_by_rank: str = ""
    """PYTHONHASHSEED of ranks that measure nothing, with ``{rank}`` in it; empty: they have ``hash_seed``."""

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Reads and checks the options.

        Raises:
            pytest.UsageError: a value that cannot be meant, or options that exclude one another.
        """
        smoke = bool(config.getoption("gpuperf_smoke"))
        gpus = parse_gpus(config.getoption("gpuperf_gpus"))
        if smoke and config.getoption("benchmark_only", False):
            raise pytest.UsageError(
                "--benchmark-only skips all that is no benchmark, as perf tests under --smoke: drop one of them"
            )
        if config.getoption("gpuperf_require_gpus") and gpus == 0:
            raise pytest.UsageError("--require-gpus needs GPUs, and this run uses none: add --gpus N")
        results = config.getoption("gpuperf_json")
        return cls(
            gpus=gpus,
            require_gpus=bool(config.getoption("gpuperf_require_gpus")),
            smoke=smoke,
            numa_binding=not config.getoption("gpuperf_no_numa_binding"),
            baselines=_resolve_baselines(config),
            timeout=read_positive(config, "gpuperf_timeout"),
            example_timeout=read_positive(config, "gpuperf_example_timeout"),
            grace=read_positive(config, "gpuperf_grace"),
            lease_timeout=read_positive(config, "gpuperf_lease_timeout"),
            leases=_resolve_leases(config),
            run=_run(config),
            hash_seed=(seed := hash_seed(os.environ, _run(config))),
            hashes_by_rank=make_rank_seeds(seed) if config.getoption("gpuperf_hash_by_rank") else "",
            delay_seed=_delay_seed(config.getoption("gpuperf_delay_ranks"), _run(config)),
            policy=_make_policy(config),
            strict_baselines=_is_in_ci()
            if (strict := config.getoption("gpuperf_strict_baselines")) is None
            else strict,
            results=None if results is None else config.invocation_params.dir / results,
            environment_fails=_fails(config.getoption("gpuperf_environment")),
            undecided_fails=_is_in_ci() if (fails := _fails(config.getoption("gpuperf_undecided"))) is None else fails,
            largest_worlds=bool(config.getoption("gpuperf_largest_worlds")),
        )


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of xdist: another one reports what it finds."""
    return hasattr(config, "workerinput")  # xdist.is_xdist_worker() would import xdist, which may be absent


def _delay_seed(asked: str | None, run: str | None) -> int | None:
    if asked is None or asked.isdecimal():
        return None if asked is None else int(asked)
    if asked != "random":
        raise pytest.UsageError(
            f"--delay-ranks must be random, or the seed that the header of an earlier run tells, got {asked!r}"
        )
    return int(hash_seed({}, run))  # one for all of xdist's workers


def runs_tests(config: pytest.Config) -> bool:
    """Whether tests are run, not only listed (``--collect-only``) or set up (``--setup-only``, ``--setup-plan``)."""
    return not (config.option.collectonly or config.getoption("setuponly", False))


def _run(config: pytest.Config) -> str | None:
    return str(vars(config)["workerinput"]["testrunuid"]) if is_worker(config) else None


def _fails(given: str | None) -> bool | None:
    return None if given is None else given == "fail"


def _is_in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")  # as GitHub, GitLab and others set it


def parse_gpus(text: str) -> int | None:
    """The number of GPUs that a value of ``--gpus`` means; None for all that are visible.

    Raises:
        pytest.UsageError: it means none.
    """
    if text == "auto":
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"--gpus takes a number of GPUs, 'auto' or 0, got {text!r}")
    return int(text)


def _resolve_baselines(config: pytest.Config) -> Path:
    given = config.getoption("gpuperf_baselines")
    if given:
        return config.invocation_params.dir / str(given)
    return config.rootpath / str(config.getini("gpuperf_baselines"))


def _resolve_leases(config: pytest.Config) -> Path:
    folder = config.getini("gpuperf_leases")
    return config.rootpath / folder if folder else LEASES


def read_positive(config: pytest.Config, key: str) -> float:
    """The value of an ini key.

    Raises:
        pytest.UsageError: it is no positive number.
    """
    text = config.getini(key)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise pytest.UsageError(f"ini key {key} must be a positive number, got {text!r}")
    return value


def _make_policy(config: pytest.Config) -> Policy:
    from pytest_gpuperf.verdicts.rule import Policy  # each pytest run imports this module, and few judge

    slowdown, minimum_effect = (
        read_positive(config, "gpuperf_minimum_slowdown"),
        read_positive(config, "gpuperf_minimum_effect"),
    )
    try:
        return Policy(minimum_slowdown=slowdown, minimum_effect=minimum_effect)
    except ValueError as error:
        raise pytest.UsageError(f"ini keys gpuperf_minimum_slowdown and gpuperf_minimum_effect: {error}") from error


def is_distributed(config: pytest.Config) -> bool:
    """Whether xdist's workers run the tests."""
    if is_worker(config):
        return True
    return bool(config.getoption("numprocesses", None)) or bool(config.getoption("tx", None))
