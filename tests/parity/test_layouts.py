"""``python -m pytest_gpuperf parity``: layouts of torch's own APIs against one device."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_gpuperf.features.parity.layouts.asked import Subject, import_function, parse_layout
from pytest_gpuperf.features.parity.layouts.attention import require_attention
from pytest_gpuperf.features.parity.layouts.plans import derive
from pytest_gpuperf.features.parity.layouts.running import try_layouts
from pytest_gpuperf.features.parity.layouts.table import Result, Row, compute_status, format_table
from pytest_gpuperf.features.parity.layouts.training import SplitError
from pytest_gpuperf.report.command_error import CommandError
from tests.whole_run import environment, write

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, 2)).transpose(1, 2) for p in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, positions=False):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(16, 8), Attention()
        self.positions = nn.Embedding(8, 8) if positions else None
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16)

    def forward(self, x):
        h = self.embedding(x)
        if self.positions is not None:
            h = h + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(h + self.attention(h)))


class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.layer(x) * self.seen


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.up(self.norm(x)).view(len(x), 8).tanh())


def positioned():
    return Net(positions=True)


def tokens(step):
    x, y = torch.randint(16, (3, 8)), torch.randint(16, (3, 8))
    y[0, 2:] = -100  # the ranks have unequal numbers of targets
    return x, y


def rows(step):
    return torch.randn(4, 4), torch.randn(4, 4)


def pair(step):
    return torch.randn(2, 4), torch.randn(2, 4)


def sums(output, targets):
    loss = F.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss, (targets != -100).sum()


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plan(model):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    return styles | {"attention.output": RowwiseParallel()}


def no_model():
    return 3


def no_batch(step):
    return torch.ones(3)


def nan(step):
    return torch.full((4, 4), torch.nan), torch.ones(4, 4)
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-W", "ignore", "-m", "pytest_gpuperf", "parity", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, {"mymodel.py": MODEL})


def cells(text: str, layout: str, start: str) -> str:
    """The rest of the row."""
    rows = [" ".join(line.split()) for line in text.splitlines()]
    (found,) = [row for row in rows if row.startswith(f"{layout} {start} ")]
    return found.removeprefix(f"{layout} {start} ")


def test_right_layouts_are_right_from_the_start_and_from_checkpoints(folder: Path) -> None:
    code, text = run(folder, "mymodel:Net", "--batch", "mymodel:tokens", "--layouts", "fsdp2,tp2,cp2,ddp3")
    for layout, other in (("fsdp2", "tp2"), ("tp2", "cp2"), ("cp2", "ddp3"), ("ddp3", "fsdp2")):
        for start in ("step 1", "its checkpoint", f"that of {other}"):
            assert cells(text, layout, start).startswith("right "), text
    assert text.endswith("12 right\n"), text
    assert code == 0


def test_two_axes_a_plan_a_loss_and_an_optimizer_of_the_users(folder: Path) -> None:
    functions = ("--loss", "mymodel:sums", "--optimizer", "mymodel:momentum", "--plan", "mymodel:plan")
    code, text = run(folder, "mymodel:Net", "--batch", "mymodel:tokens", "--layouts", "fsdp2xtp2", *functions)
    assert cells(text, "fsdp2xtp2", "step 1").startswith("right "), text
    assert cells(text, "fsdp2xtp2", "that of one device").startswith("right "), text
    assert code == 0


def test_positions_that_count_from_0_on_each_rank_are_wrong(folder: Path) -> None:
    arguments = ("mymodel:positioned", "--batch", "mymodel:tokens", "--layouts", "cp2,ddp2", "--steps", "1")
    code, text = run(folder, *arguments)
    row = cells(text, "cp2", "step 1")
    assert row.startswith("WRONG "), text
    assert "step 1, output of positions; cause: all ranks hold the part of rank 0" in row
    assert cells(text, "ddp2", "step 1").startswith("right "), text
    assert text.endswith("1 right, 1 wrong\n")
    assert code == 1


def test_what_a_checkpoint_forgets_is_wrong_and_what_cannot_be_split_says_why(folder: Path) -> None:
    code, text = run(folder, "mymodel:Forgetful", "--batch", "mymodel:pair", "--layouts", "ddp2,tp2,ddp2xtp2,ddp3,cp2")
    assert cells(text, "ddp2", "step 1").startswith("right "), text
    row = cells(text, "ddp2", "its checkpoint")
    assert row.startswith("WRONG "), text
    assert "step 2, output of (model)" in row
    whys = {
        "tp2": "no pair of linear layers can be cut for 2 ranks: give --plan",
        "ddp2xtp2": "DDP takes no parameters that tensor parallelism has split: use fsdp in its place",
        "ddp3": "a batch of 2 rows cannot be dealt to 3 ranks",
        "cp2": "the model does not call F.scaled_dot_product_attention, which context_parallel needs",
    }
    for layout, why in whys.items():
        assert cells(text, layout, "step 1") == f"not tried - {why}", text
    assert code == 1


def test_what_a_model_raises_is_shown_and_a_norm_over_the_ranks_own_rows_is_wrong(folder: Path) -> None:
    arguments = ("mymodel:Fixed", "--batch", "mymodel:rows", "--layouts", "tp2,ddp2", "--steps", "1")
    code, text = run(folder, *arguments)
    assert cells(text, "tp2", "step 1").startswith("failed - RuntimeError: shape '[4, 8]' is invalid"), text
    row = cells(text, "ddp2", "step 1")
    assert row.startswith("WRONG "), text
    assert "step 1, output of norm; cause:" in row
    assert code == 1


def test_bad_input_ends_the_command(folder: Path) -> None:
    code, text = run(folder, "mymodel:absent", "--batch", "mymodel:rows", "--layouts", "ddp2")
    assert "error: build 'mymodel:absent' cannot be imported from" in text
    assert code == 4
    code, text = run(folder, "mymodel:Net", "--batch", "mymodel:rows", "--layouts", "ddp2", "--timeout=-1")
    assert (code, "--timeout: takes seconds, 0 or more, got '-1'" in text) == (2, True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mymodel", "build is 'mymodel', expected module:function, as in mymodel:build"),
        ("asked_model:MODEL", "build 'asked_model:MODEL' cannot be imported from"),
        ("asked_model:torch", "build 'asked_model:torch' is a module, expected a function"),
    ],
)
def test_what_is_no_function_is_refused(tmp_path: Path, name: str, words: str) -> None:
    write(tmp_path, {"asked_model.py": "import torch\n"})
    with pytest.raises(CommandError, match=re.escape(words)):
        import_function(name, "build", tmp_path)


@pytest.mark.parametrize(
    ("build", "batch", "words"),
    [
        ("no_model", "rows", "returning_model:no_model returned a int, expected a torch.nn.Mod"),
        ("Net", "no_batch", "returned a Tensor, expected (inputs, targets): inputs are"),
        ("Fixed", "nan", "one device cannot train the model: ValueError: reference() is not finite"),
    ],
)
def test_what_one_device_cannot_train_is_refused_before_ranks_start(
    tmp_path: Path, build: str, batch: str, words: str
) -> None:
    write(tmp_path, {"returning_model.py": MODEL})
    subject = Subject(f"returning_model:{build}", f"returning_model:{batch}", folder=str(tmp_path))
    with pytest.raises(CommandError, match=re.escape(words)):
        try_layouts(subject, [parse_layout("ddp2")], 0, 60.0)


def test_a_layout_that_cannot_be_read_ends_the_command(folder: Path) -> None:
    code, said = run(folder, "mymodel:Net", "--batch", "mymodel:rows", "--layouts", "pp2")
    assert "layout 'pp2' cannot be read: write ddp, fsdp, cp or tp with a number of ranks, joined by x" in said
    assert code == 2


@pytest.mark.parametrize("text", ["fsdp", "tp0", "pp2", "tp2xtp2", ""])
def test_a_layout_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=f"layout {text!r} cannot be read: write ddp, fsdp, cp or tp with a number"):
        parse_layout(text)


def test_a_layout_has_a_world_and_a_mesh() -> None:
    layout = parse_layout("fsdp2xtp4")
    assert layout.world == 8
    assert layout.mesh == {"fsdp": 2, "tp": 4}
    assert layout.shares == 2


class _Gated(nn.Module):
    """Two layers behind each other, with what is given between and beside them."""

    def __init__(self, between: nn.Module, *, beside: bool = False, inner: int = 6) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(4, inner), between, nn.Linear(inner, 4)
        self.beside = beside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        out: torch.Tensor = self.down(self.between(h))
        return out + h[..., :4] if self.beside else out


def _plan(model: nn.Module, size: int = 2) -> dict[str, str]:
    return derive(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), size)


def test_a_pair_of_layers_is_split_by_columns_and_rows() -> None:
    assert _plan(_Gated(nn.Tanh())) == {"up": "columns", "down": "rows"}
    assert _plan(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 4))) == {
        "0": "columns",
        "2": "rows",
    }


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: _Gated(nn.Softmax(-1)), "features of up mix before down"),
        (lambda: _Gated(nn.Tanh(), beside=True), "up reach the output by another way than down"),
        (lambda: _Gated(nn.PReLU()), "between.weight acts between up and down: its gradient would be a part"),
        (lambda: _Gated(nn.Tanh(), inner=5), "no pair of linear layers can be cut for 2 ranks: give --plan"),
    ],
)
def test_layers_that_are_no_pair_are_not_split(model: object, why: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(SplitError) as caught:
        _plan(model())  # type: ignore[operator]
    assert why in str(caught.value)


class _Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(len(x), len(x), dtype=torch.bool)
        return nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], mask)


def test_attention_with_a_mask_is_not_split() -> None:
    plain = nn.functional.scaled_dot_product_attention
    with pytest.raises(SplitError, match=r"gives F\.scaled_dot_product_attention an attn_mask, which context_parallel"):
        require_attention(_Masked(), torch.ones(3, 4))
    assert nn.functional.scaled_dot_product_attention is plain


def test_the_table_aligns_and_counts_and_gives_the_exit_status() -> None:
    right = Row("tp2", "step 1", Result.RIGHT, 1e-6)
    wrong = Row("fsdp2xtp2", "its checkpoint", Result.WRONG, 1e-6, "loss of step 2", "unknown")
    untried = Row("cp2", "step 1", Result.NOT_TRIED, why="no attention")
    assert format_table([right, wrong, untried]) == [
        "layout     from            result     slack  first wrong tensor, cause",
        "tp2        step 1          right      1e-06",
        "fsdp2xtp2  its checkpoint  WRONG      1e-06  loss of step 2; cause: unknown",
        "cp2        step 1          not tried  -      no attention",
        "1 right, 1 wrong, 1 not tried",
    ]
    assert compute_status([right]) == 0
    assert compute_status([right, wrong, untried]) == 1
    assert compute_status([right, untried]) == 4
    assert compute_status([]) == 4
