"""The secret of a job comes by a channel that the launcher trusts, or the user is asked for one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere.launcher import Place, find_place
from pytest_gpuperf.features.everywhere.ray_node import make_command_environment, make_environment
from pytest_gpuperf.features.everywhere.secret import Secret, SecretError, choose_secret, read_shared_secret
from tests.everywhere.examples import OPENMPI, SLURM, TORCHRUN

pytestmark = pytest.mark.usefixtures("fresh_python")


def place(environ: dict[str, str]) -> Place:
    return find_place(environ, head=None, nodes=None, rank=None)


def test_the_users_token_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("in a file\n")
    for given, token in (({"RAY_AUTH_TOKEN": " mine "}, "mine"), ({"RAY_AUTH_TOKEN_PATH": str(file)}, "in a file")):
        secret = choose_secret(place(OPENMPI), given, tmp_path)
        assert secret == Secret("environment", token)
        assert secret.make_credential() == ""
        assert read_shared_secret("environment", "", place(OPENMPI), given, tmp_path) == secret


def test_openmpis_key_of_the_job_makes_a_token(tmp_path: Path) -> None:
    secret = choose_secret(place(OPENMPI), {}, tmp_path)
    assert secret.kind == "job key"
    assert len(secret.token) == 64
    assert OPENMPI["OMPI_MCA_orte_precondition_transports"] not in secret.token
    assert read_shared_secret("job key", "", place(OPENMPI), {}, tmp_path) == secret
    other = {**OPENMPI, "OMPI_MCA_orte_precondition_transports": "0-0"}
    assert choose_secret(place(other), {}, tmp_path) != secret


def test_a_file_in_the_home_folder_is_the_last(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of home\n")
    assert choose_secret(place(TORCHRUN), {}, tmp_path) == Secret("file", "of home")
    assert choose_secret(place(OPENMPI), {}, tmp_path).kind == "job key"


def test_without_a_channel_the_user_is_asked_for_a_token(tmp_path: Path) -> None:
    with pytest.raises(
        SecretError, match=r"^torchrun gives its processes no secret.*`export RAY_AUTH_TOKEN=\$\(openssl"
    ):
        choose_secret(place(TORCHRUN), {}, tmp_path)
    assert choose_secret(place(TORCHRUN), {"RAY_AUTH_MODE": "disabled"}, tmp_path).kind == "disabled"


@pytest.mark.parametrize(
    ("kind", "environ", "said"),
    [
        (
            "environment",
            {},
            r"^the head has its secret from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and this node has none",
        ),
        ("file", {}, r"^the head has its secret from ~/\.ray/auth_token, and this node has none there"),
        ("job key", {}, r"^the head has its secret from OpenMPI's key of the job, and this node has none there"),
        ("disabled", {}, r"^RAY_AUTH_MODE is \(not set\) here, and the head has a secret of 'disabled'"),
        (
            "file",
            {"RAY_AUTH_MODE": "disabled"},
            r"^RAY_AUTH_MODE is disabled here, and the head has a secret of 'file'",
        ),
        ("munge", {}, r"^unmunge cannot be used: .*No such file"),
    ],
)
def test_a_node_without_the_heads_secret_says_where_it_looked(
    kind: str, environ: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SecretError, match=said):
        read_shared_secret(kind, "MUNGE:x:", place(TORCHRUN), environ, tmp_path)


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def test_slurms_munge_encrypts_a_fresh_token_for_the_same_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "munge", f'echo "$@" > {tmp_path}/asked; printf "MUNGE:%s:" "$(cat)"')
    program(
        tmp_path,
        "unmunge",
        'text=$(cat); text=${text#MUNGE:}; printf "STATUS: (0)\\nUID:   me (%s)\\n\\n%s" "$(id -u)" "${text%:}"',
    )
    secret = choose_secret(place(SLURM), {}, tmp_path)
    assert secret.kind == "munge"
    assert len(secret.token) == 64
    credential = secret.make_credential()
    assert f"--restrict-uid={os.getuid()}" in (tmp_path / "asked").read_text()
    assert secret.token not in (tmp_path / "asked").read_text()  # others see a command's arguments
    assert read_shared_secret("munge", credential, place(SLURM), {}, tmp_path) == secret
    assert choose_secret(place(SLURM), {}, tmp_path).token != secret.token
    program(tmp_path, "unmunge", 'printf "UID:   other (4242)\\n\\nx"')
    with pytest.raises(SecretError, match=r"^munge says that user 4242 wrote the head's credential"):
        read_shared_secret("munge", credential, place(SLURM), {}, tmp_path)
    program(tmp_path, "unmunge", "echo 'unmunge: Error: Expired credential' >&2; exit 15")
    with pytest.raises(SecretError, match=r"^unmunge has failed: unmunge: Error: Expired credential"):
        read_shared_secret("munge", credential, place(SLURM), {}, tmp_path)
    program(tmp_path, "munge", "exit 1")  # a Slurm whose credentials are not munge's
    with pytest.raises(SecretError, match=r"^Slurm, step 7\.0 gives its processes no secret"):
        choose_secret(place(SLURM), {}, tmp_path)


def test_ray_and_the_command_get_the_token_and_nothing_of_the_launcher(tmp_path: Path) -> None:
    secret = Secret("munge", "abc")
    given = {**TORCHRUN, "PATH": "/bin", "RAY_ADDRESS": "old:1", "RAY_AUTH_TOKEN": "old", "PYTEST_ADDOPTS": "-x"}
    ray = make_environment(given, secret, tmp_path)
    assert (ray["RAY_AUTH_MODE"], ray["RAY_AUTH_TOKEN"], ray["RAY_TMPDIR"]) == ("token", "abc", str(tmp_path))
    assert "RAY_ADDRESS" not in ray
    assert "RANK" not in ray
    command = make_command_environment(given, secret, "10.0.0.1:7", tmp_path)
    assert (command["RAY_ADDRESS"], command["RAY_AUTH_TOKEN"], command["PATH"]) == ("10.0.0.1:7", "abc", "/bin")
    assert command["PYTEST_ADDOPTS"] == "-x --cluster=10.0.0.1:7"
    assert "WORLD_SIZE" not in command
    assert make_environment(given, Secret("disabled", "disabled"), tmp_path)["RAY_AUTH_MODE"] == "disabled"
