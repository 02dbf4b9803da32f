"""Sums of powers of the parameters that come into each unit, under the gauges found so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array
from canon.pieces import entries, exponent
from canon.symmetry import Floats, Symmetry, factor, gauges_of

_CHUNK = 1 << 18
"""Entries handled at a time."""


def incoming_sides(op: Op, symmetry: Symmetry, gauge: str) -> Iterator[tuple[str, int]]:
    """(tensor, axis) of the op's parameters that a gauge multiplies.

    What reads the same units that it writes (a recurrent kernel) is left out: it says nothing before they are settled.
    """
    for tensor in op.params.values():
        axes = symmetry.axes[tensor]
        for dim, side in enumerate(axes):
            if exponent(side.axis, gauge) > 0 and not any(gauge in gauges_of(x.axis) for i, x in enumerate(axes) if i != dim):
                yield tensor, dim


def targets(op: Op, symmetry: Symmetry, kind: str) -> list[str]:
    """Gauges of a kind that multiply some parameter of the op."""
    found: dict[str, None] = {}
    for tensor in op.params.values():
        for side in symmetry.axes[tensor]:
            for g, e in gauges_of(side.axis).items():
                if e > 0 and symmetry.gauges[g].kind == kind:
                    found[g] = None
    return list(found)


def incoming_moment(
    op: Op, tensors: Mapping[str, Array], symmetry: Symmetry, gauge: str, values: Mapping[str, Floats], power: int
) -> Floats:
    """For each entry of the gauge, the sum of entry ** power over all that comes in at this op, (size,)."""
    total = np.zeros(symmetry.gauges[gauge].size)
    for tensor, dim in incoming_sides(op, symmetry, gauge):
        sums = side_moment(tensors[tensor], symmetry, tensor, dim, values, power)
        at = entries(symmetry.axes[tensor][dim].axis, gauge)
        np.add.at(total, at[at >= 0], sums[at >= 0])
    return total


def side_moment(
    t: Array, symmetry: Symmetry, tensor: str, dim: int, values: Mapping[str, Floats], power: int, rough: bool = False
) -> Floats:
    """Sum of (entry * factors) ** power over all axes but one, (size of that axis,).

    In float64; rough: in the stored type, where only the order of magnitude matters. Read along memory, a block at a time.
    """
    axes = symmetry.axes[tensor]
    if not t.ndim:
        return np.asarray(t, np.float64).reshape(1) ** power
    factors = [factor(side.axis, values) for side in axes]
    own = factors[dim]
    far = int(np.argmax(np.abs(t.strides)))
    order = (far, *(i for i in range(t.ndim) if i != far))
    x, weights, along = t.transpose(order), [None if (f := factors[i]) is None else f**power for i in order], order.index(dim)
    kind = x.dtype if rough and x.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    out = np.zeros(t.shape[dim])
    step = max(1, _CHUNK // max(1, x[0].size if len(x) else 1))
    for start in range(0, len(x), step):
        here = slice(start, min(start + step, len(x)))
        part = np.asarray(x[here], kind)
        part = part * part if power == 2 else part if power == 1 else part**power
        for i in reversed(range(part.ndim)):
            if i == along:
                continue
            w = weights[i]
            if w is None:
                part = part.sum(axis=i)
                continue
            w = (w[here] if i == 0 else w).astype(kind, copy=False)
            if part.ndim == 2:  # einsum: threads of a linear algebra library cost more than blocks this small
                part = np.einsum("ij,j->i", part, w) if i else np.einsum("ij,i->j", part, w)
            else:
                part = np.tensordot(part, w, (i, 0))
        out[here if along == 0 else slice(None)] += part
    return out if own is None else out * own**power


def incoming_peak(op: Op, tensors: Mapping[str, Array], symmetry: Symmetry, gauge: str, values: Mapping[str, Floats]) -> Floats:
    """For each entry of the gauge, the largest size of all that comes in at this op, (size,): no sum, no rounding."""
    total = np.zeros(symmetry.gauges[gauge].size)
    for tensor, dim in incoming_sides(op, symmetry, gauge):
        x = np.abs(np.asarray(tensors[tensor], np.float64))
        for i, side in enumerate(symmetry.axes[tensor]):
            if (f := factor(side.axis, values)) is not None:
                x = x * np.abs(f).reshape([-1 if j == i else 1 for j in range(x.ndim)])
        peaks = np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1).max(axis=1, initial=0.0)
        at = entries(symmetry.axes[tensor][dim].axis, gauge)
        np.maximum.at(total, at[at >= 0], peaks[at >= 0])
    return total


def network_ops(network: Network) -> Iterator[Op]:
    """Ops with parameters in topological order, a shared one at its first use."""
    seen: set[tuple[str, ...]] = set()
    for op in network.ops:
        key = tuple(op.params.values())
        if key and key not in seen:
            seen.add(key)
            yield op
