"""One array of samples in a table (.csv, or .tsv with tabs): a line a sample, a column a unit.

A first line that holds something else than numbers names the columns; a column named sample_id names the samples.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from canon.errors import CorruptFile
from canon.formats.common_arrays import Arrays, Entry, Reader, names_of_samples
from canon.ops.base import Array

_ID = "sample_id"


def read(path: Path) -> Arrays:
    """The table, under the file's name without its ending."""
    values, ids = _table(path)
    entry = Entry(values.shape, values.dtype, None if ids is None else names_of_samples(np.array(ids), len(values), _ID))
    return Arrays(str(path), {path.stem: entry}, partial(_opened, values))


@contextmanager
def _opened(values: Array) -> Iterator[Reader]:
    yield lambda name, first, last: values[first:last]


def _table(path: Path) -> tuple[Array, list[str] | None]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [
                (n, row)
                for n, row in enumerate(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","), 1)
                if row
            ]
    except (UnicodeDecodeError, csv.Error) as e:
        raise CorruptFile("", "is not a table of text") from e
    header = lines[0][1] if lines and not all(_is_number(cell) for cell in lines[0][1]) else None
    lines = lines[header is not None :]
    if not lines:
        raise CorruptFile("", "is a table without a line of numbers")
    at = header.index(_ID) if header is not None and _ID in header else None
    width = len(lines[0][1]) if header is None else len(header)
    ids: list[str] = []
    values = np.empty((len(lines), width - (at is not None)))
    for i, (number, row) in enumerate(lines):
        if len(row) != width:
            raise CorruptFile(f"line {number}", f"has {len(row)} columns, and the first has {width}")
        if at is not None:
            ids.append(row[at].strip())
            row = row[:at] + row[at + 1 :]
        try:
            values[i] = [float(cell) for cell in row]
        except ValueError:
            wrong = next(cell for cell in row if not _is_number(cell))
            raise CorruptFile(f"line {number}", f"{wrong[:40]!r} is not a number") from None
    return values, None if at is None else ids


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
