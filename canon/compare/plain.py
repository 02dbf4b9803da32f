"""The plain diff: tensor by tensor, as stored, nothing taken out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from canon.compare.pairing import Pairing, pair
from canon.compare.result import TensorFigures
from canon.errors import MismatchError
from canon.network import Network
from canon.ops.base import Array

_SINGLE = 1 << 20
"""Float32 tensors with so many entries are summed in float32, a block at a time."""


Kept = Mapping[str, Mapping[str, Array]]
"""Tensor -> the arrays that its file keeps in its place, by path (Run.kept)."""


def plain_diff(a: Network, b: Network, kept: tuple[Kept, Kept] = ({}, {})) -> tuple[tuple[TensorFigures, ...], Pairing | None]:
    """Every tensor of both, paired by wiring where the graphs agree and by name otherwise; the pairing, or None.

    kept: of either; where both have as many arrays of the same shapes for a tensor, these are shown in its place.
    """
    try:
        pairing: Pairing | None = pair(a, b, ignore=("eps",))
        assert pairing is not None
        partner = {ta: tb for tb, ta in pairing.tensors.items() if ta in a.tensors}
    except MismatchError:
        pairing, partner = None, {t: t for t in a.tensors if t in b.tensors}
    out = []
    for name, x in a.tensors.items():
        statistics = _is_statistic(a, name)
        if name not in partner:
            out.append(TensorFigures(name, None, x.shape, None, "only in a", statistics))
            continue
        y = b.tensors[partner[name]]
        if whole := _stored(kept[0].get(name), kept[1].get(partner[name])):
            out += [
                TensorFigures(p, q, s.shape, _distance(s, t), "same" if same_bytes(s, t) else "differs", statistics)
                for p, s, q, t in whole
            ]
            continue
        if x.shape != y.shape:
            out.append(TensorFigures(name, partner[name], x.shape, None, "shape", statistics))
            continue
        raw = _distance(x, y)
        out.append(TensorFigures(name, partner[name], x.shape, raw, "same" if same_bytes(x, y) else "differs", statistics))
    known = set(partner.values())
    out += [
        TensorFigures(None, t, y.shape, None, "only in b", _is_statistic(b, t)) for t, y in b.tensors.items() if t not in known
    ]
    return tuple(out), pairing


def _stored(a: Mapping[str, Array] | None, b: Mapping[str, Array] | None) -> list[tuple[str, Array, str, Array]]:
    """The arrays of both with their paths, one by one; nothing where they are not alike in number and shape."""
    if not a or not b or [t.shape for t in a.values()] != [t.shape for t in b.values()]:
        return []
    return [(p, s, q, t) for (p, s), (q, t) in zip(a.items(), b.items(), strict=True)]


def same_bytes(x: Array, y: Array) -> bool:
    """The same type, and the same bit patterns (so that -0.0 and 0.0 differ, and byte order does not count)."""
    kind = x.dtype.newbyteorder("=")
    if kind != y.dtype.newbyteorder("=") or x.shape != y.shape:
        return False
    whole = f"u{kind.itemsize}" if kind.itemsize in (1, 2, 4, 8) else None
    for p, q in _blocks(x, y):
        if whole is not None:
            p, q = (np.ascontiguousarray(t, kind).view(whole) for t in (p, q))
        if not np.array_equal(p, q):
            return False
    return True


def _blocks(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    """Both tensors a block at a time, along the axis that lies furthest apart in memory."""
    if not x.ndim:
        yield x.reshape(1), y.reshape(1)
        return
    far = int(np.argmax(np.abs(x.strides)))
    p, q = np.moveaxis(x, far, 0), np.moveaxis(y, far, 0)
    rows = max(1, (1 << 18) // max(1, p[0].size if len(p) else 1))
    for start in range(0, len(p), rows):
        yield p[start : start + rows], q[start : start + rows]


def same_network(a: Network, b: Network, pairing: Pairing, kept: tuple[Kept, Kept] = ({}, {})) -> bool:
    """Whether the graphs agree in every attribute (eps included) and all tensors in every byte; kept: as in `plain_diff`."""
    try:
        exact = pair(a, b)
    except MismatchError:
        return False
    if set(exact.tensors.values()) != set(a.tensors) or set(exact.tensors) != set(b.tensors):
        return False
    return all(
        a.stored_type(ta) == b.stored_type(tb)
        and same_bytes(a.tensors[ta], b.tensors[tb])
        and _same_stored(kept[0].get(ta), kept[1].get(tb))
        for tb, ta in pairing.tensors.items()
    )


def _same_stored(a: Mapping[str, Array] | None, b: Mapping[str, Array] | None) -> bool:
    return not (a or b) or ((whole := _stored(a, b)) != [] and all(same_bytes(s, t) for _, s, _, t in whole))


def same_tensors(a: Network, b: Network) -> bool:
    """Whether both hold the same tensors, whatever their names and order."""
    left, right = (
        sorted(
            hashlib.sha256(repr((t.shape, str(t.dtype))).encode() + np.ascontiguousarray(t).tobytes()).digest()
            for t in n.tensors.values()
        )
        for n in (a, b)
    )
    return bool(left) and left == right


def _distance(x: Array, y: Array) -> float | None:
    """|x - y| / sqrt(|x|^2 + |y|^2) over the whole tensor."""
    gap = total = 0.0
    single = x.dtype == y.dtype == np.float32 and x.size >= _SINGLE
    for p, q in _blocks(x, y):
        if not single:
            p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
        d = p - q
        gap += float(np.vdot(d, d))
        total += float(np.vdot(p, p)) + float(np.vdot(q, q))
    return float(np.sqrt(gap / total)) if total > 0 else 0.0


def _is_statistic(network: Network, tensor: str) -> bool:
    return any(op.kind == "batch_norm" and role in ("mean", "variance") for op, role in network.uses.get(tensor, ()))
