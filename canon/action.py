"""Action: an element of a network's symmetry group. Apply it, invert it, compose two.

Generic over axes: a relabelling gathers along an axis, a gauge multiplies along it, a mix of a linear space is a matrix
along it. Ops are asked for one thing only: to absorb the constant that a flip about another point than zero leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from canon.network import Network
from canon.ops import kind_of
from canon.ops.base import Array
from canon.symmetry import (
    Axis,
    Fixed,
    Floats,
    Indices,
    Product,
    Symmetry,
    Turn,
    Use,
    factor,
    gather,
    leaves,
    stretches,
)
from canon.turns import composed, inverted, random_turns, turned_axis


@dataclass(frozen=True)
class Action:
    """One element of the group of `symmetry`.

    perms: space -> (size,), new unit i is old unit perm[i] ((outer, size) for a space over another);
    gauges: gauge -> (size,), positive factors or signs, in the old labelling; mixes: linear space -> (size, size) matrix M,
    values v become M v; turns: block -> (outer size, size, size), a matrix for each old outer unit. What is not named is left
    alone.
    """

    symmetry: Symmetry
    perms: Mapping[str, Indices] = field(default_factory=dict)
    gauges: Mapping[str, Floats] = field(default_factory=dict)
    mixes: Mapping[str, Floats] = field(default_factory=dict)
    turns: Mapping[str, Floats] = field(default_factory=dict)

    # applying

    def __call__(self, network: Network, as_stored: bool = False) -> Network:
        """The moved network, with every moved tensor in float64 (as_stored: in its own type, where memory counts)."""
        shifted = self._absorbed(network)
        values = self.values(network)
        moved = {}
        for name, t in network.tensors.items():
            new = self.linear(name, shifted.get(name, t), values, t.dtype if as_stored else None)
            moved[name] = new.astype(t.dtype, copy=False) if as_stored else new
        return network.with_tensors(moved)

    def values(self, network: Network) -> dict[str, Floats]:
        """All gauge vectors in float64, those of slopes read off the network's tensors."""
        return self.values_of(network.tensors)

    def values_of(self, tensors: Mapping[str, Array]) -> dict[str, Floats]:
        """As `values`, for tensors by name."""
        values = {g: np.asarray(v, np.float64) for g, v in self.gauges.items()}
        for name, g in self.symmetry.gauges.items():
            if g.kind == "slope" and g.sign in values and g.slope is not None:
                slope = np.asarray(tensors[g.slope], np.float64).reshape(-1)
                flipped = values[g.sign] < 0
                values[name] = np.where(flipped, 1.0 / np.where(flipped, slope, 1.0), 1.0)
        return values

    @property
    def flips_affinely(self) -> bool:
        """Whether some unit is flipped about another point than zero."""
        return any(self.symmetry.gauges[g].flip == "affine" and bool((v < 0).any()) for g, v in self.gauges.items())

    def linear(
        self, name: str, t: Array, values: Mapping[str, Floats], kind: np.dtype[Any] | None = None, absolute: bool = False
    ) -> Array:
        """A tensor under what acts linearly on it: factors, mixes, turns, relabelling; constants of flips left aside.

        kind: the type to multiply in (float64 by default); absolute: by absolute values, for sizes of entries.
        """
        own = False  # whether t is ours to change
        t = self.symmetry.whole(name, t)
        for dim, side in enumerate(self.symmetry.axes[name]):
            if side.power is not None and (signs := factor(side.power, values)) is not None:
                flat = np.moveaxis(np.asarray(t, np.float64), dim, -1)
                t = np.moveaxis(np.where(signs < 0, 1.0 / np.where(signs < 0, flat, 1.0), flat), -1, dim)
            if (f := factor(side.axis, values)) is not None:
                f = np.abs(f) if absolute else f
                f = f.astype(kind or np.float64, copy=False).reshape([-1 if i == dim else 1 for i in range(t.ndim)])
                t = np.multiply(t, f, out=t) if own and t.dtype == f.dtype else t * f
                own = True
            if self.mixes:
                t = _mix(t, dim, side.axis, self.mixes, side.role == "out")
            if self.turns:
                t = turned_axis(t, dim, side.axis, self.turns, self._duals, side.role == "out", absolute)
            if (moved := gather(side.axis, self.perms)) is not None:
                t = np.take(t, moved, axis=dim)
        return self.symmetry.stored(name, t)

    @cached_property
    def _duals(self) -> dict[str, Floats]:
        return {b: np.asarray(np.linalg.inv(m).swapaxes(-1, -2), np.float64) for b, m in self.turns.items()}

    def turning(self, name: str) -> bool:
        """Whether a matrix of some block acts on this tensor."""
        leaves_ = (leaf for side in self.symmetry.axes[name] for leaf in leaves(side.axis))
        return any(isinstance(leaf, Turn) and leaf.block in self.turns for leaf in leaves_)

    def factors(self, name: str, values: Mapping[str, Floats]) -> list[Floats | None]:
        """The factors along each axis of a tensor, in the new labelling."""
        out = []
        for side in self.symmetry.axes[name]:
            f, moved = factor(side.axis, values), gather(side.axis, self.perms)
            out.append(f if f is None or moved is None else f[moved])
        return out

    def blocks(self, name: str, t: Array, values: Mapping[str, Floats], step: int) -> Iterator[tuple[slice, Array]]:
        """A tensor under `linear`, in float64, a block of at most `step` entries along its first axis at a time.

        For tensors too large to be held twice. Slopes, mixes and blocks are not handled here: small tensors take `linear`.
        """
        sides = self.symmetry.axes[name]
        moved = [gather(side.axis, self.perms) for side in sides]
        factors = self.factors(name, values)
        if self.mixes or self.turning(name) or any(s.power is not None or s.blocks > 1 for s in sides) or t.ndim == 0:
            whole = np.asarray(self.linear(name, t, values), np.float64)
            yield slice(0, len(whole) if whole.ndim else 1), whole
            return
        rows = max(1, step // max(1, t[0].size if len(t) else 1))
        for start in range(0, len(t), rows):
            here = slice(start, min(start + rows, len(t)))
            x = t[here] if moved[0] is None else t[moved[0][here]]
            for dim, m in enumerate(moved[1:], start=1):
                if m is not None:
                    x = np.take(x, m, axis=dim)
            x = np.asarray(x, np.float64)
            for dim, f in enumerate(factors):
                if f is not None:
                    x = x * (f[here] if dim == 0 else f).reshape([-1 if i == dim else 1 for i in range(x.ndim)])
            yield here, x

    def _absorbed(self, network: Network) -> dict[str, Array]:
        """Tensors (old labelling, before any factor) with the constants absorbed that affine flips leave."""
        changed: dict[str, Array] = {}
        if not self.flips_affinely:
            return changed
        values = self.values(network)
        left: dict[str, Array] = {}
        done: set[str] = set()
        for op in network.ops:
            if not op.params or not kind_of(op).affine:
                continue
            t_in = _plus(self._shift(op.inputs[0], values), left.get(op.inputs[0]))
            t_out = self._shift(op.output, values)
            if t_in is None and t_out is None:
                continue
            params = {r: np.asarray(network.tensors[t], np.float64) for r, t in op.params.items()}
            for role, t in kind_of(op).absorb(op, params, t_in, None if t_out is None else -t_out).items():
                if role == "out":
                    left[op.output] = t
                elif op.params[role] not in done:
                    done.add(op.params[role])
                    changed[op.params[role]] = t
        return changed

    def _shift(self, value: str, values: Mapping[str, Floats]) -> Array | None:
        """centre (1 - sign) along the axis of a value that flips about other points than zero."""
        for side in self.symmetry.values[value]:
            if side.centre is not None and (f := factor(side.axis, values)) is not None and (f < 0).any():
                return np.where(f < 0, 2.0 * side.centre, 0.0)
        return None

    # the group

    def __invert__(self) -> Action:
        gauges = {}
        for name, v in self.gauges.items():
            moved = gather(self.symmetry.gauges[name].axis, self.perms)
            gauges[name] = 1.0 / (v if moved is None else v[moved])
        perms = {}
        for space, p in self.perms.items():
            if p.ndim == 1:
                perms[space] = np.argsort(p)
            else:
                outer = self.perms.get(self.symmetry.spaces[space].over or "", np.arange(len(p)))
                perms[space] = np.argsort(p[np.argsort(outer)], axis=1)
        mixes = {s: np.asarray(np.linalg.inv(m), np.float64) for s, m in self.mixes.items()}
        return Action(self.symmetry, perms, gauges, mixes, inverted(self.turns, self._outer))

    def _outer(self, block: str) -> Indices | None:
        """The relabelling of the outer units of a block."""
        return self.perms.get(self.symmetry.blocks[block].over)

    def __matmul__(self, first: Action) -> Action:
        """The action that does `first`, then this one."""
        perms = {}
        for space in {*self.perms, *first.perms}:
            a, b = self.perms.get(space), first.perms.get(space)
            size = self.symmetry.spaces[space].size
            over = self.symmetry.spaces[space].over
            if over is None:
                perms[space] = a if b is None else b if a is None else b[a]
                continue
            n = self.symmetry.spaces[over].size
            still = np.broadcast_to(np.arange(size), (n, size))
            outer = self.perms.get(over, np.arange(n))
            perms[space] = np.take_along_axis((still if b is None else b)[outer], still if a is None else a, axis=1)
        gauges = dict(first.gauges)
        for name, v in self.gauges.items():
            moved = gather(self.symmetry.gauges[name].axis, first.perms)
            back = v
            if moved is not None:
                back = np.empty_like(v)
                back[moved] = v
            gauges[name] = gauges[name] * back if name in gauges else back
        mixes = dict(first.mixes)
        for space, m in self.mixes.items():
            mixes[space] = m @ mixes[space] if space in mixes else m
        turns = composed(self.turns, first.turns, first._outer)
        return Action(self.symmetry, {s: p for s, p in perms.items() if p is not None}, gauges, mixes, turns)

    def arrays(self) -> dict[str, dict[str, Array]]:
        """The action as plain arrays, by space and by gauge, as it is stored in files."""
        out: dict[str, dict[str, Array]] = {}
        for space, p in self.perms.items():
            out.setdefault(space, {})["permutation"] = np.asarray(p, np.int64)
        for name, v in self.gauges.items():
            spaces = [u.space for u in _uses(self.symmetry.gauges[name].axis)]
            out.setdefault(spaces[0] if spaces else name, {})[name.replace("/", "|")] = np.asarray(v)
        for space, m in self.mixes.items():
            out.setdefault(space, {})["matrix"] = np.asarray(m)
        for block, t in self.turns.items():
            out.setdefault(self.symmetry.blocks[block].over, {})[f"turn {block.replace('/', '|')}"] = np.asarray(t)
        return out


def random_action(
    symmetry: Symmetry,
    network: Network,
    rng: np.random.Generator,
    sigma: float = 1.0,
    powers_of_two: bool = False,
    turned: Collection[str] = (),
) -> Action:
    """A random element: uniform relabellings and signs, scales exp(N(0, sigma^2)).

    turned: linear spaces that are moved by a matrix (near a rotation) instead.

    powers_of_two: scales are rounded to powers of two, nothing is mixed or flipped about another point than zero, so that
    every entry moves without rounding. Units whose slope is zero are not flipped.
    """
    mixed = {s.name for s in symmetry.spaces.values() if s.linear and s.name in turned and not powers_of_two}
    perms: dict[str, Indices] = {}
    for s in symmetry.spaces.values():
        if s.name in mixed:
            continue
        n = symmetry.spaces[s.over].size if s.over else 0
        perms[s.name] = np.stack([rng.permutation(s.size) for _ in range(n)]) if s.over else rng.permutation(s.size)
    gauges: dict[str, Floats] = {}
    for g in symmetry.gauges.values():
        if g.kind == "slope" or {u.space for u in _uses(g.axis)} & mixed:
            continue
        if g.kind == "positive":
            logs = rng.normal(0.0, sigma, g.size)
            gauges[g.name] = np.exp2(np.round(logs / np.log(2))) if powers_of_two else np.exp(logs)
        elif g.flip == "none" or not powers_of_two:
            gauges[g.name] = rng.choice([-1.0, 1.0], g.size)
    for g in symmetry.gauges.values():
        if g.kind == "slope" and g.sign in gauges and g.slope is not None:
            flat = np.asarray(network.tensors[g.slope]).reshape(-1)
            gauges[g.sign] = np.where(np.abs(flat) < 1e-6, 1.0, gauges[g.sign])
    mixes = {}
    for space in sorted(mixed):
        n = symmetry.spaces[space].size
        q = np.linalg.qr(rng.standard_normal((n, n)))[0]
        mixes[space] = q * np.exp(rng.normal(0.0, 0.3, n))
    turns = {} if powers_of_two else random_turns(symmetry, rng, sigma)
    return Action(symmetry, perms, gauges, mixes, turns)


def _uses(axis: Axis) -> list[Use]:
    if isinstance(axis, Fixed):
        return []
    return [axis] if isinstance(axis, Use) else [u for p in axis.parts for u in _uses(p)]


def _plus(a: Array | None, b: Array | None) -> Array | None:
    return b if a is None else a if b is None else a + b


def _mix(t: Array, dim: int, axis: Axis, mixes: Mapping[str, Floats], reading: bool) -> Array:
    """Multiply by the matrix of each linear space along one axis, or by its inverse where the axis reads the space."""
    if isinstance(axis, Fixed):
        return t
    if isinstance(axis, Use):
        m = mixes.get(axis.space)
        if m is None:
            return t
        side = np.linalg.inv(m).T if reading else m
        return np.moveaxis(np.tensordot(side, t, (1, dim)), 0, dim)
    if not any(u.space in mixes for u in _uses(axis)):
        return t
    if isinstance(axis, Product):
        return _mix_product(t, dim, axis, mixes, reading)
    out = np.array(t, np.float64)
    for p, at in stretches(axis):
        where = (slice(None),) * dim + (at,)
        out[where] = _mix(t[where], dim, p, mixes, reading)
    return out


def _mix_product(t: Array, dim: int, axis: Product, mixes: Mapping[str, Floats], reading: bool) -> Array:
    shape = t.shape
    t = t.reshape(*shape[:dim], *(p.size for p in axis.parts), *shape[dim + 1 :])
    for i, p in enumerate(axis.parts):
        t = _mix(t, dim + i, p, mixes, reading)
    return t.reshape(shape)
