"""nccl-tests of which nothing is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nccl_tests.plan import OPERATIONS
from tests.benchmarks.nccl_tests.fake_nccl_tests import FAKE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """nccl-tests as built, of which nothing is real."""
    build = tmp_path / "nccl-tests" / "build"
    build.mkdir(parents=True)
    for operation in OPERATIONS.values():
        (build / operation.binary).write_text(FAKE)
        (build / operation.binary).chmod(0o755)
    return build.parent
