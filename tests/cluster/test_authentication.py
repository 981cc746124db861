"""Ray's token authentication: who has the token runs programs, and who has not is told what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.raylets import Raylets, raylets
from tests.whole_run import run_pytest

SLOW = 300  # seconds; generous, since a machine may be busy
ONCE = {"RAY_NUM_REDIS_GET_RETRIES": "1"}
"""Ray asks a head that refuses it twenty times, a second apart."""
TEST = """
import pytest, torch, torch.distributed as dist

@pytest.mark.ranks(nodes=2)
def test_it(ranks):
    def program(ctx, much):
        x = much[:1] + ctx.node
        dist.all_reduce(x)
        return x.item()
    much = torch.ones(4 * 2**20)  # 16 MiB, which go through Ray's object store
    assert ranks.run(program, much) == [3.0, 3.0]
"""


OPENED = "import pytest\n\n@pytest.mark.ranks(2)\ndef test_it(ranks):\n    ranks.run(lambda ctx: ctx.barrier())\n"


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process that finds the cluster's token in a file."""
    path = tmp_path_factory.mktemp("token") / "auth_token"
    path.write_text(os.environ["RAY_AUTH_TOKEN"])
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(path)}


@pytest.fixture(scope="module")
def opened() -> Iterator[Raylets]:
    with raylets("gpu-a", env={"RAY_AUTH_MODE": "disabled"}) as cluster:
        yield cluster


def test_with_the_token_programs_run(two_nodes: Raylets, token: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    variables = {**token, "RAY_AUTH_MODE": ""}  # which is the default
    run = run_pytest(tmp_path, "--cluster", two_nodes.address, env=variables, timeout=SLOW)
    assert run.outcomes == {"test_it[2ranks]": "PASSED"}, run.text


@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_without_the_token_the_cluster_is_closed(
    two_nodes: Raylets, token: dict[str, str], tmp_path: Path, mode: str
) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    other = tmp_path / "other_token"
    other.write_text("f" * 64)
    env = {**ONCE, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(other)}
    run = run_pytest(tmp_path, "--cluster", two_nodes.address, env=env, timeout=SLOW)
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --cluster {two_nodes.address}: something listens there, and this process cannot join it" in run.text
    assert "set RAY_AUTH_MODE=token" in run.text


def test_the_header_warns_of_a_cluster_that_is_open_on_purpose(opened: Raylets, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OPENED)
    run = run_pytest(tmp_path, "--cluster", opened.address, env={"RAY_AUTH_MODE": "disabled"}, timeout=SLOW)
    assert run.outcomes == {"test_it[2ranks]": "PASSED"}, run.text
    said = "gpuperf: RAY_AUTH_MODE=disabled: whoever reaches the ports of Ray can run code on the nodes"
    assert said in run.result.outlines


def test_a_cluster_that_was_started_without_a_token_is_refused(opened: Raylets, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OPENED)
    run = run_pytest(tmp_path, "--cluster", opened.address, env=ONCE, timeout=SLOW)
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "if it was started without a token, start it again with RAY_AUTH_MODE=token" in run.text
