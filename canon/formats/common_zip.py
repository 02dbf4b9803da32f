"""Zip archives with care: names that leave the archive do not count, and nothing is unpacked beyond what it declares."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from canon.errors import CanonError, CorruptFile, ReadError
from canon.formats.common import FREELY, MOST_PACKED, PACKS

MOST_MEMBERS = 100_000
SMALL = 1 << 26
"""Bytes that a text inside an archive may have."""

_TRIPS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, LookupError, RuntimeError, OverflowError)
"""What zipfile raises on damaged archives."""


@contextmanager
def archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, opened for reading; whatever zipfile trips over is a CorruptFile."""
    try:
        with zipfile.ZipFile(path) as found:
            if len(found.infolist()) > MOST_MEMBERS:
                raise CorruptFile("", f"a zip archive of {len(found.infolist()):,} members", "A model has a handful.")
            yield found
    except CanonError:
        raise
    except MemoryError as e:
        raise ReadError("", "needs more memory than there is") from e
    except _TRIPS as e:
        said = " ".join(str(e).split()) or type(e).__name__
        raise CorruptFile("", f"a damaged zip archive ({said})", "Fetch the file again.") from e


def members(found: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """What the archive holds by name, without folders and without names that would leave the archive."""
    inside: dict[str, zipfile.ZipInfo] = {}
    for info in found.infolist():
        parts = info.filename.split("/")
        if (
            not info.filename
            or info.is_dir()
            or ".." in parts
            or "" in parts
            or "\\" in info.filename
            or "\0" in info.orig_filename
        ):
            continue
        if info.filename in inside:
            raise CorruptFile(info.filename, "is in the archive twice")
        inside[info.filename] = info
    return inside


def check(info: zipfile.ZipInfo) -> None:
    """Raise CorruptFile for a member that is encrypted or declares more than its packed bytes can hold."""
    if info.flag_bits & 1:
        raise CorruptFile(info.filename, "is encrypted")
    plain = info.compress_type == zipfile.ZIP_STORED
    most = 1 if plain else MOST_PACKED if info.file_size <= FREELY else PACKS
    if info.file_size > max(info.compress_size, 1) * most:
        raise CorruptFile(
            info.filename,
            f"declares {info.file_size:,} bytes, packed in {info.compress_size:,}",
            "The file is damaged or made to harm.",
        )


def check_all(found: zipfile.ZipFile) -> None:
    """Raise CorruptFile for an archive that unpacks to far more than itself, be it a little in each of many members."""
    infos = found.infolist()
    for info in infos:
        check(info)
    size = os.path.getsize(found.filename or "")
    packed, plain = (sum(sizes) for sizes in zip(*((i.compress_size, i.file_size) for i in infos), strict=True))
    if packed > size or plain > max(FREELY, size * PACKS):
        raise CorruptFile("", f"a zip archive of {size:,} bytes that declares {plain:,}, packed in {packed:,}",
                          "The file is damaged or made to harm.")  # fmt: skip


def small(found: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    """The text of a member."""
    check(info)
    if info.file_size > SMALL:
        raise CorruptFile(info.filename, f"is a text of {info.file_size:,} bytes")
    return found.read(info).decode("utf-8")


@contextmanager
def unpacked(found: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[Path]:
    """A member as a file of its own, gone when the block ends."""
    check(info)
    with tempfile.TemporaryDirectory(prefix="canon-") as folder:
        target = Path(folder) / "member"
        with found.open(info) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        yield target
