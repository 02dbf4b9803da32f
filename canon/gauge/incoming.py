"""The `incoming` gauge: front to back, each unit is divided by the norm of what comes into it, bias included.

At the first writer, in topological order, at which that is not zero; further writers of the same space follow. Signs are
chosen so that the sum of cubes of the same vector is positive, flips through a slope so that |slope| <= 1. Everything is
computed on centred tensors (Folded.centred), where all flips act linearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from canon.gauge.moments import incoming_moment, network_ops, targets
from canon.network import Network
from canon.ops.base import Array
from canon.symmetry import Floats, Symmetry

_ONE = 16 * 2.0**-24
"""A factor within this of one is taken as one, so that normalising twice changes nothing."""


@dataclass(frozen=True)
class Gauged:
    """gauges: factor vectors that bring a network into the gauge; margins: for sign gauges, how clear each sign is, from
    0 (a toss-up) to 1.
    """

    gauges: Mapping[str, Floats]
    margins: Mapping[str, Floats]


def incoming(network: Network, tensors: Mapping[str, Array], symmetry: Symmetry, one: float = _ONE) -> Gauged:
    """Norm one for what comes into each unit. tensors: the centred tensors of the network."""
    values: dict[str, Floats] = {g.name: np.ones(g.size) for g in symmetry.gauges.values()}
    margins: dict[str, Floats] = {}
    open_: dict[str, Array] = {}
    for g in symmetry.gauges.values():
        if g.kind != "slope":
            open_[g.name] = np.ones(g.size, bool)
        elif g.sign is not None and g.slope is not None:
            size = np.abs(np.asarray(tensors[g.slope], np.float64)).reshape(-1)
            values[g.sign] = np.where(size > 1, -1.0, 1.0)
            slope = np.asarray(tensors[g.slope], np.float64).reshape(-1)
            values[g.name] = np.where(size > 1, 1.0 / np.where(size > 1, slope, 1.0), 1.0)
    for g in symmetry.gauges.values():
        if g.kind == "slope" and g.sign is not None and g.slope is not None:
            open_[g.sign] &= np.abs(np.asarray(tensors[g.slope], np.float64)).reshape(-1) == 1
    for op in network_ops(network):
        # what comes from a unit that nothing has written yet is zero: it counts for nothing
        seen = {
            g: np.where(open_[g], np.inf, v) if g in open_ and symmetry.gauges[g].kind == "positive" else v
            for g, v in values.items()
        }
        for name in targets(op, symmetry, "positive"):
            if not open_[name].any():
                continue
            trial = {**seen, **{h: values[h] for h in targets(op, symmetry, "positive")}}
            norms = np.sqrt(incoming_moment(op, tensors, symmetry, name, trial, 2))
            found = open_[name] & (norms > 0) & np.isfinite(norms)
            f = 1.0 / np.where(found, norms, 1.0)
            f = np.where(np.abs(f - 1.0) <= one, 1.0, f)
            values[name] = np.where(found, f, values[name])
            open_[name] &= ~found
        for name in targets(op, symmetry, "sign"):
            if not open_[name].any():
                continue
            trial = {**seen, **{h: values[h] for h in targets(op, symmetry, "positive")}}
            cubes = incoming_moment(op, tensors, symmetry, name, trial, 3)
            squares = incoming_moment(op, tensors, symmetry, name, trial, 2)
            found = open_[name] & (squares > 0)
            values[name] = np.where(found & (cubes < 0), -1.0, values[name])
            margin = np.abs(cubes) / np.maximum(squares, 1e-200) ** 1.5
            margins[name] = np.where(found, margin, margins.get(name, np.ones(len(margin))))
            open_[name] &= ~found
    kept = {g: v for g, v in values.items() if symmetry.gauges[g].kind != "slope"}
    return Gauged({g: v for g, v in kept.items() if (v != 1).any()}, margins)
