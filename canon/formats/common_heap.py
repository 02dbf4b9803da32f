"""Guards for faults of the HDF5 library around long strings, looked for in a file's bytes before it is opened.

Long strings lie in global heaps, and an attribute holds only their length and place. The library walks a damaged heap for
ever, and clears as much memory as a damaged length asks for before it looks whether the string is there.

A heap is "GCOL", a version, its size, and objects one after the other, each with an index, a reference count and a size;
index 0 is the free space that ends it. Free space of size zero is what the library never gets past.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from canon.errors import CorruptFile

WINDOW = 1 << 22
"""Bytes looked through at either end of a file: what is written first or last is where strings lie."""
NAMES = (b"model_config", b"keras_version", b"backend", b"layer_names", b"weight_names", b"created_by", b"canon_format",
         b"name", b"dtype")  # fmt: skip
"""Attributes that canon reads."""
_HEAD = b"GCOL\x01\x00\x00\x00"
_FIELD = 8
_LENGTHS = 9
"""The class of types of variable length."""


def check_heaps(path: Path) -> None:
    """Raise CorruptFile for strings that the library would look for in vain, with all the time and memory there is."""
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
            whole = _number(part, at + _FIELD)
            if whole > size or _endless(part[at : at + whole]):
                raise CorruptFile("", "a damaged HDF5 file (its heap of strings is broken)", "Fetch the file again.")
            at = part.find(_HEAD, at + _FIELD)
        if any(length > size for name in NAMES for length in _lengths(part, name)):
            raise CorruptFile("", "a damaged HDF5 file (a string longer than the file)", "Fetch the file again.")


def _number(part: bytes, at: int, width: int = _FIELD) -> int:
    return int.from_bytes(part[at : at + width], "little")


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


def _lengths(part: bytes, name: bytes) -> Iterator[int]:
    """The lengths of the strings of every attribute of this name, or of one that is numbered (layer_names0)."""
    at = part.find(name)
    while at >= 0:
        for padded, head in ((True, 8), (False, 9), (False, 8)):  # versions 1, 3 and 2 of an attribute
            begin = at - head
            if begin < 0 or part[begin] != {True: 1, False: 2 + (head == 9)}[padded]:
                continue
            sizes = [_number(part, begin + i, 2) for i in (2, 4, 6)]
            if not len(name) < sizes[0] <= len(name) + 8:
                continue
            steps = [-(-n // _FIELD) * _FIELD if padded else n for n in sizes]
            kind = at + steps[0]
            data, many = kind + steps[1] + steps[2], _many(part, kind + steps[1])
            if part[kind : kind + 1] and part[kind] & 15 == _LENGTHS:
                yield from (_number(part, data + 16 * i, 4) for i in range(min(many, 1 << 12)))
        at = part.find(name, at + 1)


def _many(part: bytes, space: int) -> int:
    """How many elements a dataspace of the file has."""
    if space + 8 > len(part):
        return 0
    version, rank = part[space], part[space + 1]
    first, many = space + (8 if version == 1 else 4), 1
    for i in range(min(rank, 32)):
        many *= _number(part, first + _FIELD * i)
    return many
