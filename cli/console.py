"""All that knows rich: consoles, tables and progress. Off a terminal nothing is wrapped, cut or coloured."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from .text import printable

_UNBOUNDED = 1_000_000
"""Width of what is no terminal: wider than any row."""


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


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """A plain table. Cells are escaped, and fold on a terminal but are never cut; right: headers of number columns."""
    numbers = set(right)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        made.add_column(header, justify="right" if header in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else printable(cell) for cell in row))
    return made


class Messages:
    """Warnings, notes and progress on stderr; `quiet` silences all of it."""

    def __init__(self, quiet: bool = False, delay: float = 1.0, file: TextIO | None = None) -> None:
        self._console = console(file or sys.stderr)
        self._quiet, self._delay = quiet, delay

    def note(self, text: str) -> None:
        """One line, worth telling."""
        if not self._quiet:
            self._console.print(printable(text))

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show that a step is under way, once it takes over `delay` seconds, on a terminal only.

        Yields a function that changes the text while it runs.
        """
        if self._quiet or not self._console.is_terminal:
            yield lambda text: None
            return
        status = Status(printable(what), console=self._console)
        timer = threading.Timer(self._delay, status.start)
        timer.daemon = True
        timer.start()
        try:
            yield lambda text: status.update(printable(text))
        finally:
            timer.cancel()
            timer.join()  # it may be starting the display right now
            status.stop()
