"""Tensors dumped by name into a numpy archive (.npz): torch state dicts and Keras-like dumps. Nothing is unpickled."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile
from canon.formats.common import Request
from canon.formats.common_dump import entries, lost
from canon.formats.common_named import Named, looks_named, read_named
from canon.formats.common_write import outgoing, replacing
from canon.formats.common_zip import archive, check, members
from canon.ops.base import Array
from canon.run import Run

NAME = "npz tensors"
SUFFIX = ".npy"
ACTION = "canon_action/"
LONGEST = 4096
PLAIN = re.compile(
    rb"\{\'descr\': \'(?P<dtype>[<>|=][biufcO]\d{0,2})\', \'fortran_order\': (?P<order>True|False), "
    rb"\'shape\': \((?P<shape>(\d{1,15}, ?)*(\d{1,15})?)\), \}\s*$"
)
"""The header of an array of plain numbers, as numpy writes it."""


def sniff(f: zipfile.ZipFile) -> bool:
    """Whether an open zip archive is numpy's."""
    inside = members(f)
    return bool(inside) and all(name.endswith(SUFFIX) for name in inside)


def read(f: zipfile.ZipFile, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. Raises CorruptFile, UsageError."""
    found = {}
    for name, info in members(f).items():
        if not name.startswith(ACTION):
            check(info)
            head = _header(f, info)
            found[name.removesuffix(SUFFIX)] = Named(name, head.shape, head.dtype, partial(_load, f, info))
    if not looks_named(found):
        some = ", ".join(list(found)[:3]) + (", ..." if len(found) > 3 else "")
        raise CorruptFile("", f"a numpy archive whose arrays are no tensors of layers by their names ({some})",
                          "Name them as torch or Keras does: layer.weight, layer/kernel.")  # fmt: skip
    return read_named(found, NAME, path, request)


@dataclass(frozen=True)
class _Header:
    """What a .npy member declares, and where its values begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    begin: int


def _header(f: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header:
    """Read without numpy's own reader, which evaluates the text; CorruptFile where the bytes are not as many as declared."""
    with f.open(info) as member:
        start = member.read(12)
        wide = start[6:7] >= b"\2"
        length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
        begin = (12 if wide else 10) + length
        text = (start[10:] if not wide else b"") + member.read(min(length, LONGEST))
    said = PLAIN.match(text[:length])
    if start[:6] != b"\x93NUMPY" or length > LONGEST or said is None:
        raise CorruptFile(info.filename, "is no plain numpy array", "The archive is damaged, or holds more than numbers.")
    dtype = np.dtype(said["dtype"].decode("ascii"))
    shape = tuple(int(n) for n in said["shape"].split(b",") if n.strip())
    if not dtype.hasobject and begin + dtype.itemsize * prod(shape) != info.file_size:
        raise CorruptFile(info.filename, f"declares shape {shape} of {dtype} in {info.file_size:,} bytes")
    return _Header(shape, dtype, said["order"] == b"True", begin)


def _load(f: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    head = _header(f, info)
    values = np.frombuffer(f.read(info), head.dtype, offset=head.begin)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return values.reshape(head.shape, order="F" if head.fortran else "C")


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors; there is no optimizer state to drop."""
    with archive(source) as found, replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as out:
        inside = members(found)
        here = outgoing(run, source, lambda at: _header(found, inside[at]).shape if at in inside else None)
        for name, info in inside.items():
            if name in here:
                out.writestr(zipfile.ZipInfo(name), packed(here[name][1]().astype(_header(found, info).dtype)))
            elif not name.startswith(ACTION):
                out.writestr(info, found.read(info))
        for space, parts in actions.items():
            for part, values in parts.items():
                out.writestr(zipfile.ZipInfo(f"{ACTION}{space}/{part}{SUFFIX}"), packed(values))


def write_new(run: Run, path: Path) -> tuple[str, ...]:
    """A state dict as .npz; what it cannot keep, a line each."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as out:
        for name, (values, _) in entries(run).items():
            with out.open(zipfile.ZipInfo(name + SUFFIX), "w", force_zip64=True) as member:
                member.write(packed(values))
    return lost(run)


def packed(values: Array) -> bytes:
    """An array as the bytes of a .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(values), allow_pickle=False)
    return out.getvalue()
