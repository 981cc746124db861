"""The README's Python examples run as they stand, on CPUs."""

import re
from pathlib import Path

from tests.whole_run import run_pytest, write

ROOT = Path(__file__).parents[1]


def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    assert examples.count('device="cuda")') == 1
    # The one that measures needs GPUs; without the binding --smoke tries its body on gloo.
    on_cpus = examples.replace('ranks(2, 4, device="cuda")', "ranks(2)")
    write(tmp_path, {"test_readme.py": on_cpus, "pytest.ini": "[pytest]\n"})
    run = run_pytest(tmp_path, "--smoke")
    run.result.assert_outcomes(passed=3)
    assert "1 perf test ran and handed over 1 metric; --smoke judges none" in run.section("gpuperf")
