"""Constants that are added or multiplied fold into the kernels in front of them, or into those behind.

y = g x + s with one number a unit: in front, kernel g W and bias g b + s; behind, kernel W g and bias b + W s. So the mean
and range by which inputs are normalised are no freedom of a network, but a choice of where to write them. What reaches a
kernel through nothing but reshaping may have a number an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from canon.fold.constants import absorb_constant
from canon.fold.work import Step, Work
from canon.ops import Op, kind_of
from canon.ops.base import Array

_KINDS = ("add_constant", "multiply_constant", "rescale")
_WRITERS = ("dense", "conv", "depthwise_conv", "grouped_conv", "conv_transpose", "scale_shift")
_READERS = ("dense", "conv", "depthwise_conv", "scale_shift")
_RELAID = ("flatten", "reshape", "permute")
_Way = tuple[Op, tuple[Op, ...]]


def fold_constants(work: Work) -> None:
    """Fold all constants that a kernel can take, front to back, until nothing more moves."""
    changed = True
    while changed:
        changed = any(_in_front(work, op) or _behind(work, op) for op in list(work.ops) if op.kind in _KINDS)


def _numbers(work: Work, op: Op) -> tuple[Array, Array]:
    """Gain and shift in float64, each in the value's rank, with 1 along axes on which they do not vary."""
    rank = len(work.shapes[op.output])
    if op.kind == "rescale":
        gain, shift = float(op.attrs.get("factor", 1.0)), float(op.attrs.get("offset", 0.0))
        return np.full((1,) * rank, gain), np.full((1,) * rank, shift)
    found = work.get(op, "constant")
    assert found is not None
    t = found[0]
    return (np.ones_like(t), t) if op.kind == "add_constant" else (t, np.zeros_like(t))


def _in_front(work: Work, op: Op) -> bool:
    """Into the rows of the kernel that writes what the constant meets."""
    writer = work.writer(op.inputs[0])
    if writer is None or writer.kind not in _WRITERS or not work.unshared(writer) or not work.unshared(op):
        return False
    if work.only_reader(writer.output) is None:
        return False
    at = work.channels(writer)
    gain, shift = _numbers(work, op)
    if any(n > 1 for i, n in enumerate(gain.shape) if i != at):
        return False
    role, offset = ("scale", "shift") if writer.kind == "scale_shift" else ("kernel", "bias")
    kernel, bias = work.get(writer, role), work.get(writer, offset)
    assert kernel is not None
    n = len(kernel[0])
    gain, shift = (np.broadcast_to(v.reshape(-1), n) for v in (gain, shift))
    if (gain != 1).any():
        rows = gain.reshape(-1, *[1] * (kernel[0].ndim - 1))
        work.put(writer, role, kernel[0] * rows, kernel[1] * np.abs(rows))
    if bias is not None or shift.any():
        b, size = bias or (np.zeros(n), np.zeros(n))
        writer = work.put(writer, offset, b * gain + shift, size * np.abs(gain) + np.abs(shift))
    here = next(o for o in work.ops if o.name == writer.name)
    work.swap(op, None)
    work.swap(here, replace(here, output=op.output))
    work.record.append(Step("constant factor", op.name, f"into {writer.name}", into=writer.name))
    return True


def _behind(work: Work, op: Op) -> bool:
    """Into the columns of every kernel that reads the result."""
    shape = work.shapes[op.output]
    if op.output in work.outputs or None in shape:
        return False
    ways = list(_ways(work, op.output, ()))
    if not ways or any(reader is None for reader, _ in ways) or len({r.name for r, _ in ways if r}) < len(ways):
        return False
    gain, shift = (np.broadcast_to(v, tuple(n or 1 for n in shape))[None] for v in _numbers(work, op))
    arriving: list[tuple[Op, Array, Array]] = []
    for reader, way in ways:
        assert reader is not None
        g, s = gain, shift
        for step in way:
            g, s = (kind_of(step).forward(step, [v], {}) for v in (g, s))
        found = _columns(work, reader, g), _columns(work, reader, s)
        if found[0] is None or found[1] is None or (found[1].any() and not work.takes_constants(reader)):
            return False
        arriving.append((reader, found[0], s))
    for reader, columns, s in arriving:
        if s.any():
            absorb_constant(work, reader, s, np.abs(s))
        _scale_columns(work, next(o for o in work.ops if o.name == reader.name), columns)
    work.bypass(op, op.inputs[0])
    into = ", ".join(reader.name for reader, _, _ in arriving)
    work.record.append(Step("constant factor", op.name, f"into {into}"))
    return True


def _ways(work: Work, value: str, way: tuple[Op, ...]) -> Iterator[tuple[Op | None, tuple[Op, ...]]]:
    """(reader, what relays the value out on the way) for all that reads it; None for a reader that is no kernel."""
    readers = work.readers(value)
    if value in work.outputs or not readers:
        yield None, way
    for reader in readers:
        if reader.kind in _READERS and work.unshared(reader):
            yield reader, way
        elif reader.kind in _RELAID and None not in work.shapes[reader.output]:
            yield from _ways(work, reader.output, (*way, reader))
        else:
            yield None, way


def _columns(work: Work, reader: Op, x: Array) -> Array | None:
    """One number for each unit that a kernel reads, if they are the same at all positions."""
    rank = x.ndim - 1
    if reader.kind in ("dense", "scale_shift"):
        at = rank - 1 if reader.kind == "dense" else int(reader.attrs.get("axis", -1)) % rank
    else:
        at = work.channels(replace(reader, output=reader.inputs[0]))
    flat = np.moveaxis(x[0], at, -1).reshape(prod(x.shape[1:]) // max(x.shape[1 + at], 1), -1)
    return flat[0] if len(flat) and (flat == flat[0]).all() else None


def _scale_columns(work: Work, reader: Op, columns: Array) -> None:
    if (columns == 1).all():
        return
    role = "scale" if reader.kind == "scale_shift" else "kernel"
    found = work.get(reader, role)
    assert found is not None
    if reader.kind == "scale_shift":
        by = columns
    elif reader.kind == "depthwise_conv":
        by = np.repeat(columns, len(found[0]) // len(columns)).reshape(-1, *[1] * (found[0].ndim - 1))
    else:
        by = columns.reshape(1, -1, *[1] * (found[0].ndim - 2))
    work.put(reader, role, found[0] * by, found[1] * np.abs(by))
