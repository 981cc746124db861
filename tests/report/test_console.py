"""What the plugin prints while tests run."""

import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.report.console import Console
from tests.fake_gpus import without_ranks
from tests.scripted_figures import STEADY, TESTS, figures


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
    writer = SimpleNamespace(width_of_current_line=0)
    config = SimpleNamespace(
        getoption=lambda name, default: capture, pluginmanager=manager, get_terminal_writer=lambda: writer
    )
    return Console(cast(Any, config))


@pytest.mark.parametrize(("capture", "live"), [("no", True), ("fd", False), ("sys", False), ("tee-sys", False)])
def test_ranks_are_heard_live_where_nothing_is_captured(capture: str, live: bool) -> None:
    assert console(capture).live is live


def test_lines_of_ranks_are_printed_whole_each_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    here = console()
    here.print_of_rank(0, "rank 0 of 2", "stdout", "one\ntwo, be")
    here.print_of_rank(1, "rank 1 of 2", "stdout", "other\n")
    here.print_of_rank(0, "rank 0 of 2", "stderr", "error\n")
    here.print_of_rank(0, "rank 0 of 2", "stdout", "gun\n\n")
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0 of 2] one",
        "[rank 1 of 2] other",
        "[rank 0 of 2] error",
        "[rank 0 of 2] two, begun",
        "[rank 0 of 2] ",
    ]
    here.end_lines()
    assert capsys.readouterr().out == ""


def test_what_has_no_end_of_line_is_printed_at_the_end_of_the_test(capsys: pytest.CaptureFixture[str]) -> None:
    here = console()
    for rank in (1, 0):
        here.print_of_rank(rank, f"rank {rank} of 2", "stdout", f"of {rank}")
    assert capsys.readouterr().out == ""
    here.end_lines()
    here.end_lines()
    assert capsys.readouterr().out == "[rank 0 of 2] of 0\n[rank 1 of 2] of 1\n"


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


class Screen:
    """What pytest says of its terminal."""

    def __init__(self, *, isatty: bool = True, hasmarkup: bool = True) -> None:
        self.isatty, self.hasmarkup = isatty, hasmarkup


def on_terminal(
    *, capture: str = "fd", log_cli: bool = False, level: str | None = None, written: int = 30, **plugins: object
) -> Console:
    manager = SimpleNamespace(get_plugin={"terminalreporter": Screen(), **plugins}.get, hasplugin=lambda name: True)
    options = {"capture": capture, "log_cli_level": level}
    config = SimpleNamespace(
        getoption=lambda name, default: options[name],
        getini=lambda name: log_cli,
        get_terminal_writer=lambda: SimpleNamespace(fullwidth=100, width_of_current_line=written),
        pluginmanager=manager,
    )
    return Console(cast(Any, config))


def test_there_is_room_behind_what_pytest_wrote() -> None:
    assert on_terminal().room() == 69
    assert on_terminal(written=120).room() == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"capture": "no"},
        {"log_cli": True},
        {"level": "INFO"},
        {"terminalreporter": None},
        {"terminalreporter": Screen(isatty=False)},
        {"terminalreporter": Screen(hasmarkup=False)},
    ],
)
def test_where_others_print_or_nothing_can_be_wiped_there_is_no_room(settings: dict[str, Any]) -> None:
    assert on_terminal(**settings).room() == 0


def test_perf_tests_run_without_what_logs_live(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=STEADY, b=STEADY, c=STEADY)
    pytester.runpytest_inprocess("--smoke", "-p", "no:logging").assert_outcomes(passed=3)


def test_what_is_shown_is_wiped_once(capsys: pytest.CaptureFixture[str]) -> None:
    capture = Capture()
    here = on_terminal(capturemanager=capture)
    here.wipe()
    assert capsys.readouterr().out == ""
    here.show("measuring")
    assert capture.calls == ["suspend True", "resume"]
    here.wipe()
    here.wipe()
    assert capsys.readouterr().out == "\x1b7measuring\x1b8\x1b[K"
    assert len(capture.calls) == 2  # pytest does not capture while it logs a report, and must not begin to


@pytest.mark.parametrize("plugins", [{}, {"capturemanager": Capture()}])
def test_what_else_is_printed_takes_its_place(plugins: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    here = on_terminal(**plugins)
    here.show("measuring")
    here.say("waiting")
    assert capsys.readouterr().out == "\x1b7measuring\x1b8\x1b[Kwaiting\n"


def test_what_the_terminal_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stdin", io.StringIO("next\n"))
    here = console()
    here.print_of_rank(0, "rank 0 of 2", "stdout", "é\n\udcff")
    here.end_lines()
    here.show("test_\udcff.py")
    here.say("> test_\udcff.py(7)")
    assert here.ask("(Pdb) \udcff ") == "next\n"
    told = screen.buffer.getvalue().decode()
    assert told.startswith("[rank 0 of 2] é\n[rank 0 of 2] \\udcff\n")
    assert "test_\\udcff.py" in told
    assert "> test_\\udcff.py(7)" in told
    assert told.endswith("(Pdb) \\udcff ")
