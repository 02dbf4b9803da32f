"""Consoles off a terminal and on one, and progress that shows only when it is slow."""

import io
import time

from canon_cli.console import Messages, console, table

LONG = "block_" + "x" * 300


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_nothing_is_cut_wrapped_or_coloured() -> None:
    out = io.StringIO()
    console(out).print(table(["name", "d"], [[LONG, 0.5], ["[bold]\x1b[2J", None]], right=["d"]))
    console(out).print("word " * 100)
    text = out.getvalue()
    assert LONG in text
    assert "[bold]\\x1b[2J" in text
    assert "\x1b" not in text
    assert "word " * 100 in text


def test_on_a_terminal_cells_fold_and_lose_nothing(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    console(out).print(table(["name"], [[LONG]]))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 60
    assert LONG in "".join(line.strip() for line in text.splitlines())


def test_progress_shows_only_slow_steps_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for name, file, quiet, seconds in [
        ("slow", Terminal(), False, 0.4),
        ("fast", Terminal(), False, 0.0),
        ("quiet", Terminal(), True, 0.4),
        ("pipe", io.StringIO(), False, 0.4),
    ]:
        with Messages(quiet=quiet, delay=0.1, file=file).step("matching units"):
            time.sleep(seconds)
        shown[name] = "matching units" in file.getvalue()
    assert shown == {"slow": True, "fast": False, "quiet": False, "pipe": False}


def test_quiet_silences_notes() -> None:
    for quiet in (True, False):
        err = io.StringIO()
        Messages(quiet=quiet, file=err).note("a note\x07")
        assert err.getvalue() == ("" if quiet else "a note\\x07\n")
