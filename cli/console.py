"""All that knows rich: consoles, pages of text and progress. Off a terminal nothing is wrapped, cut or coloured.

Everything canon itself prints is ASCII, so that it reads alike in any locale; names from files are printed as they are,
or escaped where the stream cannot show them.
"""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.text import Text

from .text import printable

_UNBOUNDED = 1_000_000
"""Width of what is no terminal: wider than any row."""
_GAP = "  "


def console(file: TextIO | None = None) -> Console:
    """A console on a file, stdout by default, that takes text as it is: no markup, no emoji, no highlighting."""
    file = file or sys.stdout
    if file.isatty():
        return Console(file=file, markup=False, emoji=False, highlight=False)
    return Console(
        file=file,
        markup=False,
        emoji=False,
        highlight=False,
        force_terminal=False,
        color_system=None,
        width=_UNBOUNDED,
        soft_wrap=True,
    )


@dataclass(frozen=True)
class Column:
    """One column of a table.

    header; over: a heading shared with its neighbours of the same heading; right: numbers, flush right;
    leaves: where a terminal is too narrow, columns leave, those of the highest number first; 0 stays.
    """

    header: str
    over: str = ""
    right: bool = False
    leaves: int = 0

    @property
    def title(self) -> str:
        """Heading and header."""
        return f"{self.header} {self.over}".rstrip()


@dataclass(frozen=True)
class Cell:
    """One block of a heatmap: the number in it, how strongly it is coloured from 0 to 1, and whether it is marked."""

    text: str
    shade: float
    marked: bool = False


_CELL, _BLOCK = 7, 2
"""Columns that a block with its number takes, and one without."""
_SHADES = " .:-=+*#%@"
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Colours from 0 to 1: even steps of lightness, and told apart by colour-blind eyes (viridis, public domain)."""


def _colour(cell: Cell) -> str:
    """A rich style: the block's colour, and black or white upon it."""
    at = min(max(cell.shade, 0.0), 1.0) * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = [round(a + (b - a) * (at - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True)]
    light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]
    ink = "black" if light > 110 else "white"
    return f"{'bold ' if cell.marked else ''}{ink} on rgb({mixed[0]},{mixed[1]},{mixed[2]})"


class Page:
    """Text for people on one console: tables that fit its width, entries with a label and a hanging indent."""

    def __init__(self, out: Console | None = None) -> None:
        self._out = out or console()
        self.terminal = self._out.is_terminal
        self.width = self._out.width if self.terminal else _UNBOUNDED
        self._encoding = self._out.encoding or "utf-8"

    def line(self, text: object = "", style: str | None = None) -> None:
        """One line, whole: a terminal wraps what is longer than it is wide, and a copy of it is still one line."""
        self._out.print(self._shown(text), style=style, soft_wrap=True)

    def sentence(self, text: str, style: str | None = None) -> None:
        """One line off a terminal; on one, wrapped between words."""
        for part in self._wrapped(self._shown(text), self.width):
            self._out.print(part, style=style, soft_wrap=True)

    def entry(self, label: str, text: str, indent: int = 12) -> None:
        """A label and its text, which is wrapped between words under itself; a word is never broken."""
        head = f"{self._shown(label):<{indent - 1}} "
        for i, part in enumerate(self._wrapped(self._shown(text), max(self.width - indent, 20))):
            self._out.print(((head if i == 0 else " " * indent) + part).rstrip(), soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[object]], foot: int = 0) -> list[Column]:
        """Print a table and return the columns that the terminal had no room for.

        The first column is the name: one that does not fit stands whole on a line of its own, above its row. foot: how many
        of the last rows are totals, under a rule.
        """
        cells = [[self._shown("" if c is None else c) for c in row] for row in rows]
        wide = [max(cell_len(c) for c in (col.header, *(r[i] for r in cells))) for i, col in enumerate(columns)]
        longest, wide[0] = wide[0], self._name_width(columns[0], cells, self.width * 2 // 5)
        kept = list(range(len(columns)))
        while _total(wide, kept) > self.width and any(columns[i].leaves for i in kept):
            most = max(columns[i].leaves for i in kept)
            kept = [i for i in kept if columns[i].leaves != most]
        room = self.width - _total(wide, kept) + wide[0]
        wide[0] = longest if longest <= room else self._name_width(columns[0], cells, room)
        if any(columns[i].over for i in kept):
            self.line(_headings(columns, wide, kept), "bold")
        self.line(_row([col.header for col in columns], columns, wide, kept), "bold")
        rule = "-" * min(_total(wide, kept), self.width)
        self.line(rule)
        for at, row in enumerate(cells):
            if foot and at == len(cells) - foot:
                self.line(rule)
            if cell_len(row[0]) > wide[0]:
                self.line(row[0])
                row = ["", *row[1:]]
            self.line(_row(row, columns, wide, kept))
        return [col for i, col in enumerate(columns) if i not in kept]

    def heat(self, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Cell | None]]) -> None:
        """Print a heatmap: a row for each name, blocks of colour with their numbers in them, the marked ones with a star.

        Where a terminal is too narrow for names over the columns they are numbered, and named below; where it is too narrow
        for numbers, the blocks alone are shown; what still does not fit is shown in parts. Off a terminal there are no
        colours and nothing is left out.
        """
        shown = [self._shown(name) for name in columns]
        wide = max(cell_len(name) for name in (*rows, ""))
        left = min(wide + 1, max(self.width * 2 // 5, 8))
        named = max(max(cell_len(name) for name in shown) + 2, _CELL)
        room = self.width - left
        plain = self._out.color_system is None
        size = next((n for n in (named, _CELL, _BLOCK) if n * len(columns) <= room), _BLOCK)
        titles = shown if size == named else [str(i + 1) for i in range(len(columns))]
        part = max(room // size, 1)
        for start in range(0, len(columns), part):
            here = range(start, min(start + part, len(columns)))
            if size > _BLOCK:
                self.line(" " * left + "".join(titles[i].rjust(size) for i in here), "bold")
            elif len(columns) > part:
                self.sentence(f"{here[0] + 1} to {here[-1] + 1}:", "bold")
            for name, row in zip(rows, cells, strict=True):
                self.heat_row(self._shown(name), left, [row[i] for i in here], size, plain)
        if size != named and list(rows) == list(columns):
            self.entry("columns", "as the rows, in their order")
        elif size != named:
            names = ", ".join(f"{i + 1}:{name}" for i, name in enumerate(shown))
            self.entry("columns", names)

    def heat_row(self, name: str, left: int, cells: Sequence[Cell | None], size: int, plain: bool) -> None:
        """One row of a heatmap."""
        if cell_len(name) > left:
            self.line(name)
            name = ""
        text = Text(name + " " * (left - cell_len(name)))
        for cell in cells:
            if cell is None:
                text.append(" " * size)
                continue
            grey = _SHADES[round(cell.shade * (len(_SHADES) - 1))]
            if size > _BLOCK:
                shown = f"{cell.text}{'*' if cell.marked else ' '}".rjust(size - 1)
                text.append(" ")
                text.append(shown, None if plain else _colour(cell))
            elif plain:
                text.append((grey if not cell.marked else "*") + grey)
            else:
                text.append("* " if cell.marked else "  ", _colour(cell))
        self._out.print(text, soft_wrap=True)

    @staticmethod
    def _name_width(column: Column, rows: Sequence[Sequence[str]], limit: int) -> int:
        """Width of the names up to a limit: longer ones stand on lines of their own."""
        return max(cell_len(column.header), *(w for w in (cell_len(row[0]) for row in rows) if w <= limit), 0)

    def _wrapped(self, text: str, width: int) -> list[str]:
        if not self.terminal:
            return [text]
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]

    def _shown(self, text: object) -> str:
        return printable(text).encode(self._encoding, "backslashreplace").decode(self._encoding)


def _total(wide: Sequence[int], kept: Sequence[int]) -> int:
    return sum(wide[i] for i in kept) + len(_GAP) * (len(kept) - 1)


def _row(cells: Sequence[str], columns: Sequence[Column], wide: Sequence[int], kept: Sequence[int]) -> str:
    parts = []
    for i in kept:
        pad = " " * max(wide[i] - cell_len(cells[i]), 0)
        parts.append(pad + cells[i] if columns[i].right else cells[i] + pad)
    return _GAP.join(parts).rstrip()


def _headings(columns: Sequence[Column], wide: Sequence[int], kept: Sequence[int]) -> str:
    """The line above the headers: each heading over the columns that share it."""
    parts: list[str] = []
    at = 0
    while at < len(kept):
        over = columns[kept[at]].over
        run = [kept[at]]
        while over and at + len(run) < len(kept) and columns[kept[at + len(run)]].over == over:
            run.append(kept[at + len(run)])
        room = _total(wide, run)
        parts.append(f" {over} ".center(room, "-") if len(over) + 2 <= room else over.rjust(room))
        parts[-1] = parts[-1] if over else " " * room
        at += len(run)
    return _GAP.join(parts).rstrip()


class Messages:
    """Warnings, notes and progress on stderr; `quiet` silences all of it."""

    def __init__(self, quiet: bool = False, delay: float = 1.0, file: TextIO | None = None) -> None:
        self._console = console(file or sys.stderr)
        self._quiet, self._delay = quiet, delay

    def note(self, text: str) -> None:
        """One line, worth telling."""
        if not self._quiet:
            self._console.print(printable(text), soft_wrap=True)

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show that a step is under way, once it takes over `delay` seconds.

        On a terminal a spinner, which goes away; elsewhere a plain line, at most one in `delay` seconds and each only
        once. Yields a function that changes the text while it runs.
        """
        if self._quiet:
            yield lambda text: None
        elif self._console.is_terminal:
            with self._spinner(what) as tell:
                yield tell
        else:
            with self._lines(what) as tell:
                yield tell

    @contextmanager
    def _spinner(self, what: str) -> Iterator[Callable[[str], None]]:
        status = Status(printable(what), console=self._console, spinner="line")
        timer = threading.Timer(self._delay, status.start)
        timer.daemon = True
        timer.start()
        try:
            yield lambda text: status.update(printable(text))
        finally:
            timer.cancel()
            timer.join()  # it may be starting the display right now
            status.stop()

    @contextmanager
    def _lines(self, what: str) -> Iterator[Callable[[str], None]]:
        current = [what]
        done = threading.Event()

        def watch() -> None:
            told = ""
            while not done.wait(self._delay):
                if current[0] != told:
                    told = current[0]
                    with suppress(OSError, ValueError):  # nobody reads stderr: no reason to fail
                        self._console.print(f"canon: {printable(told)} ...", soft_wrap=True)

        def tell(text: str) -> None:
            current[0] = text

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield tell
        finally:
            done.set()
            watcher.join()
