"""``python -m pytest_gpuperf doctor``: what it prints, what it exits with, and what it makes of bad files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from tests.doctor.machines import FOLDER, NAMES
from tests.whole_run import environment


@pytest.mark.parametrize("name", NAMES)
def test_the_exit_code_is_1_if_something_blocks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--facts", str(FOLDER / f"{name}.json")])
    printed = capsys.readouterr().out
    assert code == (1 if name in ("a100-mig", "pod-one-gpu") else 0)
    assert ("critical" in printed) == bool(code)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--facts", str(FOLDER / "a100-mig.json")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "      GPU0  GPU1  CPU cores  NUMA",
        "GPU0  X     NV12  0-63       0",
        "GPU1  NV12  X     64-127     1",
        "",
        "critical mig: GPU 0: split into MIG slices (7 in all)",
        "           why: NCCL needs whole GPUs: slices reach one another neither by NVLink nor by PCIe",
    ]
    assert lines[-1] == "2 x NVIDIA A100-SXM4-80GB: 1 critical, 1 info, 33 pass"


def test_json_can_be_diagnosed_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json", "--facts", str(FOLDER / "pod-one-gpu.json")])
    first = capsys.readouterr().out
    (tmp_path / "seen.json").write_text(first)
    assert main(["doctor", "--json", "--suggest", "--facts", str(tmp_path / "seen.json")]) == 1
    second = json.loads(capsys.readouterr().out)
    assert second["findings"] == json.loads(first)["findings"]
    assert second["suggestions"] == []


def test_suggestions_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--suggest", "--facts", str(FOLDER / "dgx-h100.json")]) == 0
    assert capsys.readouterr().out == (
        "none: NVSwitch joins all GPUs, and NCCL finds rings, trees, channels and protocols for it by itself\n"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "there is no such file: write it again with: python -m pytest_gpuperf doctor --json > FILE"),
        ("{", "got no valid JSON"),
        ("[]", "file: got [], expected an object"),
        (
            '{"doctor": 2, "facts": {}}',
            "doctor's schema 2 is newer than this version reads (1): upgrade pytest-gpuperf",
        ),
        ('{"doctor": 1}', "got no key 'facts', expected what was seen of a machine"),
        ('{"doctor": 1, "facts": {"gpus": 8}}', "file.facts: got 'gpus', expected no keys but inspection, system"),
        ('{"doctor": 1, "facts": {"system": {"hostname": 8}}}', "file.facts.system.hostname: got 8, expected a string"),
        (
            '{"doctor": 1, "facts": {"inspection": {"gpus": [], "pairs": [{"first": 0, "second": 1}]}}}',
            "file.facts.inspection: pairs name GPUs [0, 1], expected some of 0 GPUs",
        ),
    ],
)
def test_a_file_that_is_none_of_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, error: str
) -> None:
    if text is not None:
        (tmp_path / "facts.json").write_text(text)
    assert main(["doctor", "--facts", str(tmp_path / "facts.json")]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: facts '{tmp_path}/facts.json': ")
    assert error in printed


WITHOUT_TORCH = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pytest"):
            raise ImportError(name)
sys.meta_path.insert(0, Refusing())
from pytest_gpuperf.__main__ import main
sys.exit(main(["doctor"]))
"""


def test_this_machine_without_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 1)
    assert " pass" in done.stdout.splitlines()[-1]
