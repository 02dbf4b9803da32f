"""Acting on duplicates: one file, and hard links to it in the place of its copies.

Nothing is done that was not planned, nothing without a proof made just before, and everything is logged so that it can be
undone: a link to the same bytes becomes a file of its own again; what had other bytes was moved beside the log, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from canon.errors import CanonError, ReadError, UsageError, WriteError
from canon.formats import read
from canon.zoo.groups import Group
from canon.zoo.lookup import Known
from canon.zoo.places import is_url
from canon.zoo.proof import KINDS, prove

_FORMAT = "canon.links/1"


@dataclass(frozen=True)
class Step:
    """Put a hard link to `keep` in the place of `path`. same_bytes: whether nothing at all is lost by it."""

    path: str
    keep: str
    kind: str
    size: int
    same_bytes: bool


@dataclass(frozen=True)
class Plan:
    """steps: what would be done; left: files that stay, and why."""

    steps: tuple[Step, ...]
    left: tuple[tuple[str, str], ...]

    @property
    def bytes_saved(self) -> int:
        """What the steps that lose nothing save; where bytes differ the old file is kept beside the log."""
        return sum(step.size for step in self.steps if step.same_bytes)


@dataclass(frozen=True)
class Done:
    """What became of one step; why: "" where it was done."""

    step: Step
    why: str = ""


def plan(
    groups: Sequence[Group],
    names: Sequence[tuple[str, str]] = (),
    equivalent: bool = False,
    accept_precision: bool = False,
) -> Plan:
    """Which copies would become links, by the kind of each: identical ones; equivalent ones and those to precision if told to.

    Copies in function alone are never touched, nor are files in another format than the one kept, or with checkpoints
    that it may not have. names: further names of files, (name, first name): they go with their file.
    """
    allowed = {"identical", *(["equivalent"] if equivalent else []), *(["same-to-precision"] if accept_precision else [])}
    also: dict[str, list[str]] = {}
    for name, first in names:
        also.setdefault(first, []).append(name)
    steps: list[Step] = []
    left: list[tuple[str, str]] = []
    for group in groups:
        for link in group.links:
            path, keep = link.file.place.path, group.keep
            why = "" if link.kind in allowed else f"{link.kind} to {keep.place.path}"
            why = why or _hindrance(link.file, keep)
            if why:
                left.append((path, why))
                continue
            size = link.file.place.size
            for i, name in enumerate((path, *(n for n in also.get(path, ()) if not os.path.islink(n)))):
                steps.append(Step(name, keep.place.path, link.kind, 0 if i else size, link.file.sha == keep.sha))
    return Plan(tuple(steps), tuple(left))


def _hindrance(file: Known, keep: Known) -> str:
    """Why a copy cannot become a link."""
    if is_url(file.place.path) or is_url(keep.place.path):
        return "is not on this machine"
    if file.place.inode.partition(":")[0] != keep.place.inode.partition(":")[0]:
        return f"is on another file system than {keep.place.path}"
    if file.sha == keep.sha:
        return ""
    if file.sort.format != keep.sort.format:
        return f"is in another format ({file.sort.format}) than {keep.place.path}"
    return "holds several checkpoints" if file.sort.checkpoints > 1 else ""


def act(planned: Plan, log: Path, tell: Callable[[str], None] = lambda _: None) -> list[Done]:
    """Do what was planned, each step proved again just before, and logged before it is done.

    A step whose files cannot be read, or are no longer what they were, is left out; when the file that is kept cannot be
    read, so are all others that would link to it. Raises WriteError where the log cannot be written.
    """
    out: list[Done] = []
    lost: dict[str, str] = {}
    try:
        file = log.open("x", encoding="utf-8")
    except FileExistsError:
        raise UsageError(str(log), "is there already", "Name another file with --log.") from None
    except OSError as e:
        raise WriteError(str(log), f"cannot be written: {e.strerror or e}", "Nothing was changed.") from None
    with file:
        _note(file, {"format": _FORMAT})
        for i, step in enumerate(planned.steps):
            tell(f"linking {i + 1:,} of {len(planned.steps):,} files")
            if step.keep in lost:
                out.append(Done(step, lost[step.keep]))
                continue
            try:
                why = _replace(step, log, file)
            except OSError as e:
                why = f"cannot be replaced: {e.strerror or e}"
            if why.startswith(_KEEP):
                lost[step.keep] = why
            out.append(Done(step, why))
    return out


_KEEP = "the file to keep "


def _replace(step: Step, log: Path, file: TextIO) -> str:
    """One step; why it was not done, or ""."""
    path, keep = Path(os.path.realpath(step.path)), Path(os.path.realpath(step.keep))
    try:
        there, sha_keep = keep.stat(), _sha(keep)
    except OSError as e:
        return f"{_KEEP}cannot be read: {e.strerror or e}"
    before = path.stat()
    if (before.st_dev, before.st_ino) == (there.st_dev, there.st_ino):
        return "is a link to it already"
    sha = _sha(path)
    if sha != sha_keep:
        if step.same_bytes:
            return "no longer holds the same bytes"
        why = _proved(step, keep, path)
        if why:
            return why
    now, kept = path.stat(), keep.stat()
    if _stamp(now) != _stamp(before) or _stamp(kept) != _stamp(there):
        return "changed while it was looked at"
    original = ""
    if sha != sha_keep:
        folder = log.with_name(log.name + ".originals")
        folder.mkdir(exist_ok=True)
        original = str((folder / f"{uuid.uuid4().hex}-{path.name[-100:]}").resolve())
    entry = {
        **asdict(step),
        "path": str(path),
        "keep": str(keep),
        "sha": sha,
        "sha_keep": sha_keep,
        "mode": now.st_mode & 0o7777,
        "changed": now.st_mtime_ns,
        "original": original,
    }
    _note(file, entry)
    link = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.link")
    os.link(keep, link)
    try:
        if original:
            shutil.copy2(path, original)
            if _sha(Path(original)) != sha:
                return "could not be kept beside the log"
        link.replace(path)
    finally:
        with suppress(FileNotFoundError):
            link.unlink()
    return ""


def _proved(step: Step, keep: Path, path: Path) -> str:
    try:
        found = prove(read(keep), read(path))
    except CanonError as e:
        return f"{_KEEP if e.where.startswith(str(keep)) else ''}cannot be read: {e.what}"
    if found.kind not in KINDS or KINDS.index(found.kind) > KINDS.index(step.kind):
        return f"is no longer {step.kind}"
    return ""


def _stamp(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _note(file: TextIO, entry: dict[str, Any]) -> None:
    """A line of the log, on the disk before anything else is done."""
    file.write(json.dumps(entry) + "\n")
    file.flush()
    os.fsync(file.fileno())


def undo(log: Path) -> list[tuple[str, str]]:
    """Make files of their own again out of the links that a log tells of, the last first; (path, why) of each: "" if done.

    A link that is none any more, or to something else, is left alone. Raises ReadError for what is no log.
    """
    return [(entry["path"], _restore(entry)) for entry in reversed(list(_entries(log)))]


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ReadError(str(log), f"cannot be read: {getattr(e, 'strerror', None) or e}") from None
    try:
        if not lines or json.loads(lines[0]).get("format") != _FORMAT:
            raise ValueError
        for line in lines[1:]:
            with suppress(json.JSONDecodeError):  # the last one, where writing it was cut short: nothing was done yet
                yield json.loads(line)
    except (ValueError, AttributeError):
        raise ReadError(str(log), "is no log of canon dedup --action hardlink") from None


def _restore(entry: dict[str, Any]) -> str:
    path, keep = Path(entry["path"]), Path(entry["keep"])
    try:
        if not path.exists() or not keep.exists() or not path.samefile(keep):
            return "is no link to the file kept any more, and stays as it is"
        source = Path(entry["original"]) if entry["original"] else keep
        copy = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.part")
        try:
            shutil.copyfile(source, copy)
            if _sha(copy) != entry["sha"]:
                return "stays a link: what it was is not there any more"
            copy.chmod(entry["mode"])
            os.utime(copy, ns=(entry["changed"], entry["changed"]))
            copy.replace(path)
        finally:
            copy.unlink(missing_ok=True)
        if entry["original"]:
            source.unlink()
    except OSError as e:
        return f"cannot be restored: {e.strerror or e}"
    return ""
