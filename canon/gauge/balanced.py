"""The `balanced` gauge: the scales at which the sum of squares of all parameters is least.

A convex problem in the log-scales, unique wherever every unit lies on a path from something to something. It is solved on
squared entries summed over everything that carries no scale, started from the `incoming` gauge so that the members of an
orbit run through the same iterates (L-BFGS, scipy).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from canon.gauge.incoming import Gauged, incoming
from canon.network import Network
from canon.ops.base import Array
from canon.pieces import entries, exponent
from canon.symmetry import Floats, Symmetry, factor, gauges_of

_REACH = 40.0
"""Bound on each log-scale beside the start: beyond it a minimum is only approached at infinity."""
_SETTLED = 1e-6
"""Factors all this near one say that the network is balanced already."""


def balanced(
    network: Network,
    tensors: Mapping[str, Array],
    symmetry: Symmetry,
    start: Gauged | None = None,
    tolerance: float = 1e-8,
    steps: int = 200,
) -> Gauged:
    """Scales of least total square, signs of the `incoming` gauge. tolerance: relative, on the gradient."""
    start = incoming(network, tensors, symmetry) if start is None else start
    problem = _Squares(tensors, symmetry, start.gauges)
    if not problem.size:
        return start
    from scipy.optimize import minimize

    found = minimize(
        problem.value, np.zeros(problem.size), jac=True, method="L-BFGS-B", bounds=[(-_REACH, _REACH)] * problem.size,
        options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-13, "gtol": tolerance, "maxcor": 20},
    )  # fmt: skip
    gauges = dict(start.gauges)
    total = {g: np.exp(found.x[at]) * gauges.get(g, 1.0) for g, at in problem.at.items()}
    if all(np.abs(f - 1.0).max(initial=0.0) <= _SETTLED for f in total.values()):
        # balanced already, as far as the solver can tell: balancing twice changes nothing
        return Gauged({g: f for g, f in gauges.items() if g not in problem.at}, start.margins)
    for g, at in problem.at.items():
        scale = np.exp(found.x[at])
        gauges[g] = gauges[g] * scale if g in gauges else scale
    return Gauged(gauges, start.margins)


class _Squares:
    """Sum over tensors of squared entries times exp(2 * the log-scales of their axes), with its gradient."""

    def __init__(self, tensors: Mapping[str, Array], symmetry: Symmetry, values: Mapping[str, Floats]) -> None:
        self.at: dict[str, slice] = {}
        n = 0
        for g in symmetry.gauges.values():
            if g.kind == "positive":
                self.at[g.name] = slice(n, n + g.size)
                n += g.size
        self.size = n
        slopes = _slopes(tensors, symmetry, values)
        self.terms: list[tuple[Array, list[list[tuple[slice, Array, float]]]]] = []
        for name, axes in symmetry.axes.items():
            sides = [
                [(self.at[g], entries(s.axis, g), exponent(s.axis, g)) for g in gauges_of(s.axis) if g in self.at] for s in axes
            ]
            if not any(sides):
                continue
            x = np.asarray(tensors[name], np.float64)
            for i, s in enumerate(axes):
                if (f := factor(s.axis, {**values, **slopes})) is not None:
                    x = x * f.reshape([-1 if j == i else 1 for j in range(x.ndim)])
            x = x * x
            x = x.sum(axis=tuple(i for i, side in enumerate(sides) if not side))
            self.terms.append((x, [side for side in sides if side]))
        self.total = sum(float(x.sum()) for x, _ in self.terms) or 1.0

    def value(self, logs: Array) -> tuple[float, Array]:
        total, gradient = 0.0, np.zeros_like(logs)
        for x, sides in self.terms:
            scales = []
            for side in sides:
                s = np.zeros(len(side[0][1]))
                for at, where, e in side:
                    s[where >= 0] += 2 * e * logs[at][where[where >= 0]]
                scales.append(np.exp(s))
            for i, side in enumerate(sides):
                part = x
                for j in reversed(range(len(sides))):
                    if j != i:
                        part = np.tensordot(part, scales[j], (j, 0))
                part = part * scales[i]
                if i == 0:
                    total += float(part.sum())
                for at, where, e in side:
                    hit = where >= 0
                    np.add.at(gradient, at.start + where[hit], 2 * e * part[hit])
        return total / self.total, gradient / self.total


def _slopes(tensors: Mapping[str, Array], symmetry: Symmetry, values: Mapping[str, Floats]) -> dict[str, Floats]:
    out = {}
    for g in symmetry.gauges.values():
        if g.kind == "slope" and g.sign is not None and g.sign in values and g.slope is not None:
            size = np.abs(np.asarray(tensors[g.slope], np.float64)).reshape(-1)
            out[g.name] = np.where(values[g.sign] < 0, 1.0 / np.where(values[g.sign] < 0, size, 1.0), 1.0)
    return out
