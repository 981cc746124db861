"""Where a launch's time goes, on ranks of CPUs whose steps sleep."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import pytest_gpuperf
from benchmarks.launch_profile import main, report, subject
from benchmarks.launch_profiles.in_ranks import sitecustomize
from benchmarks.launch_profiles.stacks import DOINGS, FOLDER, IDLE, OWN, Sample, Window, by_test, doing, samples

pytestmark = pytest.mark.usefixtures("fresh_python")

PACKAGE = Path(pytest_gpuperf.__file__).parent

TEST = """
import time
import pytest

@pytest.mark.ranks(2)
def test_sleeps(perf, ranks):
    def program(ctx):
        time.sleep(0.6)
        return lambda: time.sleep(0.01)
    def verify(ctx, output, steps):
        time.sleep(0.4 if ctx.rank else 0.0)
    perf.check(time=perf.measure(program, verify=verify).time)
    time.sleep(0.3)
    ranks.run(lambda ctx: time.sleep(0.5))
"""


def test_seconds_are_those_of_what_ranks_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TEST)
    assert (
        main(["--folder", str(tmp_path / "profile"), "--", "--rootdir", str(tmp_path), str(tmp_path), "--smoke"]) == 0
    )
    assert main(["--folder", str(tmp_path / "profile"), "--read"]) == 0
    lines = capfd.readouterr().out.splitlines()
    (line, again) = [line for line in lines if re.match(r" +[\d.]+  \S*test_it.py::test_sleeps\[2ranks\]: ", line)]
    assert line == again
    seconds = {words: float(own) for words, own in re.findall(r"([a-z -]+) ([\d.]+)(?:,|$)", line.partition("]: ")[2])}
    seconds = {words.strip(): own for words, own in seconds.items()}
    assert seconds["preparation"] == pytest.approx(0.6, abs=0.3)
    assert seconds["verification"] == pytest.approx(0.8, abs=0.3)
    assert seconds[OWN] == pytest.approx(0.5, abs=0.3)
    assert IDLE in seconds  # however long: a busy machine adds to it


def test_functions_by_which_stacks_are_told_exist() -> None:
    for markers in DOINGS.values():
        for marker in markers:
            file, _, name = marker.partition(":")
            assert re.search(rf"^ *def {name}\(", (PACKAGE / file).read_text(), re.MULTILINE), marker
    assert re.search(r"^ *def _run\(", (PACKAGE / "ranks" / "rank.py").read_text(), re.MULTILINE)
    assert sitecustomize.FOLDER == FOLDER


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("ranks/rank.py:main;ranks/channel.py:receive", IDLE),
        ("ranks/rank.py:main;ranks/rank.py:_run;suite/programs.py:step", OWN),
        ("ranks/rank.py:_run;timing/measure.py:warm_up;timing/measure.py:sample;timing/clock.py:time", "warm-up"),
        ("ranks/rank.py:_run;timing/measure.py:__init__;timing/measure.py:_plan;timing/clock.py:time", "estimates"),
        ("ranks/rank.py:_open_group;ranks/groups.py:open", "process groups"),
    ],
)
def test_a_stack_is_told_by_its_functions(stack: str, words: str) -> None:
    assert doing(stack) == words


def test_the_busiest_rank_of_a_test_counts() -> None:
    found = [Window("a", "setup", 0.0, 1.0), Window("a", "call", 1.0, 2.0), Window("b", "call", 3.0, 4.0)]
    busy = [Sample(at, "ranks/rank.py:_run") for at in (0.5, 1.0, 1.5, 2.5, 3.5)]
    idle = [Sample(at, "ranks/rank.py:main") for at in (1.1, 1.2, 1.3, 3.1, 3.2)]
    assert by_test(found, [idle, busy]) == {"a": Counter({OWN: 0.02}), "b": Counter({OWN: 0.01})}
    assert by_test(found, []) == {}


def test_a_rank_that_was_killed_while_it_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "1.stacks").write_text("# 0 a;b\n1.000 0\n1.010 0\n# 1 a;")
    (tmp_path / "2.stacks").write_text("# 0 a;b\n1.000 0\n1.010 ")
    assert [sample.at for sample in samples(tmp_path / "1.stacks")] == [1.0, 1.01]
    assert [sample.at for sample in samples(tmp_path / "2.stacks")] == [1.0]


def test_tests_are_added_up_by_their_folder(tmp_path: Path) -> None:
    (tmp_path / "windows.jsonl").write_text(
        '["s/one/test_a.py::t", "call", 1, 3]\n["s/one/test_b.py::t", "call", 3, 4]\n'
    )
    assert "    3.00  one" in list(report(tmp_path, 1))
    assert subject("test_a.py::t[2ranks]") == "test_a.py"
