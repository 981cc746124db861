"""What NVSHMEM moves is what was sent; a heap that is too small is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_each
from suites.shared.step import once
from suites.symmetric_memory.programs import nvshmem as programs
from suites.symmetric_memory.programs.heap import HEAP_RESERVE, require_heap
from suites.symmetric_memory.programs.operations import sent


@pytest.fixture
def nvshmem(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Ranks that have used no symmetric memory yet: an environment of their own gives them processes of their own."""
    monkeypatch.setenv("TORCH_SYMMMEM", "NVSHMEM")
    monkeypatch.setenv("NVSHMEM_REMOTE_TRANSPORT", "none")  # one host: it need not look for network cards
    return ranks


def nvshmem_expected(operation: str, sent: list[torch.Tensor], root: int) -> list[torch.Tensor]:
    degree = len(sent)
    match operation:
        case "put" | "put_with_signal":
            return [sent[rank - rank % 2] for rank in range(degree)]
        case "get":
            return [sent[rank - rank % 2 + 1] for rank in range(degree)]
        case "broadcast":
            return [sent[root]] * degree
        case _:
            return [torch.cat([tensor.chunk(degree)[rank] for tensor in sent]) for rank in range(degree)]


@pytest.mark.ranks(2, 4, 8, nodes=1, device="cuda")
@pytest.mark.parametrize("operation", ["put", "get", "put_with_signal", "broadcast", "all_to_all"])
def test_nvshmem(nvshmem: Ranks, operation: str) -> None:
    degree = nvshmem.world_size
    for seed, dtype in enumerate((torch.float32, torch.bfloat16)):
        root = seed % degree
        results = nvshmem.run(
            once, programs.nvshmem, operation=operation, numel=64 * degree, dtype=dtype, seed=seed, root=root
        )
        kwargs: dict[str, Any] = {"world_size": degree, "shape": (64 * degree,), "dtype": dtype, "seed": seed}
        tensors = [sent(rank, **kwargs) for rank in range(degree)]
        assert_each(results, nvshmem_expected(operation, tensors, root), operation)


@pytest.mark.ranks(2, nodes=1, device="cuda")
def test_a_small_nvshmem_heap_is_named(nvshmem: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHMEM_SYMMETRIC_SIZE", "16M")
    with pytest.raises(MemoryError, match="heap of 16777216 bytes: set NVSHMEM_SYMMETRIC_SIZE=49M or more"):
        nvshmem.run(once, programs.nvshmem, operation="put", numel=4 << 20, dtype=torch.float32, seed=1)


@pytest.mark.parametrize(
    ("declared", "nbytes"), [("512M", 512 << 20), ("1.5g", 3 << 29), (str(1 << 20), 1 << 20), (None, 1 << 30)]
)
def test_a_heap_holds_what_it_declares(declared: str | None, nbytes: int) -> None:
    environ = {} if declared is None else {"NVSHMEM_SYMMETRIC_SIZE": declared}
    require_heap(nbytes - HEAP_RESERVE, environ)
    with pytest.raises(MemoryError, match=f"do not fit into NVSHMEM's heap of {nbytes} bytes: set") as error:
        require_heap(nbytes - HEAP_RESERVE + 1, environ)
    cure = str(error.value).partition("NVSHMEM_SYMMETRIC_SIZE=")[2].split()[0]
    require_heap(nbytes - HEAP_RESERVE + 1, {"NVSHMEM_SYMMETRIC_SIZE": cure})


@pytest.mark.parametrize("declared", ["", "M", "lots", "infM"])
def test_a_heap_size_that_is_none_is_refused(declared: str) -> None:
    with pytest.raises(ValueError, match=f"NVSHMEM_SYMMETRIC_SIZE must be a size like 512M or 2G, got '{declared}'"):
        require_heap(1, {"NVSHMEM_SYMMETRIC_SIZE": declared})


@pytest.mark.ranks(1, device="cpu", env={"NVSHMEM_SYMMETRIC_SIZE": "16M"})
def test_the_heap_is_that_of_the_ranks_environment(ranks: Ranks) -> None:
    def program(ctx: Context) -> None:
        require_heap(16 << 20)

    with pytest.raises(MemoryError, match="heap of 16777216 bytes: set NVSHMEM_SYMMETRIC_SIZE=17M or more"):
        ranks.run(program)
