"""What the plugin prints while tests run."""

import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.report.console import Console


class Capture:
    """Takes note of when it is suspended."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def suspend(self, in_: bool = False) -> None:
        self.calls.append(f"suspend {in_}")

    def resume(self) -> None:
        self.calls.append("resume")


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        self.lines.append("")

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def console(capture: str = "fd", **plugins: object) -> Console:
    manager = SimpleNamespace(get_plugin=plugins.get)
    config = SimpleNamespace(getoption=lambda name, default: capture, pluginmanager=manager)
    return Console(cast(Any, config))


@pytest.mark.parametrize(("capture", "live"), [("no", True), ("fd", False), ("sys", False), ("tee-sys", False)])
def test_ranks_are_heard_live_where_nothing_is_captured(capture: str, live: bool) -> None:
    assert console(capture).live is live


def test_lines_of_ranks_are_printed_whole_each_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    here = console()
    here.print_of_rank(0, 2, "stdout", "one\ntwo, be")
    here.print_of_rank(1, 2, "stdout", "other\n")
    here.print_of_rank(0, 2, "stderr", "error\n")
    here.print_of_rank(0, 2, "stdout", "gun\n\n")
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0 of 2] one",
        "[rank 1 of 2] other",
        "[rank 0 of 2] error",
        "[rank 0 of 2] two, begun",
        "[rank 0 of 2] ",
    ]
    here.end_of_test()
    assert capsys.readouterr().out == ""


def test_what_has_no_end_of_line_is_printed_at_the_end_of_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    here = console()
    for rank in (1, 0):
        here.print_of_rank(rank, 2, "stdout", f"of {rank}")
    assert capsys.readouterr().out == ""
    here.end_of_test()
    here.end_of_test()
    assert capsys.readouterr().out == "[rank 0] of 0\n[rank 1] of 1\n"


def test_a_line_of_the_plugins_own_goes_past_the_capture_to_the_terminal() -> None:
    capture, reporter = Capture(), Reporter()
    console(capturemanager=capture, terminalreporter=reporter).print_line("waiting for GPU-0")
    assert reporter.lines == ["", "gpuperf: waiting for GPU-0"]
    assert capture.calls == ["suspend True", "resume"]


def test_a_worker_of_xdist_has_no_terminal_and_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    console(capturemanager=Capture()).print_line("waiting for GPU-0")
    assert capsys.readouterr().out == ""


def test_the_user_is_asked_past_the_capture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Capture()
    monkeypatch.setattr(sys, "stdin", io.StringIO("p x\n"))
    here = console(capturemanager=capture)
    assert here.ask("(Pdb) ") == "p x\n"
    assert here.ask("(Pdb) ") == ""  # the end of the input
    here.say("bye")
    assert capsys.readouterr().out == "(Pdb) (Pdb) bye\n"
    assert capture.calls == ["suspend True", "resume"] * 3


def test_the_capture_goes_on_where_the_user_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(text: str) -> str:
        raise KeyboardInterrupt

    capture = Capture()
    monkeypatch.setattr("builtins.input", interrupted)
    with pytest.raises(KeyboardInterrupt):
        console(capturemanager=capture).ask("(Pdb) ")
    assert capture.calls == ["suspend True", "resume"]


def test_without_capture_there_is_nothing_to_go_past(capsys: pytest.CaptureFixture[str]) -> None:
    console().say("hello")
    assert capsys.readouterr().out == "hello\n"
