"""The check: a move is proved, not trusted. Networks that are called equal are run on both sides.

On seeded noise at input scales 0.1, 1 and 10 and on stored probes, in float64, compared before a final softmax or sigmoid.
Outputs agree when each differs by at most 16 u L m: m is the same run on absolute values, L the number of affine maps on
the way, u the rounding of what was stored. A bound larger than the outputs' spread proves nothing, nor do outputs that do
not vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from canon.errors import CanonError, UnsupportedOp
from canon.fold.constants import without_last_nonlinearity
from canon.forward import affine_depth, bounded, probe_inputs
from canon.network import Network
from canon.ops.base import Array

SCALES = (0.1, 1.0, 10.0)
_LARGE, MANY = 1 << 16, 1 << 24
"""Inputs with more entries, and networks with more parameters, are probed with fewer samples."""


@dataclass(frozen=True)
class Agreement:
    """deviation: the largest, in units of its bound (None: not checked, and why); probes: how many samples counted;
    bound: the largest bound, relative to the spread of the outputs: how much the agreement is worth.
    """

    deviation: float | None
    why: str
    probes: int
    bound: float = 1.0


def bare(network: Network) -> tuple[Network, tuple[bool, ...]]:
    """The network without a final softmax or sigmoid; for each output, whether its mean over classes is free."""
    ends = {op.output: op.kind for op in network.ops}
    ops, outputs = without_last_nonlinearity(network.ops, network.outputs)
    free = tuple(ends.get(v) == "softmax" and w != v for v, w in zip(network.outputs, outputs, strict=True))
    return Network(network.tensors, ops, network.inputs, outputs), free


def probes(network: Network, stored: Mapping[str, Mapping[str, Array]] | None, seed: int) -> list[dict[str, Array]]:
    """Inputs to run: noise at three scales, and stored probes that fit; none where no input size is known to run."""
    try:
        return _probes(network, stored, seed)
    except UnsupportedOp:
        return []


def _probes(network: Network, stored: Mapping[str, Mapping[str, Array]] | None, seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    size = sum(int(np.prod([n or 16 for n in shape])) for shape in network.inputs.values())
    samples = 8 if size < _LARGE and network.parameters < MANY else 2
    sets = [probe_inputs(network, rng, samples, scale) for scale in SCALES]
    tokens = probe_inputs(network, np.random.default_rng(seed), samples, 0.0)
    if all(x.any() for x in tokens.values()):  # whole numbers all: no input has a scale
        sets = sets[:1]
    for values in (stored or {}).values():
        if set(values) == set(network.inputs):
            sets.append({v: np.asarray(x[:64], np.float64) for v, x in values.items()})
    return sets


@dataclass(frozen=True)
class Outputs:
    """What a network gives on all probes: outputs and their magnitudes by position, its depth in affine maps, and for
    each output whether its mean over classes is free; or why it could not be run.
    """

    values: tuple[Array, ...]
    sizes: tuple[Array, ...]
    depth: int
    free: tuple[bool, ...]
    why: str = ""


def run_on(network: Network, sets: list[dict[str, Array]], order: Sequence[str] | None = None) -> Outputs:
    """Run a network on all sets of probes at once. order: the names, in the sets, of its inputs by position."""
    short, free = bare(network)
    if not sets:
        return Outputs((), (), 0, free, "not checked: no input size is known to run through the network")
    names = list(order) if order is not None else list(short.inputs)
    inputs = {v: np.concatenate([s[n] for s in sets]) for v, n in zip(short.inputs, names, strict=True)}
    try:
        with np.errstate(all="ignore"):
            values, sizes = bounded(short, inputs)
    except CanonError as error:
        if any(op.kind == "cut" for op in short.ops):
            return Outputs((), (), 0, free, "not checked: only a part of the networks is compared")
        return Outputs((), (), 0, free, f"not checked: {error.where}: {error.what}")
    except MemoryError:
        return Outputs((), (), 0, free, "not checked: not enough memory to run the networks")
    return Outputs(tuple(values[v] for v in short.outputs), tuple(sizes[v] for v in short.outputs), affine_depth(short), free)


def agree(a: Outputs, b: Outputs, unit: float, sets: list[dict[str, Array]]) -> Agreement:
    """Whether two networks gave the same on the same probes. unit: the rounding u of what is stored."""
    if a.why or b.why:
        return Agreement(None, a.why or b.why, 0)
    worst: float | None = None
    counted, why, start, loosest = 0, "", 0, 0.0
    for inputs in sets:
        samples = len(next(iter(inputs.values())))
        here = slice(start, start + samples)
        start += samples
        deviation, bound, wrong = _deviation(a, b, here, 16 * unit * max(a.depth, b.depth))
        if wrong:
            why = wrong
            continue
        counted += samples
        loosest = max(loosest, bound)
        worst = deviation if worst is None else max(worst, deviation)
    return Agreement(worst, "" if worst is not None else why, counted, loosest)


def _deviation(a: Outputs, b: Outputs, here: slice, rate: float) -> tuple[float, float, str]:
    deviation = share = 0.0
    for x, y, ma, mb, shifts in zip(a.values, b.values, a.sizes, b.sizes, a.free, strict=True):
        p, q, m = x[here], y[here], np.maximum(ma[here], mb[here])
        if shifts:
            p, q, m = p - p.mean(-1, keepdims=True), q - q.mean(-1, keepdims=True), m + m.mean(-1, keepdims=True)
        bound = rate * m
        spread = float(np.ptp(p, axis=0).max(initial=0.0))
        if not np.isfinite(p).all() or not np.isfinite(bound).all():
            return 0.0, 1.0, "not checked: outputs overflow"
        if spread <= 0:
            return 0.0, 1.0, "not checked: the outputs do not vary over the probes"
        if float(bound.max()) > spread:
            return 0.0, 1.0, "not checked: the rounding bound is larger than the outputs' spread over the probes"
        share = max(share, float(bound.max()) / spread)
        deviation = max(deviation, float((np.abs(p - q) / np.maximum(bound, np.finfo(float).tiny)).max()))
    return deviation, share, ""
