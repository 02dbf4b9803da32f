"""Constants move to where they can no longer be told from other constants.

A bias whose way to the next kernels leads only through what hands a constant on (pooling, flattening) is no freedom of
the function but a choice of where to write it: it moves into the next biases. Of several biases that meet in one sum
only the sum counts: the first keeps it. Under a softmax a shift common to all logits is taken out, and so it is in front
of whatever else does not see one (a layer norm).
"""

from __future__ import annotations

import numpy as np

from canon.fold.work import AFFINE, Step, Work
from canon.ops import Op, kind_of
from canon.ops.base import Array
from canon.ops.geometry import channel_axis
from canon.symmetry import Symmetry, derive

_TRANSPARENT = ("max_pool", "avg_pool", "global_max_pool", "global_avg_pool", "flatten")
_CENTRED = 16 * np.finfo(np.float32).eps / 2


def move_biases_on(work: Work) -> None:
    """Move biases forward through what hands constants on.

    What stays is what makes the value count from the points about which flips act: a flip then leaves it as it is.
    """
    symmetry: Symmetry | None = None
    for op in list(work.ops):
        op = next((o for o in work.ops if o.name == op.name), op)
        role = "shift" if op.kind == "scale_shift" else "bias"
        if op.kind not in AFFINE or role not in op.params or not work.unshared(op):
            continue
        readers = where_constants_go(work, op.output)
        bias = work.get(op, role)
        if not readers or bias is None or None in work.shapes[op.output]:
            continue
        symmetry = derive(work.network()) if symmetry is None else symmetry
        stays = _stays(work, op, role, symmetry)
        moving = bias[0] - stays[0], bias[1] + stays[1]
        if not moving[0].any():
            continue
        for reader, path in readers:
            arriving = [_pushed(work, op, path, b) for b in moving]
            absorb_constant(work, reader, arriving[0], arriving[1])
        work.put(op, role, *stays)
        work.record.append(Step("bias", op.name, f"into {', '.join(r.name for r, _ in readers)}"))


def _stays(work: Work, op: Op, role: str, symmetry: Symmetry) -> tuple[Array, Array]:
    """The bias with which the output, counted from its own flip points, is a linear map of the input, counted from its."""
    centres = [next((s.centre for s in symmetry.values[v] if s.centre is not None), None) for v in (op.inputs[0], op.output)]
    weight = work.get(op, "scale" if op.kind == "scale_shift" else "kernel")
    assert weight is not None
    out = np.zeros(len(weight[0])), np.zeros(len(weight[0]))
    if centres[1] is not None:
        out = out[0] + centres[1], out[1] + np.abs(centres[1])
    if centres[0] is not None:
        key = "scale" if op.kind == "scale_shift" else "kernel"
        gain, size = (
            kind_of(op).absorb(op, {key: w, role: np.zeros(len(w))}, c, None)[role]
            for w, c in zip(weight, (centres[0], np.abs(centres[0])), strict=True)
        )
        out = out[0] - gain, out[1] + size
    return out


def where_constants_go(work: Work, value: str) -> list[tuple[Op, tuple[Op, ...]]]:
    """(reader, ops on the way) for each affine op that a constant on a value reaches; empty if one cannot take it."""
    if value in work.outputs:
        return []
    out: list[tuple[Op, tuple[Op, ...]]] = []
    for reader in work.readers(value):
        if work.takes_constants(reader):
            out.append((reader, ()))
            continue
        if reader.kind not in _TRANSPARENT:
            return []
        further = where_constants_go(work, reader.output)
        if not further:
            return []
        out += [(last, (reader, *way)) for last, way in further]
    return out


def _pushed(work: Work, op: Op, path: tuple[Op, ...], vector: Array) -> Array:
    """A constant per channel on op's output, as it arrives along the last axis (or channel axis) behind the path."""
    shape = tuple(n or 1 for n in work.shapes[op.output])
    at = work.channels(op)
    x = np.broadcast_to(vector.reshape([-1 if i == at else 1 for i in range(len(shape))]), shape)[None]
    for step in path:
        x = kind_of(step).forward(step, [x], {})
    return x


def absorb_constant(work: Work, reader: Op, constant: Array, size: Array) -> None:
    """Add W c to an affine op's bias. constant, size: one value and its magnitude as a batch, alike at all positions."""
    reader = next(o for o in work.ops if o.name == reader.name)
    role = "shift" if reader.kind == "scale_shift" else "bias"
    along = (
        reader.attrs.get("axis", -1) if reader.kind == "scale_shift" else -1 if reader.kind == "dense" else channel_axis(reader)
    )
    vectors = []
    for x in (constant, size):
        flat = np.moveaxis(x[0], int(along), -1).reshape(-1, x[0].shape[int(along)])
        vectors.append(flat[0] if len(flat) else np.zeros(flat.shape[1]))
    weight = work.get(reader, "scale" if reader.kind == "scale_shift" else "kernel")
    assert weight is not None
    n = weight[0].shape[0]
    bias = work.get(reader, role) or (np.zeros(n), np.zeros(n))
    empty = {"kernel": weight[0], "scale": weight[0], role: np.zeros(n)}
    gain = kind_of(reader).absorb(reader, empty, vectors[0], None)[role]
    bound = kind_of(reader).absorb(
        reader, {"kernel": weight[1], "scale": weight[1], role: np.zeros(n)}, np.abs(vectors[1]), None
    )[role]
    work.put(reader, role, bias[0] + gain, bias[1] + bound)


def gather_sums(work: Work) -> None:
    """Of the biases of affine ops that feed one sum alone, the first keeps the total."""
    for add in [op for op in work.ops if op.kind == "add"]:
        found: list[Op] = []
        for v in add.inputs:
            op = work.writer(v)
            if op is not None and op.kind in AFFINE and work.unshared(op) and work.only_reader(v) is not None:
                found.append(op)
        if len(found) < 2 or len({work.shapes[op.output][work.channels(op)] for op in found}) > 1:
            continue
        roles = ["shift" if op.kind == "scale_shift" else "bias" for op in found]
        held = [(op, role, b) for op, role in zip(found, roles, strict=True) if (b := work.get(op, role)) is not None]
        if len(held) < 1 or (len(held) == 1 and held[0][0] is found[0]) or not any(b[0].any() for _, _, b in held[1:] or held):
            continue
        total = sum(b[0] for _, _, b in held)
        size = sum(b[1] for _, _, b in held)
        for op, role, b in held:
            if op is not found[0]:
                work.put(op, role, np.zeros_like(b[0]), np.zeros_like(b[0]))
        work.put(found[0], roles[0], np.asarray(total), np.asarray(size))
        work.record.append(Step("bias", add.name, f"sum kept by {found[0].name}"))


def centre_logits(work: Work) -> None:
    """Take the mean over the units out of kernel and bias where what follows does not see it (OpKind.blind_axis)."""
    for soft, axis in [(op, at) for op in work.ops if (at := kind_of(op).blind_axis(op)) is not None]:
        op = work.writer(soft.inputs[0])
        if op is None or op.kind not in ("dense", "conv") or not work.unshared(op) or work.only_reader(op.output) is None:
            continue
        rank = len(work.shapes[soft.output])
        if axis % rank != work.channels(op):
            continue
        changed = False
        for role in ("kernel", "bias"):
            found = work.get(op, role)
            if found is None:
                continue
            t, m = found
            mean, size = t.mean(axis=0), m.mean(axis=0)
            if (np.abs(mean) <= _CENTRED * size).all():
                continue  # centred already, up to rounding
            op = work.put(op, role, t - mean, m + size)
            changed = True
        if changed:
            work.record.append(Step("softmax shift", op.name, f"common to all that {soft.name} reads"))


def without_last_nonlinearity(ops: tuple[Op, ...], outputs: tuple[str, ...]) -> tuple[tuple[Op, ...], tuple[str, ...]]:
    """The ops and outputs in front of a final softmax or sigmoid, where outputs are compared."""
    ends = {op.output: op for op in ops if op.kind in ("softmax", "sigmoid")}
    cut = {v: ends[v].inputs[0] for v in outputs if v in ends and not any(v in op.inputs for op in ops)}
    return tuple(op for op in ops if op.output not in cut), tuple(cut.get(v, v) for v in outputs)
