"""Where files are: folders, patterns, and whatever fsspec reaches (s3://bucket/zoo and the like).

Names that begin with a dot are left out of folders, links to folders are not followed. A file elsewhere is copied here for as
long as it is read, one at a time.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from canon.errors import MissingExtra, ReadError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?\[]")
EXTRA = "fsspec"


@dataclass(frozen=True, slots=True)
class Place:
    """path: absolute, or a URL; size in bytes; changed: when, in nanoseconds (0: not known); inode: "device:number", "" where
    there is none; regular: whether it is a file and no pipe or device.
    """

    path: str
    size: int
    changed: int
    inode: str = ""
    regular: bool = True


def is_url(word: str) -> bool:
    """Whether a word names something that is not in a file system here."""
    return _URL.match(word) is not None


def find(word: str) -> Iterator[Place]:
    """All files under a folder or matching a pattern, or the one file; folder by folder, in the order of their names.

    Raises ReadError where nothing is there, MissingExtra.
    """
    if is_url(word):
        yield from _far(word)
    elif os.path.isdir(word):
        yield from _folder(os.path.abspath(word))
    elif os.path.lexists(word):
        yield _place(os.path.abspath(word))
    elif _MAGIC.search(word):
        found = False
        for path in sorted(glob.iglob(word, recursive=True)):
            found = True
            yield from find(path)
        if not found:
            raise ReadError(word, "no file matches")
    else:
        raise ReadError(word, "no such file or folder")


def folder(word: str) -> str:
    """The folder that a word names, as files in it are known by; "" where it is something else."""
    if is_url(word):
        system, path = _opened(word)
        return str(system.unstrip_protocol(path)) if not _MAGIC.search(path) and system.isdir(path) else ""
    return os.path.abspath(word) if os.path.isdir(word) else ""


def _folder(path: str) -> Iterator[Place]:
    stack = [path]
    while stack:
        here = stack.pop()
        try:
            with os.scandir(here) as entries:
                inside = sorted(entries, key=lambda e: e.name)
        except OSError as e:
            raise ReadError(here, f"cannot be listed: {e.strerror or e}") from None
        below: list[str] = []
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            elif not entry.is_dir():
                yield _place(entry.path)
        stack += reversed(below)


def _place(path: str) -> Place:
    try:
        found = os.stat(path)
    except OSError:  # a link to nowhere, or gone since: reading it says so
        return Place(path, 0, 0)
    regular = stat.S_ISREG(found.st_mode)
    inode = f"{found.st_dev}:{found.st_ino}" if found.st_ino else ""
    return Place(path, found.st_size if regular else 0, found.st_mtime_ns, inode, regular)


# elsewhere


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingExtra("", "reading URLs needs fsspec", "Install it with: pip install 'canonform[fsspec]'") from None
    return fsspec


def _opened(word: str) -> tuple[Any, str]:
    """The file system that a URL is in, and its path there."""
    fsspec = _fsspec()
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(word)
    except ImportError as e:
        raise MissingExtra(word, f"needs a package that is not installed ({e})", "Install what fsspec asks for.") from None
    except ValueError as e:
        raise ReadError(word, f"cannot be reached: {e}") from None
    return found


def _far(word: str) -> Iterator[Place]:
    system, path = _opened(word)
    try:
        if _MAGIC.search(path):
            found = system.glob(path, detail=True)
        elif system.isdir(path):
            found = system.find(path, detail=True)
        else:
            found = {path: system.info(path)}
    except FileNotFoundError:
        found = {}
    except Exception as e:  # each kind of storage has errors of its own
        raise ReadError(word, f"cannot be listed: {_said(e)}") from None
    if not found:
        raise ReadError(word, "no such file or folder")
    for name, info in sorted(found.items()):
        hidden = any(part.startswith(".") for part in name.removeprefix(path).split("/"))
        if info.get("type") == "file" and not hidden:
            yield Place(system.unstrip_protocol(name), int(info.get("size") or 0), _changed(info))


def _changed(info: dict[str, Any]) -> int:
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e9)
        if isinstance(value, int | float):
            return int(value * 1e9)
    return 0


def _said(e: Exception) -> str:
    return " ".join(str(e).split()) or type(e).__name__


def content(path: str) -> bytes:
    """All bytes of a file. Raises ReadError."""
    try:
        if not is_url(path):
            return Path(path).read_bytes()
        system, name = _opened(path)
        data: bytes = system.cat_file(name)
        return data
    except FileNotFoundError:
        raise ReadError("", "no such file") from None
    except OSError as e:
        raise ReadError("", f"cannot be opened: {e.strerror or e}") from None
    except ReadError:
        raise
    except Exception as e:
        raise ReadError("", f"cannot be fetched: {_said(e)}") from None


@contextmanager
def here(path: str, data: bytes | None = None) -> Iterator[Path]:
    """A file as one of this machine: itself, or a copy that goes when the block ends. data: its bytes, if they are at hand."""
    if not is_url(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="canon-") as folder:
        copy = Path(folder) / (path.rsplit("/", 1)[-1] or "file")
        if data is not None:
            copy.write_bytes(data)
        else:
            system, name = _opened(path)
            try:
                system.get_file(name, str(copy))
            except Exception as e:
                raise ReadError("", f"cannot be fetched: {_said(e)}") from None
        yield copy
