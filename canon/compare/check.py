"""The check: a move is proved, not trusted. Networks that are called equal are run on both sides.

On seeded noise at input scales 0.1, 1 and 10 and on stored probes, in float64, compared before a final softmax or sigmoid.
Outputs agree when each differs by at most 16 u L m: m is the same run on absolute values, L the number of affine maps on
the way, u the rounding of what was stored. A bound larger than the outputs' spread proves nothing, nor do outputs that do
not vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from canon.errors import CanonError
from canon.fold.constants import without_last_nonlinearity
from canon.forward import affine_depth, forward, magnitudes, probe_inputs
from canon.network import Network
from canon.ops.base import Array

SCALES = (0.1, 1.0, 10.0)
_LARGE = 1 << 16
"""Inputs with more entries than this are probed with fewer samples."""


@dataclass(frozen=True)
class Agreement:
    """deviation: the largest, in units of its bound (None: not checked, and why); probes: how many samples counted."""

    deviation: float | None
    why: str
    probes: int


def bare(network: Network) -> tuple[Network, tuple[bool, ...]]:
    """The network without a final softmax or sigmoid; for each output, whether its mean over classes is free."""
    ends = {op.output: op.kind for op in network.ops}
    ops, outputs = without_last_nonlinearity(network.ops, network.outputs)
    free = tuple(ends.get(v) == "softmax" and w != v for v, w in zip(network.outputs, outputs, strict=True))
    return Network(network.tensors, ops, network.inputs, outputs), free


def probes(network: Network, stored: Mapping[str, Mapping[str, Array]] | None, seed: int) -> list[dict[str, Array]]:
    """Inputs to run: noise at three scales, and stored probes that fit."""
    rng = np.random.default_rng(seed)
    size = sum(int(np.prod([n or 16 for n in shape])) for shape in network.inputs.values())
    sets = [probe_inputs(network, rng, 8 if size < _LARGE else 2, scale) for scale in SCALES]
    for values in (stored or {}).values():
        if set(values) == set(network.inputs):
            sets.append({v: np.asarray(x[:64], np.float64) for v, x in values.items()})
    return sets


def agree(a: Network, b: Network, unit: float, sets: list[dict[str, Array]]) -> Agreement:
    """Run both on the same inputs. a, b: same inputs and outputs by position, tensors of any type; unit: rounding u."""
    (a, free), (b, _) = bare(a), bare(b)
    depth = max(affine_depth(a), affine_depth(b))
    worst: float | None = None
    counted, why = 0, "not checked: no probe could be run"
    for inputs in sets:
        theirs = dict(zip(b.inputs, (inputs[v] for v in a.inputs), strict=True))
        try:
            with np.errstate(all="ignore"):
                ya, yb = forward(a, inputs), forward(b, theirs)
                ma, mb = magnitudes(a, inputs), magnitudes(b, theirs)
        except CanonError as error:
            return Agreement(None, f"not checked: {error.where}: {error.what}", 0)
        except MemoryError:
            return Agreement(None, "not checked: not enough memory to run the networks", 0)
        deviation = 0.0
        for va, vb, shifts in zip(a.outputs, b.outputs, free, strict=True):
            x, y = ya[va], yb[vb]
            m = np.maximum(ma[va], mb[vb])
            if shifts:
                x, y, m = x - x.mean(axis=-1, keepdims=True), y - y.mean(axis=-1, keepdims=True), m + m.mean(axis=-1, keepdims=True)
            bound = 16 * unit * depth * m
            spread = float(np.ptp(x, axis=0).max(initial=0.0))
            if not np.isfinite(x).all() or not np.isfinite(bound).all():
                why = "not checked: outputs overflow"
                break
            if spread <= 0:
                why = "not checked: the outputs do not vary over the probes"
                break
            if float(bound.max()) > spread:
                why = "not checked: the rounding bound is larger than the outputs' spread over the probes"
                break
            deviation = max(deviation, float((np.abs(x - y) / np.maximum(bound, np.finfo(float).tiny)).max()))
        else:
            counted += len(next(iter(inputs.values())))
            worst = deviation if worst is None else max(worst, deviation)
    return Agreement(worst, "" if worst is not None else why, counted)
