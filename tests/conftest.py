"""What several tests of the plugin ask for."""

import hypothesis  # noqa: F401  # else each run of pytest in this process would import it anew
import pytest

from tests import fake_gpus


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process find 8 GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_gpus.install(monkeypatch)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of pytest in this process find no GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_gpus.install(monkeypatch, visible=0)
