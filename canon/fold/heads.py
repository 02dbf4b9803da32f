"""Shifts around attention that the function does not know by themselves: of norms, of keys and of values.

A norm's beta moves into the biases of all that reads it. A key's bias adds one number to all scores of a query, which a
softmax does not see: it becomes zero, unless rotary positions or a norm stand between, or a score of zero is among the
others. A value's bias comes out of every head as it went in, since the weights sum to one: it moves into the next bias.
Source: THEORY section 1c.
"""

from __future__ import annotations

import numpy as np

from canon.fold.constants import absorb_constant, where_constants_go
from canon.fold.work import Step, Work
from canon.ops import Op, kind_of
from canon.ops.base import Array

_NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm")


def fold_heads(work: Work) -> None:
    """Fold betas of norms, then biases of keys and values, front to back."""
    for op in [op for op in work.ops if op.kind in _NORMS and "beta" in op.params]:
        _move_beta(work, op)
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
