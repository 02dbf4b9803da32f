"""Figures unit by unit: partner, distance, correlation, scale, the runner-up and what is particular about the unit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from canon.compare.comparing import Pair
from canon.compare.measure import Sums, correlations, distances
from canon.compare.result import UnitFigures
from canon.fold import Step
from canon.matching import Problem, State, runners_up
from canon.symmetry import Floats

AMBIGUOUS = 0.99
"""A runner-up whose distance is within this ratio of the partner's makes the match ambiguous."""
_SAME = 1e-6

Bools = NDArray[np.bool_]


def unit_figures(
    pair: Pair,
    state: State,
    sums: Mapping[str, Sums],
    live: tuple[Mapping[str, Bools], Mapping[str, Bools]],
    runners: bool,
) -> tuple[UnitFigures, ...]:
    """One line for every unit of every space, in the order of A. runners: whether runner-ups are looked for."""
    out: list[UnitFigures] = []
    records = (pair.a.folded.record, pair.b.folded.record)
    for name, space in pair.symmetry.spaces.items():
        if space.over is not None or name not in sums:
            continue
        partner = state.perms[name]
        d, c = distances(sums[name]), correlations(sums[name])
        scale = _scales(pair, state, name)
        second = _runners(pair.incoming, state, name) if runners else None
        twins = (_duplicates(pair.incoming, name, False), _duplicates(pair.incoming, name, True))
        constant = [_units(record, name, "constant") for record in records]
        for i in range(space.size):
            j = int(partner[i])
            flags = []
            for word, here in (
                ("dead", pair.a.dead[name][i] or pair.b.dead[name][j]),
                ("duplicate", twins[0][i] or twins[1][j]),
            ):
                if here:
                    flags.append(word)
            if i in constant[0] or j in constant[1]:
                flags.append("constant")
            if "dead" not in flags and not (live[0][name][i] and live[1][name][j]):
                flags.append("negligible")
            runner = None
            if second is not None and second[0][i] >= 0:
                ratio = float(second[1][i])
                runner = {"b": int(second[0][i]), "ratio": ratio}
                if ratio > AMBIGUOUS:
                    flags.append("ambiguous")
            out.append(
                UnitFigures(
                    name,
                    i,
                    j,
                    float(d[i]),
                    float(c[i]) if np.isfinite(c[i]) else None,
                    float(scale[i]),
                    runner,
                    tuple(flags),
                )
            )
    return tuple(out)


def _units(record: tuple[Step, ...], space: str, what: str) -> set[int]:
    return {u for s in record if s.what == what and s.where == space for u in s.units}


def _scales(pair: Pair, state: State, space: str) -> Floats:
    """The factor that takes B's unit to A's, sign included, at the first gauge of the space."""
    n = pair.symmetry.spaces[space].size
    total = np.ones(n)
    found: set[str] = set()
    forth, back = pair.to_action(state), pair.gauge_action()
    for g in pair.symmetry.gauges.values():
        if g.kind == "slope" or g.on_entries or getattr(g.axis, "space", "") != space or g.kind in found:
            continue
        found.add(g.kind)
        b = np.asarray(forth.gauges.get(g.name, np.ones(n)))[state.perms[space]]
        total = total * b / np.asarray(back.gauges.get(g.name, np.ones(n)))
    return total


def _runners(problem: Problem, state: State, space: str) -> tuple[NDArray[np.intp], Floats]:
    """(runner-up of each unit, distance to the partner / distance to the runner-up), on incoming parameters."""
    use = [(p, i) for p, i in problem.of[space] if p.axes[i].role == "in"]
    s = problem.similarity(space, state, use).total()
    a, b = problem.norms(space, use)
    total = a[:, None] ** 2 + b[None, :] ** 2
    gap = np.maximum(total - 2 * s, 0.0)
    d = np.sqrt(np.divide(gap, total, out=np.zeros_like(gap), where=total > 0))
    partner = state.perms[space]
    second, at, _ = runners_up(-d, partner)
    own = d[np.arange(len(d)), partner]
    rival = -at
    return second, np.divide(own, rival, out=np.ones_like(own), where=rival > 0)


def _duplicates(problem: Problem, space: str, right: bool) -> Bools:
    """Units whose incoming vectors are, up to scale and sign, those of another unit: told by two random projections."""
    rng = np.random.default_rng(0)
    n = problem.symmetry.spaces[space].size
    marks = np.zeros((n, 2))
    squares = np.zeros(n)
    for piece, i in problem.of[space]:
        if piece.axes[i].role != "in":
            continue
        block = problem.block(piece)
        rows = np.moveaxis(block.b if right else block.a, i, 0).reshape(n, -1)
        marks += rows @ rng.standard_normal((rows.shape[1], 2))
        squares += np.einsum("ij,ij->i", rows, rows)
    marks = marks / np.sqrt(np.maximum(squares, 1e-300))[:, None]
    order = np.argsort(marks[:, 0], kind="stable")
    near = np.zeros(n, bool)
    close = (np.abs(np.diff(marks[order], axis=0)) <= _SAME).all(axis=1) & (squares[order][1:] > 0)
    near[order[1:]] |= close
    near[order[:-1]] |= close
    return near


def moved(state: State, space: str) -> int:
    """How many units do not stand where they stood."""
    p = state.perms[space]
    return int((p != np.arange(p.shape[-1])).sum())
