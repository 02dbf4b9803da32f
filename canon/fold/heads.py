"""Shifts and scales around attention that the function does not know by themselves: of norms, of keys and of values.

A norm's beta moves into the biases of all that reads it, and its gamma into the kernels where no gauge can take it (over
units that keep their places). A key's bias adds one number to all scores of a query, which a softmax does not see: it
becomes zero, unless rotary positions or a norm stand between, or a score of zero is among the others. A value's bias comes
out of every head as it went in, since the weights sum to one: it moves into the next bias.
Source: what a softmax over positions does not see (Vaswani et al. 2017, equation 1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from canon.fold.constants import absorb_constant, where_constants_go
from canon.fold.work import Step, Work
from canon.ops import Op, kind_of
from canon.ops.base import Array
from canon.symmetry import Fixed, derive

_NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm")


def fold_heads(work: Work, rotations: bool = False) -> None:
    """Fold betas and gammas of norms, then biases of keys and values, front to back.

    rotations: gammas of RMS norms wherever their readers take them, so that these norms see no single unit any more.
    """
    for op in [op for op in work.ops if op.kind in _NORMS and "beta" in op.params]:
        _move_beta(work, op)
    _move_gammas(work, rotations)
    for op in [op for op in work.ops if op.kind == "attention" and not op.attrs.get("null", False)]:
        _clear_keys(work, op)
        _move_values(work, op)


def _move_beta(work: Work, op: Op) -> None:
    if not work.unshared(op) or len(work.tensors[op.params["beta"]].shape) != 1:
        return
    readers = where_constants_go(work, op.output)
    beta = work.get(op, "beta")
    assert beta is not None
    if not readers or not beta[0].any():
        return
    rank = len(work.shapes[op.output])
    at = int(op.attrs.get("axes", [-1])[0]) % rank if op.kind in ("layer_norm", "rms_norm") else _axis(op, rank)
    for reader, path in readers:
        absorb_constant(work, reader, *(_spread(work.shapes[op.output], at, b, path) for b in beta))
    work.put(op, "beta", np.zeros_like(beta[0]), np.zeros_like(beta[0]))
    work.record.append(Step("bias", op.name, f"into {', '.join(r.name for r, _ in readers)}"))


def _move_gammas(work: Work, rotations: bool) -> None:
    """Gammas over units that keep their places move into the kernels behind them; over others they are a gauge's to choose.

    So do those that have an offset, for which no factor stands.
    """
    norms = [op for op in work.ops if op.kind in ("layer_norm", "rms_norm") and "gamma" in op.params]
    symmetry = derive(work.network()) if norms else None
    for op in norms:
        axis = symmetry.values[op.output][-1].axis if symmetry is not None else None
        free = rotations and op.kind == "rms_norm"
        offset = float(op.attrs.get("offset", 0.0))
        if not (free or offset or isinstance(axis, Fixed)) or not work.unshared(op) or op.output in work.outputs:
            continue
        readers = work.readers(op.output)
        found = work.get(op, "gamma")
        if found is None or found[0].ndim != 1 or any(r.kind != "dense" or not work.unshared(r) for r in readers):
            continue
        gamma = found[0] + offset
        if not readers or ((gamma == 1.0).all() and not free):
            continue
        for reader in readers:
            kernel = work.get(reader, "kernel")
            assert kernel is not None
            work.put(reader, "kernel", kernel[0] * gamma, kernel[1] * (found[1] + abs(offset)))
        if free:
            attrs = {k: v for k, v in op.attrs.items() if k != "offset"}
            work.swap(op, replace(op, params={r: t for r, t in op.params.items() if r != "gamma"}, attrs=attrs))
        else:
            work.put(op, "gamma", np.full_like(gamma, 1.0 - offset), np.ones_like(gamma))
        work.record.append(Step("norm", op.name, f"into {', '.join(r.name for r in readers)}"))


def _axis(op: Op, rank: int) -> int:
    return int(op.attrs.get("axis", -1)) % rank


def _spread(shape: tuple[int | None, ...], at: int, vector: Array, path: tuple[Op, ...]) -> Array:
    """A constant per unit along an axis, as it arrives behind the ops of a path."""
    sizes = [len(vector) if i == at else n or 1 for i, n in enumerate(shape)]
    x = np.broadcast_to(vector.reshape([-1 if i == at else 1 for i in range(len(sizes))]), sizes)[None]
    for step in path:
        x = kind_of(step).forward(step, [x], {})
    return x


def _source(work: Work, value: str, reader: Op) -> tuple[Op, slice] | None:
    """The dense layer whose output (or a stretch of it) a value is, and which entries, if nothing else reads these."""
    op = work.writer(value)
    if op is None or value in work.outputs or [r.name for r in work.readers(value)] != [reader.name]:
        return None
    if op.kind == "dense":
        return op, slice(0, work.tensors[op.params["kernel"]].shape[0])
    if op.kind != "slice" or int(op.attrs.get("axis", -1)) % len(work.shapes[op.inputs[0]]) != len(work.shapes[value]) - 1:
        return None
    whole = work.writer(op.inputs[0])
    if whole is None or whole.kind != "dense" or whole.output in work.outputs:
        return None
    here = range(int(op.attrs["start"]), int(op.attrs["stop"]))
    for other in work.readers(whole.output):
        if other.name != op.name and (other.kind != "slice" or _overlap(here, other)):
            return None
    return whole, slice(here.start, here.stop)


def _overlap(here: range, other: Op) -> bool:
    return max(here.start, int(other.attrs["start"])) < min(here.stop, int(other.attrs["stop"]))


def _without(bias: Array, here: slice) -> Array:
    out = bias.copy()
    out[here] = 0.0
    return out


def _clear_keys(work: Work, op: Op) -> None:
    found = _source(work, op.inputs[1], op)
    if found is None or op.inputs.count(op.inputs[1]) > 1:
        return
    dense, here = found
    bias = work.get(dense, "bias")
    if bias is None or not bias[0][here].any() or not work.unshared(dense):
        return
    work.put(dense, "bias", *(_without(b, here) for b in bias))
    work.record.append(Step("bias", dense.name, f"of keys, which {op.name} does not see"))


def _move_values(work: Work, op: Op) -> None:
    found = _source(work, op.inputs[2], op)
    readers = where_constants_go(work, op.output)
    if found is None or not readers or op.inputs.count(op.inputs[2]) > 1:
        return
    dense, here = found
    bias = work.get(dense, "bias")
    if bias is None or not bias[0][here].any() or not work.unshared(dense):
        return
    heads = int(op.attrs["heads"])
    groups = int(op.attrs.get("kv_heads", heads))
    out = [np.repeat(b[here].reshape(groups, -1), heads // groups, axis=0).reshape(-1) for b in bias]
    for reader, path in readers:
        absorb_constant(work, reader, *(_spread(work.shapes[op.output], 1, b, path) for b in out))
    work.put(dense, "bias", *(_without(b, here) for b in bias))
    work.record.append(Step("bias", dense.name, f"of values, into {', '.join(r.name for r, _ in readers)}"))
