"""The fast start for copies: units matched by a few random projections of what comes into them.

Space after space from the inputs, as in `anchored`, but a unit's incoming vector is reduced to eight numbers: for members
of one orbit the nearest sketch is the partner, and the proof afterwards looks at every entry. Where some unit has no
partner this near, or two have the same, there is no copy to be found this way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from canon.matching.problem import State
from canon.ops.base import Array
from canon.symmetry import Floats, Indices, Symmetry, Use, factor, gather, leaves, places

_WIDTH = 8
_ROWS = 512
_NEAR = 1e-4
"""How far apart, relative to a unit's norm of one, the sketches of partners may lie."""


def sketched(
    symmetry: Symmetry,
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    va: Mapping[str, Floats],
    vb: Mapping[str, Floats],
    state: State,
) -> State | None:
    """Match all spaces by sketches, or None. a, b: tensors; va, vb: factors of their gauges; state: to start from."""
    if any(s.over is not None for s in symmetry.spaces.values()):
        return None
    rng = np.random.default_rng(0)
    state = state.copy()
    done: set[str] = set()
    for space in symmetry.spaces.values():
        left, right = np.zeros((space.size, _WIDTH)), np.zeros((space.size, _WIDTH))
        seen = False
        for tensor, axes in symmetry.axes.items():
            dims = [i for i, side in enumerate(axes) if side.role == "in" and _carries(side.axis, space.name)]
            others = {x.space for i, side in enumerate(axes) if i not in dims for x in leaves(side.axis) if isinstance(x, Use)}
            if not dims or not others <= done or any(side.power is not None for side in axes):
                continue
            seen = True
            for sums, t, values, perms in ((left, a[tensor], va, {}), (right, b[tensor], vb, state.perms)):
                _add(sums, t, symmetry, tensor, dims[0], space.name, values, perms, np.random.default_rng(len(tensor)))
        partner = _nearest(left, right, rng) if seen else None
        if partner is None:
            return None
        state.perms[space.name] = partner
        done.add(space.name)
    return state


def _carries(axis: object, space: str) -> bool:
    return any(isinstance(x, Use) and x.space == space for x in leaves(axis))  # type: ignore[arg-type]


def _add(
    sums: Floats,
    t: Array,
    symmetry: Symmetry,
    tensor: str,
    dim: int,
    space: str,
    values: Mapping[str, Floats],
    perms: Mapping[str, Indices],
    rng: np.random.Generator,
) -> None:
    """Add a tensor's sketch to the units of a space: rows times a random matrix that goes with A's labelling."""
    axes = symmetry.axes[tensor]
    others = [i for i in range(t.ndim) if i != dim]
    shape = [t.shape[i] for i in others]
    r = rng.standard_normal((*shape, _WIDTH)) / np.sqrt(max(1, int(np.prod(shape))))
    for k, i in enumerate(others):
        moved = gather(axes[i].axis, perms)
        if moved is not None:  # B's entries meet what their partners in A meet
            back = np.empty_like(moved)
            back[moved] = np.arange(len(moved))
            r = np.take(r, back, axis=k)
        f = factor(axes[i].axis, values)
        if f is not None:
            r = r * f.reshape([-1 if j == k else 1 for j in range(r.ndim)])
    x = np.moveaxis(t, dim, 0).reshape(t.shape[dim], -1)
    flat = r.reshape(-1, _WIDTH)
    top = np.abs(flat).max(initial=0.0)
    single = x.dtype == np.float32 and 1e-15 < top < 1e15
    rows = np.asarray(x @ flat.astype(x.dtype if single else np.float64), np.float64)
    own = factor(axes[dim].axis, values)
    if own is not None:
        rows = rows * own[:, None]
    for use, at in places(axes[dim].axis):
        if use.space == space:
            spread = rng.standard_normal((len(at), 1, 1)) if len(at) > 1 else np.ones((1, 1, 1))
            sums += (rows[at] * spread).sum(axis=0)


def _nearest(left: Floats, right: Floats, rng: np.random.Generator) -> Indices | None:
    """For each row of `left` the nearest of `right`, if all are near and different."""
    near = _NEAR * max(1.0, float(np.abs(left).max()))
    partner = np.empty(len(left), np.intp)
    # |l - r|^2 - |l|^2 = (l, 1) . (-2 r, |r|^2)
    wide = np.column_stack([left, np.ones(len(left))])
    table = np.column_stack([-2 * right, np.einsum("ij,ij->i", right, right)]).T
    probe = rng.integers(0, len(left), 8)
    for rows in (probe, *np.array_split(np.arange(len(left)), -(-len(left) // _ROWS))):
        partner[rows] = (wide[rows] @ table).argmin(axis=1)
        if (np.abs(left[rows] - right[partner[rows]]).max(axis=1) > near).any():
            return None
    return partner if len(np.unique(partner)) == len(partner) else None
