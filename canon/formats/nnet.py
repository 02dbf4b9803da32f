"""The .nnet text format (Julian 2016, for ACAS Xu): ReLU between dense layers, and how inputs and outputs are normalised.

    // comments
    layers, inputs, outputs, widest layer
    inputs, the size of each layer
    0 (not used)
    the least value of each input; the largest; the mean of each input, and of the outputs; the range of each, likewise
    for each layer: a row of its kernel a line, then its biases, one a line

The network is its layers. Their inputs are (x - mean) / range, x cut to what lies between least and largest, and the outputs
are times their range plus their mean: that is the run's `whole`. Source: the format's description by its author.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile, ReadError, WriteError
from canon.formats.common import Request
from canon.formats.common_write import replacing
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array
from canon.run import Run, Stored

NAME = "nnet"
LONGEST = 1 << 26
"""Bytes of a line."""
_SURE, _MOST = 6, 9
"""Decimal digits that every float32 keeps, and digits that tell any two of them apart."""


@dataclass(frozen=True)
class _Text:
    """A file taken apart. sizes: of inputs and layers; limits: least and largest; means, ranges: inputs, then outputs;
    rows: lines of numbers from the first kernel on.
    """

    sizes: tuple[int, ...]
    limits: tuple[Array, Array]
    means: Array
    ranges: Array
    rows: tuple[tuple[bytes, ...], ...]


def read(f: Any, path: Path, request: Request) -> Run:
    """The run. Raises CorruptFile, ReadError."""
    text = _parse(path)
    single, digits = _precision(text.rows)
    tensors = _tensors(text, np.dtype(np.float32 if single else np.float64))
    network = _layers(text, tensors)
    kept = "float32, whose decimals they are" if single else "float64, for float32 does not hold them"
    notes = [f"its numbers have up to {digits} decimal digits: kept as {kept}"]
    plain = not text.means.any() and (text.ranges == 1).all()
    if not plain:
        notes.append("its header normalises inputs and outputs: the network is its layers alone, without that")
    return Run(
        path=str(path),
        format=NAME,
        network=network,
        layout={name: Stored(name) for name in tensors},
        graph="stored",
        notes=tuple(notes),
        whole=_normalised(text, network, clipped=True),
        alternatives=() if plain else (_normalised(text, network, clipped=False),),
        readings=() if plain else ("with the normalisation of its header, nothing clipped",),
    )


# reading


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST):
                number += 1
                if len(line) == LONGEST:
                    raise CorruptFile("", f"line {number} has more than {LONGEST:,} bytes")
                line = line.strip()
                if line and not line.startswith(b"//"):
                    yield number, line
    except OSError as e:
        raise ReadError("", f"cannot be read: {e.strerror or e}") from None


def _cells(line: bytes) -> tuple[bytes, ...]:
    return tuple(cell.strip() for cell in line.strip().rstrip(b",").split(b","))


def _numbers(cells: tuple[bytes, ...], number: int) -> Array:
    try:
        found = np.array([float(cell) for cell in cells])
    except ValueError:
        raise CorruptFile("", f"a .nnet file whose line {number} holds something else than numbers") from None
    return found


def _whole(line: tuple[int, bytes] | None, count: int | None) -> list[int]:
    number, cells = (0, ()) if line is None else (line[0], _cells(line[1]))
    if not all(cell.isdigit() and len(cell) < 10 for cell in cells) or not cells or count not in (None, len(cells)):
        raise CorruptFile("", f"a .nnet file whose line {number} does not give the sizes of its layers")
    return [int(cell) for cell in cells]


def _parse(path: Path) -> _Text:
    lines = _lines(path)
    layers, inputs, outputs, _ = _whole(next(lines, None), 4)
    sizes = _whole(next(lines, None), None)
    size = path.stat().st_size
    if len(sizes) != layers + 1 or layers < 1 or sizes[0] != inputs or sizes[-1] != outputs or min(sizes) < 1:
        raise CorruptFile(
            "", f"a .nnet file of {layers} layers, {inputs} inputs and {outputs} outputs, whose sizes are {sizes[:8]}"
        )
    need = sum(n * m + m for n, m in pairwise(sizes))
    if 2 * need > size:  # a digit and what parts it from the next
        raise CorruptFile("", f"a truncated .nnet file: {need:,} numbers in {size:,} bytes", "Fetch it again.")
    next(lines, None)  # a flag that nothing reads
    header = []
    for what, n in (("least values", inputs), ("largest values", inputs), ("means", inputs + 1), ("ranges", inputs + 1)):
        number, line = next(lines, (0, b""))
        found = _numbers(_cells(line), number)
        if len(found) != n or not np.isfinite(found).all():
            raise CorruptFile("", f"a .nnet file with {len(found)} {what} for {inputs} inputs")
        header.append(found)
    if (header[3] == 0).any():
        raise CorruptFile("", "a .nnet file with a range of zero")
    rows: list[tuple[bytes, ...]] = []
    for width, m in pairwise(sizes):
        for k in range(2 * m):
            number, line = next(lines, (0, b""))
            cells = _cells(line)
            if len(cells) != (width if k < m else 1) or not cells[0]:
                there = "ends" if not number else f"has {len(cells)} numbers in line {number}, and not {width if k < m else 1}"
                raise CorruptFile("", f"a truncated .nnet file: it {there}", "Fetch it again.")
            rows.append(cells)
    more = next(lines, None)
    if more is not None:
        raise CorruptFile("", f"a .nnet file that goes on behind its last layer, in line {more[0]}")
    return _Text(tuple(sizes), (header[0], header[1]), header[2], header[3], tuple(rows))


def _digits(cell: bytes) -> int:
    mantissa = cell.lower().split(b"e")[0].lstrip(b"+-").replace(b".", b"")
    return max(len(mantissa.lstrip(b"0")), 1)


def _precision(rows: tuple[tuple[bytes, ...], ...]) -> tuple[bool, int]:
    """Whether all numbers are the decimals of float32 numbers, and how many digits they have at most.

    A number is, if float32 holds it exactly or prints it so at as many digits; with up to six every number does.
    """
    most, single = 1, True
    for cells in rows:
        for cell in cells:
            n = _digits(cell)
            most = max(most, n)
            if n <= _SURE or not single:
                continue
            try:
                value = float(cell)
            except ValueError:
                continue
            near = float(np.float32(value))
            single = near == value or (n <= _MOST and float(f"{near:.{n - 1}e}") == value)
    return single, most


def _tensors(text: _Text, dtype: np.dtype[Any]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    at = 0
    for i, (width, m) in enumerate(pairwise(text.sizes), 1):
        kernel, bias = np.empty((m, width), dtype), np.empty(m, dtype)
        with np.errstate(over="ignore"):
            for k in range(m):
                kernel[k] = _numbers(text.rows[at + k], at + k)
                bias[k] = _numbers(text.rows[at + m + k], at + m + k)[0]
        tensors[f"layer_{i}/kernel"], tensors[f"layer_{i}/bias"] = kernel, bias
        at += 2 * m
    return tensors


# networks


def _layers(text: _Text, tensors: Mapping[str, Array]) -> Network:
    ops: list[Op] = []
    value, last = "input", len(text.sizes) - 1
    for i in range(1, last + 1):
        name = f"layer_{i}"
        params = {"kernel": f"{name}/kernel", "bias": f"{name}/bias"}
        out = "output" if i == last else f"{name}/sum"
        ops.append(Op("dense", name, (value,), out, params))
        value = out
        if i < last:
            value = f"{name}/relu"
            ops.append(Op("relu", value, (out,), value))
    return Network(tensors, tuple(ops), {"input": (text.sizes[0],)}, ("output",))


def _normalised(text: _Text, network: Network, clipped: bool) -> Network:
    """The layers with what the header says of their inputs and outputs."""
    tensors = {
        **network.tensors,
        "input/least": text.limits[0],
        "input/largest": text.limits[1],
        "input/mean": -text.means[:-1],
        "input/range": 1 / text.ranges[:-1],
    }
    ops = [
        Op("clamp", "clip", ("input",), "clipped", {"low": "input/least", "high": "input/largest"}),
        Op("add_constant", "mean", ("clipped" if clipped else "input",), "centred", {"constant": "input/mean"}),
        Op("multiply_constant", "range", ("centred",), "normalised", {"constant": "input/range"}),
        *(
            Op(o.kind, o.name, tuple("normalised" if v == "input" else v for v in o.inputs), o.output, o.params)
            for o in network.ops
        ),
        Op("rescale", "scaled", ("output",), "scaled", {}, {"factor": float(text.ranges[-1]), "offset": float(text.means[-1])}),
    ]
    if not clipped:
        ops = ops[1:]
        tensors = {name: t for name, t in tensors.items() if name not in ("input/least", "input/largest")}
    return Network(tensors, tuple(ops), network.inputs, ("scaled",))


# writing


def write(
    run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool
) -> tuple[str, ...]:
    """A copy of the source with the run's layers; rows that did not change are kept letter by letter. Raises WriteError.

    The format has no place for `actions`: what is lost is returned, a line each.
    """
    text = _parse(source)
    single, _ = _precision(text.rows)
    old = _tensors(text, np.dtype(np.float32 if single else np.float64))
    new = run.network.tensors
    for name in {**old, **new}:
        if name not in old or name not in new or old[name].shape != new[name].shape:
            raise WriteError("", f"the network and {source} do not hold the same tensors: {name!r}",
                             "Write it in canon's own format.")  # fmt: skip
    rows: list[bytes] = []
    at = 0
    for i in range(1, len(text.sizes)):
        for role in ("kernel", "bias"):
            before, after = (t[f"layer_{i}/{role}"] for t in (old, new))
            for k in range(len(before)):
                same = np.array_equal(before[k], after[k])
                rows.append(b",".join(text.rows[at]) + b"," if same else _written(np.atleast_1d(after[k]), before.dtype))
                at += 1
    with replacing(path) as temporary, temporary.open("wb") as out:
        out.writelines(_header(source))
        out.writelines(row + b"\n" for row in rows)
    return ("what led to the copy is not kept in it: the format has no place for it",) if actions else ()


def _header(source: Path) -> list[bytes]:
    """The lines in front of the first kernel, as they are: comments, and seven lines of numbers."""
    out: list[bytes] = []
    with source.open("rb") as file:
        seen = 0
        while seen < 7 and (line := file.readline(LONGEST)):
            out.append(line)
            seen += bool(line.strip()) and not line.strip().startswith(b"//")
    return out


def _written(row: Array, dtype: np.dtype[Any]) -> bytes:
    """The shortest decimals that are read as these numbers."""
    with np.errstate(over="ignore"):
        stored = row.astype(dtype)
    if not np.isfinite(stored).all():
        raise WriteError("", f"a value is beyond the range of {dtype}", "Write it in canon's own format.")
    return b",".join(np.format_float_scientific(v, unique=True).encode("ascii") for v in stored) + b","
