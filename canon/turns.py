"""Matrices of blocks, applied along axes, inverted, composed, drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from canon.ops.base import Array
from canon.symmetry import Axis, Block, Concat, Floats, Indices, Interleaved, Product, Symmetry, Turn, stretches
from canon.symmetry.blocks import put_complex


def turned_axis(
    t: Array,
    dim: int,
    axis: Axis,
    turns: Mapping[str, Floats],
    duals: Mapping[str, Floats],
    reading: bool,
    absolute: bool = False,
) -> Array:
    """A tensor with the matrices of blocks applied along one axis; their inverses where the axis reads what they turn.

    turns: block -> (outer, size, size), in the labelling that the tensor is in; duals: their inverse transposes;
    absolute: with the absolute values of the matrices, which bounds what goes into each entry.
    """
    if isinstance(axis, Concat | Interleaved):
        if not any(isinstance(leaf, Turn) and leaf.block in turns for leaf in _leaves(axis)):
            return t
        whole = np.array(t, np.float64)
        for p, at in stretches(axis):
            where = (slice(None),) * dim + (at,)
            whole[where] = turned_axis(t[where], dim, p, turns, duals, reading, absolute)
        return whole
    last = axis.parts[-1] if isinstance(axis, Product) else axis
    if not isinstance(last, Turn) or last.block not in turns:
        return t
    # values v become m v, so what reads them takes m^-1; on the dual it is m^-T, and what reads that takes m^T
    side = (duals if reading != last.dual else turns)[last.block]
    side = np.abs(side) if absolute else side
    x = np.moveaxis(np.asarray(t, np.float64), dim, 0)
    parts = x.reshape(len(side), -1, last.size, int(np.prod(x.shape[1:], dtype=np.intp)))
    out = (side[:, None] @ parts).reshape(x.shape)
    return np.moveaxis(out, 0, dim)


def _leaves(axis: Axis) -> list[Axis]:
    return [leaf for p in axis.parts for leaf in _leaves(p)] if isinstance(axis, Concat | Interleaved | Product) else [axis]


def inverted(turns: Mapping[str, Floats], outer: Callable[[str], Indices | None]) -> dict[str, Floats]:
    """The matrices of the inverse; outer: block -> relabelling of its outer units that goes with them."""
    out = {}
    for block, m in turns.items():
        moved = outer(block)
        out[block] = np.asarray(np.linalg.inv(m if moved is None else m[moved]), np.float64)
    return out


def composed(
    second: Mapping[str, Floats], first: Mapping[str, Floats], outer: Callable[[str], Indices | None]
) -> dict[str, Floats]:
    """The matrices of `first`, which relabels outer units by `outer`, and then `second`."""
    out = dict(first)
    for block, m in second.items():
        moved = outer(block)
        back = m
        if moved is not None:
            back = np.empty_like(m)
            back[moved] = m
        out[block] = back @ out[block] if block in out else back
    return out


def random_turns(symmetry: Symmetry, rng: np.random.Generator, sigma: float) -> dict[str, Floats]:
    """A random matrix for every unit around every block: a rotation times scales exp(N(0, sigma^2))."""
    return {name: np.stack([_random(b, rng, sigma) for _ in range(b.outer)]) for name, b in symmetry.blocks.items()}


def _random(block: Block, rng: np.random.Generator, sigma: float) -> Floats:
    out = np.zeros((block.size, block.size))
    for c in block.classes:
        n, f = len(c.first), list(c.first)
        if c.kind == "sign":
            out[f, f] = rng.choice([-1.0, 1.0])
            continue
        z = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if c.kind == "complex" else 0.0)
        q = np.linalg.qr(z)[0] * (1.0 if c.kind == "orthogonal" else np.exp(rng.normal(0.0, sigma, n)))
        if c.kind != "complex":
            out[np.ix_(f, f)] = q
        else:
            put_complex(out, q, f, list(c.second))
    return out


def stacked(axis: Axis, outer: Mapping[str, int]) -> Iterator[tuple[Turn, Callable[[Array], Array]]]:
    """Each block along an axis, with what takes its rows out of a tensor that has the axis in front: (outer, size, n).

    outer: block -> number of its matrices.
    """
    if isinstance(axis, Concat | Interleaved):
        for p, at in stretches(axis):
            for turn, take in stacked(p, outer):
                yield turn, _of_part(take, at)
        return
    last = axis.parts[-1] if isinstance(axis, Product) else axis
    if isinstance(last, Turn):
        count, size = outer[last.block], last.size

        def rows(t: Array) -> Array:
            parts = t.reshape(count, -1, size, int(np.prod(t.shape[1:], dtype=np.intp)))
            return parts.swapaxes(1, 2).reshape(count, size, -1)

        yield last, rows


def _of_part(take: Callable[[Array], Array], at: Indices) -> Callable[[Array], Array]:
    return lambda t: take(t[at])
