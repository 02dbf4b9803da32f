"""Sums of powers of the parameters that come into each unit, under the gauges found so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array
from canon.pieces import entries, exponent
from canon.symmetry import Floats, Symmetry, factor, gauges_of

_CHUNK = 1 << 21
"""Entries handled at a time."""


def incoming_sides(op: Op, symmetry: Symmetry, gauge: str) -> Iterator[tuple[str, int]]:
    """(tensor, axis) of the op's parameters that a gauge multiplies."""
    for tensor in op.params.values():
        for dim, side in enumerate(symmetry.axes[tensor]):
            if exponent(side.axis, gauge) > 0:
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


def side_moment(t: Array, symmetry: Symmetry, tensor: str, dim: int, values: Mapping[str, Floats], power: int) -> Floats:
    """Sum of (entry * factors) ** power over all axes but one, (size of that axis,), in float64."""
    axes = symmetry.axes[tensor]
    factors = [factor(side.axis, values) for side in axes]
    own = factors[dim]
    x = np.moveaxis(t, dim, 0)
    others = [f for i, f in enumerate(factors) if i != dim]
    out = np.empty(len(x))
    step = max(1, _CHUNK // max(1, x[0].size))
    for start in range(0, len(x), step):
        part = np.asarray(x[start : start + step], np.float64)
        part = part * part if power == 2 else part**power
        for f in reversed(others):  # contract the last axis first
            part = part.sum(axis=-1) if f is None else part @ (f**power)
        out[start : start + step] = part
    return out if own is None else out * own**power


def incoming_peak(
    op: Op, tensors: Mapping[str, Array], symmetry: Symmetry, gauge: str, values: Mapping[str, Floats]
) -> Floats:
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
