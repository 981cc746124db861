"""The place of a process, by the variables of launchers."""

from __future__ import annotations

import pytest

from pytest_gpuperf.features.everywhere.launcher import (
    LAUNCHERS,
    LauncherError,
    Place,
    find_place,
    is_here,
    strip_launcher,
)
from pytest_gpuperf.features.everywhere.settings import Settings
from pytest_gpuperf.hardware.hostlist import parse_openmpi_names, parse_slurm_names
from tests.everywhere.examples import OPENMPI, PET, PYTORCHJOB, SLURM, TORCHRUN, settings


def place(environ: dict[str, str], **given: object) -> Place:
    options: dict[str, object] = {"head": None, "nodes": None, "rank": None, **given}
    return find_place(environ, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "nodes", "heads", "first", "leads", "rank"),
    [
        (SLURM, 4, ("gpu01",), False, True, 2),
        ({**SLURM, "SLURM_NODEID": "0"}, 4, ("gpu01",), True, True, 0),
        ({**SLURM, "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, 4, ("gpu01",), False, False, 0),
        (OPENMPI, 3, ("10.77.0.1", "h1", "h2", "h3"), False, True, 1),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0"}, 3, ("10.77.0.1", "h1", "h2", "h3"), True, True, 0),
        (
            {**OPENMPI, "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            3,
            ("10.77.0.1", "h1", "h2", "h3"),
            False,
            True,
            None,
        ),
        (TORCHRUN, 2, ("node-a",), False, False, 1),
        ({**TORCHRUN, "RANK": "8", "LOCAL_RANK": "0"}, 2, ("node-a",), False, True, 1),
        ({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}, 2, ("node-a",), True, True, 0),
        (PET, 2, ("job-node-0-0.job",), False, True, 1),
        ({**PET, "PET_NODE_RANK": "0"}, 2, ("job-node-0-0.job",), True, True, 0),
        (PYTORCHJOB, 3, ("job-master-0",), False, True, 1),
    ],
)
def test_launchers_say_where_a_process_is(
    environ: dict[str, str], nodes: int, heads: tuple[str, ...], first: bool, leads: bool, rank: int | None
) -> None:
    found = place(environ)
    assert (found.nodes, found.heads, found.first, found.leads, found.rank) == (nodes, heads, first, leads, rank)


def test_slurm_names_its_nodes_and_openmpi_gives_a_key() -> None:
    assert place(SLURM).names == ("gpu01", "gpu02", "gpu03", "login")
    assert place(OPENMPI).key == "e20a879913e6d819-e7531a7adaeff152"


def test_the_innermost_launcher_counts() -> None:
    assert place({**SLURM, **TORCHRUN}).launcher == "torchrun"
    assert place({**SLURM, **OPENMPI}).launcher == "OpenMPI"
    assert place({**PET, **TORCHRUN}).launcher == "torchrun"


def test_all_processes_of_a_job_have_one_identity_and_other_jobs_another() -> None:
    same = [place({**SLURM, "SLURM_NODEID": str(node)}).digest for node in range(4)]
    assert len(set(same)) == 1
    assert place({**SLURM, "SLURM_STEP_ID": "1"}).digest != same[0]
    assert place({**TORCHRUN, "TORCHELASTIC_RUN_ID": "b"}).digest != place(TORCHRUN).digest


def test_without_a_launcher_the_variables_are_listed() -> None:
    with pytest.raises(LauncherError, match=r"^no launcher has started this process: looked for .*RANK") as caught:
        place({"PATH": "/bin"})
    for launcher in LAUNCHERS:
        assert f"{launcher.name}: {launcher.mark}" in str(caught.value)
    assert "--head HOST and --nodes N" in str(caught.value)


@pytest.mark.parametrize("environ", [SLURM, OPENMPI, TORCHRUN, PET, PYTORCHJOB])
def test_half_of_the_variables_are_refused_with_those_that_lack(environ: dict[str, str]) -> None:
    launcher = next(one for one in LAUNCHERS if one.mark in environ)
    for name in launcher.needed:
        half = {key: value for key, value in environ.items() if key != name}
        with pytest.raises(LauncherError, match=rf"^{launcher.name} has set {launcher.mark}.* and not {name}, which"):
            place(half)


def test_a_batch_script_that_forgot_srun_is_told_so() -> None:
    with pytest.raises(LauncherError, match=r"not SLURM_STEP_NODELIST.*: start it with `srun --ntasks-per-node=1`"):
        place({"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"})


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(LauncherError, match=r"^Slurm has set a variable that cannot be read: .*'x'"):
        place({**SLURM, "SLURM_NODEID": "x"})
    with pytest.raises(LauncherError, match=r"^PET_NNODES is '1:4': expected one number"):
        place({**PET, "PET_NNODES": "1:4"})
    with pytest.raises(LauncherError, match=r"^--rank 4: expected a number from 0 to 3"):
        place({}, head="a", nodes=4, rank=4)


def test_mpi_libraries_that_name_no_host_need_the_head() -> None:
    hydra = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_RANK": "2", "PMI_SIZE": "4"}
    with pytest.raises(LauncherError, match=r"^MPICH or Intel MPI does not say on which host rank 0 is: give --head"):
        place(hydra)
    given = place(hydra, head="a")
    assert (given.nodes, given.heads, given.first) == (2, ("a",), False)
    pmix = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}
    with pytest.raises(LauncherError, match=r"^PMIx does not say how many nodes there are"):
        place(pmix)


def test_options_come_before_the_launcher() -> None:
    assert place({}, head="a", nodes=2).first is None
    assert place({}, head="a", nodes=2, rank=0).first is True
    assert place(SLURM, head="other").heads == ("other",)
    assert place(SLURM, nodes=2).nodes == 2


def test_a_command_does_not_get_the_variables_of_one_process() -> None:
    kept = {"PATH": "/bin", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO", "MPI_HOME": "/usr/mpi"}
    assert strip_launcher({**kept, **OPENMPI, **TORCHRUN, **PET}) == kept
    assert "SLURM_NODEID" not in strip_launcher(SLURM)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[09-11,20],login", ["gpu09", "gpu10", "gpu11", "gpu20", "login"]),
        ("a[1-2]-b[1-2]", ["a1-b1", "a1-b2", "a2-b1", "a2-b2"]),
        ("a,b", ["a", "b"]),
    ],
)
def test_slurms_lists_of_hosts(text: str, names: list[str]) -> None:
    assert list(parse_slurm_names(text)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h[1:1-3]@0(3)", ["h1", "h2", "h3"]),
        ("gpu[3:1,5-6].local,login@0(4)", ["gpu001.local", "gpu005.local", "gpu006.local", "login"]),
        ("a,b@0(2)", ["a", "b"]),
    ],
)
def test_openmpis_lists_of_hosts(text: str, names: list[str]) -> None:
    assert list(parse_openmpi_names(text)) == names


def test_addresses_of_this_machine_are_known() -> None:
    assert is_here("127.0.0.1")
    assert not is_here("203.0.113.1")
    assert not is_here("no such name.")


def test_jobs_meet_at_ports_of_their_own() -> None:
    ports = settings(place(SLURM)).ports
    assert len(set(ports)) == 8
    assert all(20000 <= port < 30000 for port in ports)
    assert settings(place({**SLURM, "SLURM_NODEID": "0"})).ports == ports
    assert settings(place({**SLURM, "SLURM_JOB_ID": "8"})).ports != ports
    given: Settings = settings(place(SLURM), port=1234)
    assert given.ports == [1234]
