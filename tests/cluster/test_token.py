"""The token that a run on a cluster needs, and what is said without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.features.cluster.failures import ClusterError
from pytest_gpuperf.features.cluster.token import format_warning, read_mode
from tests.whole_run import run_pytest

pytestmark = pytest.mark.usefixtures("fresh_python")

CURE = (
    "run `ray get-auth-token --generate` once, copy {default} to every node, and `export RAY_AUTH_MODE=token` before "
    "`ray start`; or, if nobody else reaches the nodes, `export RAY_AUTH_MODE=disabled` before pytest"
)


@pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "Token"}, {"RAY_AUTH_MODE": ""}])
def test_the_token_may_be_a_variable_or_a_file(tmp_path: Path, mode: dict[str, str]) -> None:
    assert read_mode({**mode, "RAY_AUTH_TOKEN": "secret"}, tmp_path) == "token"
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("secret")
    assert read_mode(mode, tmp_path) == "token"
    assert read_mode({**mode, "RAY_AUTH_TOKEN_PATH": str(file)}, tmp_path / "elsewhere") == "token"


@pytest.mark.parametrize(
    ("text", "found"), [(None, "No such file or directory"), (b" \n", "no text"), (b"\xff", "no text")]
)
def test_without_a_token_the_error_says_what_to_do(tmp_path: Path, text: bytes | None, found: str) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ClusterError) as caught:
        read_mode({"RAY_AUTH_TOKEN": " ", "RAY_AUTH_TOKEN_PATH": str(file)}, tmp_path)
    cure = CURE.format(default=tmp_path / ".ray" / "auth_token")
    assert str(caught.value) == (
        "--cluster needs the token of the Ray cluster, because without one whoever reaches its ports can run code on "
        f"the nodes: got {found} in {file}, and no RAY_AUTH_TOKEN: {cure}"
    )


def test_a_run_without_a_token_is_refused_before_ray_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): ...")
    env = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": ""}
    run = run_pytest(tmp_path, "--cluster=127.0.0.1:1", env=env)
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"got No such file or directory in {tmp_path}/.ray/auth_token, and no RAY_AUTH_TOKEN" in run.text


def test_other_ways_are_left_to_ray_and_an_open_cluster_is_told(tmp_path: Path) -> None:
    assert read_mode({"RAY_AUTH_MODE": "k8s"}, tmp_path) == "k8s"
    assert read_mode({"RAY_AUTH_MODE": "disabled"}, tmp_path) == "disabled"
    assert format_warning({}) == format_warning({"RAY_AUTH_MODE": "token"}) == ""
    assert format_warning({"RAY_AUTH_MODE": "disabled"}) == (
        "RAY_AUTH_MODE=disabled: whoever reaches the ports of Ray can run code on the nodes"
    )
