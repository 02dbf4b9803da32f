"""safetensors: a length, a JSON header, and the tensors' bytes one after the other, which are mapped and not read.

    8 bytes   length n of the header, little-endian
    n bytes   JSON: name -> {dtype, shape, data_offsets}, and under __metadata__ strings by name
    the rest  every tensor at its offsets from here, in C order, little-endian, without holes

What the header says is held against the file's size before anything is made of it.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile, UnknownFormat, WriteError
from canon.formats.common import Request
from canon.formats.common_dump import entries, lost
from canon.formats.common_named import Named, read_named
from canon.formats.common_write import fitted, outgoing, replacing
from canon.ops.base import Array
from canon.precision import BFLOAT16, from_bfloat16
from canon.run import Run

NAME = "safetensors"
METADATA = "__metadata__"
LONGEST = 100_000_000
"""Bytes that a header may have."""
MOST_MARKS = 2_000_000
"""Brackets and commas that a header may have: as many as 250,000 tensors need."""
LARGEST = 1 << 50
"""Numbers and bytes that no file has; numpy cannot count many more, not even of an array without entries."""
DEEPEST = 32
"""Axes that every numpy can hold."""

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": BFLOAT16,
         "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
         "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64"}  # fmt: skip
"""Types of the format by their usual names."""
BITS = {"F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
        "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}  # fmt: skip
"""Types that are weights only together with scales, which are kept elsewhere: their bits."""
CODES = {kind: code for code, kind in TYPES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor as the header declares it. begin, end: bytes from where the tensors begin."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Opened:
    """A file whose header has been read and held against its size. start: where the tensors begin."""

    path: Path
    start: int
    entries: Mapping[str, Entry]

    @cached_property
    def mapped(self) -> mmap.mmap:
        """The file's bytes, in memory only where they are looked at."""
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def load(self, name: str) -> Array:
        """A tensor: a view of the file, which cannot be written to; a copy where the file's type or place asks for one."""
        entry = self.entries[name]
        kind = TYPES[entry.code]
        dtype = np.dtype("<u2" if kind == BFLOAT16 else kind).newbyteorder("<")
        if entry.begin == entry.end:
            return np.zeros(entry.shape, np.float32 if kind == BFLOAT16 else np.dtype(kind))
        flat = np.frombuffer(self.mapped, dtype, prod(entry.shape), self.start + entry.begin)
        values: Array = from_bfloat16(flat) if kind == BFLOAT16 else flat
        if not (values.dtype.isnative and values.flags.aligned):
            values = values.astype(values.dtype.newbyteorder("="))
        return values.reshape(entry.shape)


def named(path: Path) -> dict[str, Named]:
    """What a file holds, by name, nothing of it read yet. Raises CorruptFile, UnknownFormat for types without meaning alone."""
    opened = read_header(path)
    found = {}
    for name, entry in opened.entries.items():
        if entry.code in BITS:
            raise UnknownFormat(name, f"is stored as {entry.code}: such numbers mean something only with their scales",
                                "Dequantise the file to bfloat16 first.")  # fmt: skip
        kind = TYPES[entry.code]
        half = kind == BFLOAT16
        dtype = np.dtype(np.float32 if half else kind)
        found[name] = Named(name, entry.shape, dtype, partial(opened.load, name), BFLOAT16 if half else "")
    return found


def read(f: Any, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UnknownFormat, UsageError."""
    return read_named(named(path), NAME, path, request)


# the header


def read_header(path: Path) -> Opened:
    """The header, checked. Raises CorruptFile in one line that says what is wrong with it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST or 8 + length > size:
            raise CorruptFile("", f"a safetensors header of {length:,} bytes in a file of {size:,}",
                              "The file is truncated, damaged or made to harm.")  # fmt: skip
        raw = file.read(length)
    if any(raw.count(mark) > MOST_MARKS for mark in (b"[", b"{", b",")):
        raise CorruptFile("", "a safetensors header of more tensors than any network has", "The file is made to harm.")
    try:
        said = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        raise CorruptFile("", f"a safetensors header that is not JSON ({type(e).__name__})", "Fetch the file again.") from e
    if not isinstance(said, dict):
        raise CorruptFile("", "a safetensors header that is no JSON object")
    told = said.pop(METADATA, {})
    if not (isinstance(told, dict) and all(isinstance(v, str) for v in told.values())):
        raise CorruptFile(METADATA, "is no object of strings")
    entries = {name: _entry(name, value) for name, value in said.items()}
    _check_places(entries, size - 8 - length)
    return Opened(path, 8 + length, entries)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise CorruptFile(twice, "is in the safetensors header twice")
    return found


def _entry(name: str, said: Any) -> Entry:
    if not isinstance(said, dict) or set(said) != {"dtype", "shape", "data_offsets"}:
        raise CorruptFile(name, "is not declared by its dtype, shape and data_offsets")
    code, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(code, str) or (code not in TYPES and code not in BITS):
        raise CorruptFile(name, f"is of a type that safetensors has not: {str(code)[:40]!r}")
    if not (_sizes(shape) and len(shape) <= DEEPEST and prod(n or 1 for n in shape) < LARGEST
            and _sizes(offsets) and len(offsets) == 2):  # fmt: skip
        raise CorruptFile(name, "declares a shape or offsets that are no sizes")
    begin, end = offsets
    bits = BITS.get(code) or 8 * np.dtype("u2" if TYPES[code] == BFLOAT16 else TYPES[code]).itemsize
    if (end - begin) * 8 != prod(shape) * bits:
        raise CorruptFile(name, f"declares shape {tuple(shape)} of {code} in {end - begin:,} bytes")
    return Entry(code, tuple(shape), begin, end)


def _sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < LARGEST for n in found)


def _check_places(entries: Mapping[str, Entry], size: int) -> None:
    """Raise CorruptFile where tensors overlap, leave holes or do not end with the file."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > size:
            raise CorruptFile(name, f"lies outside the file: bytes {entry.begin:,} to {entry.end:,} of {size:,}",
                              "The file is truncated, damaged or made to harm.")  # fmt: skip
        if entry.begin != at:
            what = "overlaps the tensor before it" if entry.begin < at else "follows bytes that belong to no tensor"
            raise CorruptFile(name, what, "The file is damaged or made to harm.")
        at = entry.end
    if at != size:
        raise CorruptFile("", f"holds {size - at:,} bytes more than its safetensors header declares",
                          "The file is damaged or made to harm.")  # fmt: skip


# writing


def write(
    run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool
) -> tuple[str, ...]:
    """A copy of the source with the run's tensors: its names, order, types and metadata; what it cannot keep, a line each."""
    opened = read_header(source)
    here = outgoing(run, source, lambda key: opened.entries[key].shape if key in opened.entries else None)
    with replacing(path) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("r+b") as out:
            for key, (name, values) in here.items():
                entry = opened.entries[key]
                out.seek(opened.start + entry.begin)
                out.write(_raw(fitted(name, values(), TYPES[entry.code])))
    return ("the relabelling and scales that led here are not kept",) if actions else ()


def write_new(run: Run, path: Path) -> tuple[str, ...]:
    """A state dict as safetensors; what it cannot keep, a line each."""
    held = entries(run)
    found = {key: values for key, (values, _) in held.items()}
    kinds = {key: kind for key, (_, kind) in held.items()}
    if wrong := [key for key, kind in kinds.items() if kind not in CODES]:
        raise WriteError(wrong[0], f"is of type {kinds[wrong[0]]}, which safetensors has not")
    order = sorted(found, key=lambda key: -_itemsize(kinds[key]))  # every tensor lies at a multiple of its numbers' size
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    at = 0
    for key in order:
        end = at + found[key].size * _itemsize(kinds[key])
        header[key] = {"dtype": CODES[kinds[key]], "shape": list(found[key].shape), "data_offsets": [at, end]}
        at = end
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    said += b" " * (-len(said) % 8)
    with replacing(path) as temporary, temporary.open("wb") as out:
        out.write(len(said).to_bytes(8, "little") + said)
        for key in order:
            out.write(_raw(fitted(key, found[key], kinds[key])))
    return lost(run)


def _itemsize(kind: str) -> int:
    return 2 if kind == BFLOAT16 else np.dtype(kind).itemsize


def _raw(values: Array) -> memoryview:
    """The bytes of an array in C order, little-endian."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
