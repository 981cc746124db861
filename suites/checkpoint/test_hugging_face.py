"""Sharded safetensors that ranks write are what safetensors and transformers read, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.hugging_face import (
    INDEX,
    export,
    export_cut,
    files_of_at_most,
    imported,
    require_whole,
    write,
)
from suites.checkpoint.programs.layouts import Layout
from suites.checkpoint.programs.training import Setup
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.llama import (
    NORM_EPSILON,
    ROTARY_BASE,
    Config,
    Llama,
    initial_weights,
    load_initial_weights,
    their_name,
)
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: pip install safetensors")

LAYOUTS = (Layout(replicate=2), Layout(shard=2), Layout(shard=3), Layout(tensor=2), Layout(shard=2, tensor=2))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NBYTES = 1500
"""The largest size of a file: several tensors fit into one file, but not all of them."""


def config(layers: int = 2) -> Config:
    """Grouped queries; names of layers that are not in the order of their numbers need ten of them."""
    return Config(layers=layers, heads=4, kv_heads=2, head_dim=2, hidden=6, vocabulary=10)


def theirs(job: Setup) -> Tensors:
    """The job's weights under transformers' names."""
    return {their_name(name): value for name, value in initial_weights(job.config, job.dtype, job.seed).items()}


def loaded_files(folder: Path) -> dict[str, Tensors]:
    """The tensors of each file, as the library reads them."""
    from safetensors.torch import load_file

    return {path.name: load_file(path) for path in folder.glob("*.safetensors")}


def read_by_safetensors(folder: Path) -> Tensors:
    """What the library reads of each file that the index names."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    files = loaded_files(folder)
    assert {path.name for path in folder.iterdir()} == {INDEX, *files}, "what ranks wrote for themselves is left"
    assert {*index["weight_map"].values()} == {*files}
    assert index["metadata"]["total_size"] == sum(value.nbytes for file in files.values() for value in file.values())
    return {name: files[file][name] for name, file in index["weight_map"].items()}


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[Tensors, dict[str, int]]:
    """Tensors of one to three dimensions, and along which each is cut; ranks need not divide it, or may get nothing."""
    tensors: Tensors = {}
    dims: dict[str, int] = {}
    for number in range(3):
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
        tensors[f"tensor {number}"] = integers(shape, torch.float32, seed=draw(seeds))
        dims[f"tensor {number}"] = draw(st.integers(0, len(shape) - 1))
    return tensors, dims


@pytest.mark.ranks(3)
@pytest.mark.examples(0.2)
@given(cut=cut_tensors())
@example(
    cut=(
        {f"{dim} of 3": integers((4, 5, 7), torch.float32, seed=dim) for dim in range(3)},
        {f"{dim} of 3": dim for dim in range(3)},
    )
)
def test_tensors_cut_along_any_dimension(ranks: Ranks, cut: tuple[Tensors, dict[str, int]]) -> None:
    """The files hold whole tensors, and so does each rank that gathers them."""
    tensors, dims = cut
    with TemporaryDirectory() as name:
        got = ranks.run(export_cut, tensors=tensors, dims=dims, folder=Path(name))
        assert_same([read_by_safetensors(Path(name))], [tensors], ordered=False)
    assert_same(got, [tensors] * 3)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.16)
@given(
    of=st.sampled_from(LAYOUTS),
    to=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    nbytes=st.sampled_from([1, NBYTES, 10**6]),
    seed=seeds,
)
@example(of=Layout(shard=2, tensor=2), to=Layout(shard=3), dtype=torch.float32, nbytes=NBYTES, seed=1)
def test_written_and_read(ranks: Ranks, of: Layout, to: Layout, dtype: torch.dtype, nbytes: int, seed: int) -> None:
    one, other = (Setup(config=config(), layout=layout, seed=seed, dtype=dtype) for layout in (of, to))
    with TemporaryDirectory() as name:
        folder = Path(name)
        ranks.resized(of.ranks).run(export, job=one, folder=folder, nbytes=nbytes)
        assert_same([read_by_safetensors(folder)], [theirs(one)], ordered=False)
        files = {name: list(tensors.values()) for name, tensors in loaded_files(folder).items()}
        got = ranks.resized(to.ranks).run(imported, job=other, folder=folder)
    for file, tensors in files.items():
        size = sum(tensor.nbytes for tensor in tensors)
        assert size <= nbytes or len(tensors) == 1, f"{file} has {size} bytes, {nbytes} at most"
    assert len(files) == 1 or nbytes < 10**6
    expected = initial_weights(one.config, dtype, seed)
    assert_same([packed.unpacked() for packed in got], [expected] * to.ranks, ordered=False)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8), most=st.integers(1, 12))
def test_a_file_is_closed_when_the_next_tensor_does_not_fit(sizes: list[int], most: int) -> None:
    """Not before: one that fits to the byte goes in. Sizes and the most are in units of 4 bytes."""
    files = files_of_at_most({str(place): torch.empty(size) for place, size in enumerate(sizes)}, 4 * most)
    numbers = [files[str(place)] for place in range(len(sizes))]
    assert numbers[0] == 1
    for place in range(1, len(sizes)):
        held = sum(size for size, number in zip(sizes[:place], numbers, strict=False) if number == numbers[place - 1])
        fits = held + sizes[place] <= most
        assert numbers[place] == numbers[place - 1] + (not fits), f"tensor {place} of {sizes} in files of {most}"


def _llama(job: Setup) -> Any:
    """Transformers' model of the job's sizes."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    sizes = job.config
    return transformers.LlamaConfig(
        hidden_size=sizes.dim,
        intermediate_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        num_hidden_layers=sizes.layers,
        vocab_size=sizes.vocabulary,
        rms_norm_eps=NORM_EPSILON,
        rope_theta=ROTARY_BASE,
        tie_word_embeddings=False,
        dtype=job.dtype,
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(tensor=2)], ids=str)
def test_transformers_reads_what_ranks_wrote(ranks: Ranks, tmp_path: Path, layout: Layout) -> None:
    job = Setup(config=config(), layout=layout, seed=1, dtype=torch.float32)
    settings = _llama(job)
    ranks.run(export, job=job, folder=tmp_path, nbytes=NBYTES)
    settings.save_pretrained(tmp_path)
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_same([dict(model.state_dict())], [theirs(job)], ordered=False)
    ours = Llama(job.config, 0, 1)
    load_initial_weights(ours, job.config, job.seed)
    tokens = torch.arange(10).view(2, 5)
    with torch.no_grad():
        # The same products in another order, in float32; a weight that is swapped or transposed is off by 0.1 or more.
        torch.testing.assert_close(model(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(tensor=2)], ids=str)
def test_ranks_read_what_transformers_wrote(ranks: Ranks, tmp_path: Path, layout: Layout) -> None:
    job = Setup(config=config(), layout=layout, seed=1, dtype=torch.float32)
    settings = _llama(job)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(settings)
    model.save_pretrained(tmp_path, max_shard_size=NBYTES)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    state = model.state_dict()
    expected = {name: state[their_name(name)] for name in initial_weights(job.config, job.dtype, 1)}
    got = ranks.run(imported, job=job, folder=tmp_path)
    assert_same([packed.unpacked() for packed in got], [expected] * 2, ordered=False)


def _exported(ranks: Ranks, folder: Path) -> Setup:
    job = Setup(config=config(), layout=Layout(shard=2), seed=1, dtype=torch.float32)
    ranks.run(export, job=job, folder=folder, nbytes=NBYTES)
    return job


@pytest.mark.ranks(2)
def test_index_that_names_a_file_that_is_not_there(ranks: Ranks, tmp_path: Path) -> None:
    job = _exported(ranks, tmp_path)
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))["weight_map"]
    lost = index["lm_head.weight"]
    (tmp_path / lost).unlink()
    with pytest.raises(FileNotFoundError, match=f"names {lost} for .*lm_head.weight.*, and it is not there: copy it"):
        ranks.run(imported, job=job, folder=tmp_path)


@pytest.mark.ranks(2)
def test_file_with_other_tensors_than_the_index_says(ranks: Ranks, tmp_path: Path) -> None:
    _exported(ranks, tmp_path)
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))
    index["weight_map"]["lm_head.bias"] = index["weight_map"]["lm_head.weight"]
    (tmp_path / INDEX).write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has other tensors than .* says: lm_head.bias: copy both again"):
        require_whole(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {INDEX}: a checkpoint of several files needs one"):
        require_whole(tmp_path)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            Setup(config=config(), layout=Layout(shard=2), seed=1, dtype=torch.float64),
            r"is torch.float32 \[10, 8\] in .*, and torch.float64 \[10, 8\] in the model",
        ),
        (
            Setup(config=config()._replace(vocabulary=12), layout=Layout(shard=2), seed=1, dtype=torch.float32),
            r"is torch.float32 \[10, 8\] in .*, and torch.float32 \[12, 8\] in the model",
        ),
        (
            Setup(config=config(layers=3), layout=Layout(shard=2), seed=1, dtype=torch.float32),
            r"model.layers.2.input_layernorm.weight is none in .*, and torch.float32 \[8\] in the model",
        ),
    ],
    ids=["dtype", "shape", "one more layer"],
)
def test_other_model(ranks: Ranks, tmp_path: Path, other: Setup, message: str) -> None:
    _exported(ranks, tmp_path)
    with pytest.raises(ValueError, match=message):
        ranks.run(imported, job=other, folder=tmp_path)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.tensor(3.5), r"scale has no dimension, and torch would write 0 for it: give it the shape \[1\]"),
        (torch.arange(3), "scale is of torch.int64, and torch joins floating-point shards only: leave it out"),
    ],
    ids=["no dimension", "whole numbers"],
)
def test_tensor_that_torch_does_not_join(ranks: Ranks, tmp_path: Path, tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranks.run(lambda ctx: write({"scale": tensor}, tmp_path, nbytes=NBYTES))


def _largest_first(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Somebody's own writer: rank 0 gathers and writes, the largest tensors first."""
    from safetensors.torch import save_file
    from torch.distributed.tensor import DTensor

    whole = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
        for name, tensor in tensors.items()
    }
    order = sorted(whole, key=lambda name: -whole[name].numel())
    halves = {"model-00001-of-00002.safetensors": order[::2], "model-00002-of-00002.safetensors": order[1::2]}
    if torch.distributed.get_rank() == 0:
        for file, names in halves.items():
            save_file({name: whole[name].contiguous().cpu() for name in names}, folder / file)
        sizes = {"total_size": sum(value.nbytes for value in whole.values())}
        weight_map = {name: file for file, names in halves.items() for name in names}
        (folder / INDEX).write_text(json.dumps({"metadata": sizes, "weight_map": weight_map}), encoding="utf-8")
    torch.distributed.barrier()


@pytest.mark.ranks(2)
def test_your_own_writer(ranks: Ranks, tmp_path: Path) -> None:
    job = Setup(config=config(), layout=Layout(tensor=2), seed=1, dtype=torch.float32)
    ranks.run(export, job=job, folder=tmp_path, writer=_largest_first)
    assert_same([read_by_safetensors(tmp_path)], [theirs(job)], ordered=False)
    got = ranks.run(imported, job=job, folder=tmp_path)
    assert_same([packed.unpacked() for packed in got], [initial_weights(job.config, job.dtype, 1)] * 2, ordered=False)
