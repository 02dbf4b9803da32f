"""The `exact` gauge: powers of two and signs on the tensors as stored, so that nothing ever rounds.

Each unit is multiplied by the power of two that brings the largest size of what comes into it to [1, 2). Its sign makes
the larger of its positive and its negative entries, compared from the largest down, the positive ones. Flips about
another point than zero, and through slopes, would round: they are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from canon.gauge.incoming import Gauged
from canon.gauge.moments import incoming_peak, incoming_sides, network_ops, targets
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array
from canon.pieces import entries
from canon.symmetry import Floats, Symmetry, factor


def exact(network: Network, symmetry: Symmetry) -> Gauged:
    """Powers of two and signs for the unfolded network."""
    tensors = {name: symmetry.whole(name, t) for name, t in network.tensors.items()}
    values: dict[str, Floats] = {g.name: np.ones(g.size) for g in symmetry.gauges.values()}
    open_ = {g.name: np.ones(g.size, bool) for g in symmetry.gauges.values() if _rounds_never(g.kind, g.flip)}
    margins: dict[str, Floats] = {}
    for op in network_ops(network):
        seen = {
            g: np.where(open_[g], np.inf, v) if g in open_ and symmetry.gauges[g].kind == "positive" else v
            for g, v in values.items()
        }
        for g in targets(op, symmetry, "positive"):
            if g in open_ and open_[g].any():
                trial = {**seen, **{h: values[h] for h in targets(op, symmetry, "positive")}}
                peak = incoming_peak(op, tensors, symmetry, g, trial)
                found = open_[g] & (peak > 0) & np.isfinite(peak)
                values[g] = np.where(found, np.ldexp(1.0, 1 - np.frexp(np.where(found, peak, 1.0))[1]), values[g])
                open_[g] &= ~found
        for g in targets(op, symmetry, "sign"):
            if g in open_ and open_[g].any():
                trial = {**seen, **{h: values[h] for h in targets(op, symmetry, "positive")}}
                signs, clear = _larger_side(op, tensors, symmetry, g, trial)
                found = open_[g] & (signs != 0)
                values[g] = np.where(found, signs, values[g])
                margins[g] = np.where(found, clear, margins.get(g, np.ones(len(clear))))
                open_[g] &= ~found
    return Gauged({g: v for g, v in values.items() if g in open_ and (v != 1).any()}, margins)


def _rounds_never(kind: str, flip: str) -> bool:
    return kind == "positive" or (kind == "sign" and flip == "none")


def _larger_side(
    op: Op, tensors: Mapping[str, Array], symmetry: Symmetry, gauge: str, values: Mapping[str, Floats]
) -> tuple[Floats, Floats]:
    """+1 or -1 as the positive or negative entries of each unit are larger (0: nothing comes in); 0 where they are alike."""
    n = symmetry.gauges[gauge].size
    rows: list[list[Array]] = [[] for _ in range(n)]
    for tensor, dim in incoming_sides(op, symmetry, gauge):
        x = np.asarray(tensors[tensor], np.float64)
        for i, side in enumerate(symmetry.axes[tensor]):
            if (f := factor(side.axis, values)) is not None:
                x = x * f.reshape([-1 if j == i else 1 for j in range(x.ndim)])
        flat = np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
        for position, entry in enumerate(entries(symmetry.axes[tensor][dim].axis, gauge)):
            if entry >= 0:
                rows[entry].append(flat[position])
    signs, clear = np.zeros(n), np.ones(n)
    for j, parts in enumerate(rows):
        row = np.concatenate(parts) if parts else np.zeros(0)
        up, down = (np.sort(side)[::-1] for side in (row[row > 0], -row[row < 0]))
        if not len(up) and not len(down):
            continue
        width = max(len(up), len(down))
        a, b = (np.pad(side, (0, width - len(side))) for side in (up, down))
        differ = np.flatnonzero(a != b)
        signs[j] = 1.0 if not len(differ) or a[differ[0]] > b[differ[0]] else -1.0
        clear[j] = float(bool(len(differ)))
    return signs, clear
