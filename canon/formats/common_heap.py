"""A guard for one fault of the HDF5 library: it walks a damaged global heap, where long strings lie, for ever.

A collection is "GCOL", a version, its size, and objects one after the other, each with an index, a reference count and
a size; index 0 is the free space that ends it. Free space of size zero is what the library never gets past.
"""

from __future__ import annotations

from pathlib import Path

from canon.errors import CorruptFile

WINDOW = 1 << 22
"""Bytes looked through at either end of a file: what is written first or last is where strings lie."""
_HEAD = b"GCOL\x01\x00\x00\x00"
_FIELD = 8


def check_heaps(path: Path) -> None:
    """Raise CorruptFile for a global heap that would be walked for ever."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(2 * WINDOW)
        parts = [first]
        if size > len(first):
            file.seek(max(size - WINDOW, len(first)))
            parts.append(file.read())
    for part in parts:
        at = part.find(_HEAD)
        while at >= 0:
            if _endless(part[at : at + _number(part, at + _FIELD)]):
                raise CorruptFile("", "a damaged HDF5 file (its heap of strings is broken)", "Fetch the file again.")
            at = part.find(_HEAD, at + _FIELD)


def _number(part: bytes, at: int) -> int:
    return int.from_bytes(part[at : at + _FIELD], "little")


def _endless(heap: bytes) -> bool:
    at = 2 * _FIELD
    while at + 2 * _FIELD <= len(heap):
        index, size = heap[at : at + 2], _number(heap, at + _FIELD)
        step = size if index == b"\0\0" else 2 * _FIELD + -(-size // _FIELD) * _FIELD
        step %= 1 << 64  # as the library counts
        if step == 0 or step >= 1 << 63:
            return True
        at += step
    return False
