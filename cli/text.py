"""Text for people and programs, without any terminal library: escaping, suggestions, strict JSON."""

from __future__ import annotations

import difflib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def printable(text: object) -> str:
    """One line that is safe to show: control, format and line-breaking characters and lone surrogates are escaped.

    Names and messages from a file may hold anything, an escape sequence for the terminal included.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest known word, or "" where nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else ""


def some(names: Sequence[str], most: int = 8) -> str:
    """Names in a row; of many, the first ones and how many more."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 2])} and {len(names) - most + 2} more"


def write_json(value: Any, target: str) -> None:
    """Write one strict JSON object: to stdout for "-", else to a file, which is replaced whole or not at all.

    Raises ValueError for NaN and infinity (the caller's mistake), OSError where the file cannot be written.
    """
    text = json.dumps(value, allow_nan=False, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    write_text(text, target)


def write_text(text: str, target: str) -> None:
    """Write a file whole or not at all: what stood there stays when writing fails. Devices and pipes are written to.

    Raises OSError.
    """
    path = Path(target)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a symbolic link stays one: its target is replaced
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.", suffix=".part")
    except OSError as e:
        raise OSError(e.errno, e.strerror, target) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(draft).chmod(path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~umask)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
