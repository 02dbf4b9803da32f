"""Pages off a terminal and on one, and progress that shows only when it is slow."""

import io
import time

import pytest
from rich.console import Console

from canon_cli.console import Column, Messages, Page, console

LONG = "block_" + "x" * 300
FIGURES = [
    Column("space"),
    Column("raw", "distance", True, leaves=2),
    Column("matched", "distance", True),
    Column("group", leaves=9),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def page(width: int) -> tuple[Page, Terminal]:
    out = Terminal()
    return Page(Console(file=out, width=width, force_terminal=True, color_system=None, markup=False)), out


def test_off_a_terminal_nothing_is_cut_wrapped_or_coloured() -> None:
    out = io.StringIO()
    made = Page(console(out))
    assert not made.table([Column("name"), Column("d", right=True, leaves=1)], [[LONG, 0.5], ["[bold]\x1b[2J", None]])
    made.entry("note", "word " * 99 + "word")
    made.sentence("verdict " * 40, "bold red")
    lines = out.getvalue().splitlines()
    assert lines[2] == f"{LONG}  0.5"
    assert lines[3] == "[bold]\\x1b[2J"
    assert lines[4] == "note        " + "word " * 99 + "word"
    assert lines[5].count("verdict") == 40
    assert len(lines) == 6
    assert "\x1b" not in out.getvalue()


def test_a_narrow_terminal_loses_columns_and_no_names() -> None:
    rows = [["dense_1", "0.986", "0.002", "relabelling, scale"], [LONG, "1.000", "0.003", "fixed"]]
    for width, left in ((400, []), (45, []), (40, ["group"]), (20, ["raw", "group"])):
        made, out = page(width)
        assert [c.header for c in made.table(FIGURES, rows)] == left
        lines = [line.strip() for line in out.getvalue().splitlines()]
        assert any(line.split()[0] == LONG for line in lines if line), "the name is whole, on one line"
        assert all(len(line) <= width for line in lines if LONG not in line)
        assert any(line.startswith("dense_1") and "0.002" in line for line in lines)
        assert any("0.003" in line for line in lines)


def test_numbers_stand_under_their_headers() -> None:
    made, out = page(80)
    made.table(FIGURES, [["a", "1.000", "0.5", "fixed"], ["total", "1", "2", ""]], foot=1)
    over, head, rule, first, other, last = out.getvalue().splitlines()
    assert over == "       -- distance --"
    assert head == "space    raw  matched  group"
    assert first == "a      1.000      0.5  fixed"
    assert rule == other == "-" * len(head)
    assert last == "total      1        2"


def test_a_terminal_wraps_between_words() -> None:
    made, out = page(40)
    made.entry("note", "some words " * 6 + LONG)
    lines = out.getvalue().splitlines()
    assert lines[-1] == " " * 12 + LONG
    assert all(len(line) <= 40 for line in lines[:-1])
    assert " ".join(" ".join(lines).split()) == "note " + "some words " * 6 + LONG


def test_what_a_stream_cannot_show_is_escaped() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    made = Page(console(out))
    made.table([Column("space"), Column("d")], [["größe", "1"]])
    made.line("層")
    out.flush()
    assert b"gr\\xf6\\xdfe  1" in raw.getvalue()
    assert b"\\u5c64" in raw.getvalue()


def test_progress_shows_only_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for name, file, quiet, seconds in [
        ("slow terminal", Terminal(), False, 0.4),
        ("fast terminal", Terminal(), False, 0.0),
        ("quiet terminal", Terminal(), True, 0.4),
        ("slow pipe", io.StringIO(), False, 0.4),
        ("fast pipe", io.StringIO(), False, 0.0),
        ("quiet pipe", io.StringIO(), True, 0.4),
    ]:
        with Messages(quiet=quiet, delay=0.1, file=file).step("matching units"):
            time.sleep(seconds)
        shown[name] = "matching units" in file.getvalue()
    assert [name for name, seen in shown.items() if seen] == ["slow terminal", "slow pipe"]


def test_off_a_terminal_progress_is_plain_lines_at_a_limited_rate() -> None:
    err = io.StringIO()
    begun = time.monotonic()
    with Messages(delay=0.1, file=err).step("reading a") as tell:
        time.sleep(0.25)
        for i in range(300):
            tell(f"sweep {i}\x1b[2J")
            time.sleep(0.001)
    lines = err.getvalue().splitlines()
    assert lines[0] == "canon: reading a ..."
    assert 2 <= len(lines) <= 1 + (time.monotonic() - begun) / 0.1
    assert len(set(lines)) == len(lines)
    assert all(line.startswith("canon: sweep ") and line.endswith("\\x1b[2J ...") for line in lines[1:])


def test_a_step_that_fails_ends_its_progress() -> None:
    err = io.StringIO()
    with pytest.raises(KeyError), Messages(delay=0.05, file=err).step("reading"):
        raise KeyError
    time.sleep(0.15)
    assert not err.getvalue()


def test_quiet_silences_notes() -> None:
    for quiet in (True, False):
        err = io.StringIO()
        Messages(quiet=quiet, file=err).note("a note\x07")
        assert err.getvalue() == ("" if quiet else "a note\\x07\n")
