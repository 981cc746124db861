"""Tests of a run that leases GPUs which exist only in a test; read as text."""

CONFTEST = """
import pytest
from tests.cluster import fake_nodes
fake_nodes.install(pytest.MonkeyPatch())
"""
HOLDS = """
import time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.mark.ranks(nodes=2)
def test_it(ranks):
    def program(ctx):
        (HERE / f"{ctx.rank}.began").touch()
        ctx.barrier()
        time.sleep(600)
    ranks.run(program)
"""
