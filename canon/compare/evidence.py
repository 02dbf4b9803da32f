"""Evidence of common descent from two files alone: units that still stand in the same places, partners that stand out.

Everything in the balanced gauge; spaces with signs by |cosine|. The thresholds were calibrated on networks trained for it
(docs: data/calibration): significance against shuffled weights is not evidence, since independent runs of one task agree
far beyond chance, but their matches have close rivals, and descent leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canon.matching import Problem, State, anchored, search
from canon.matching.problem import Similarity
from canon.ops.base import Array
from canon.symmetry import Floats, Indices, Symmetry, places

Bools = NDArray[np.bool_]

STORED_ORDER = 5.0
"""Z from which stored order speaks for common descent."""
STILL = 0.1
"""Share of units that the search has to move for stored order to count by itself."""
NULLS = 4
FEWEST = 12
"""Units under which nothing is ever called related."""
ENOUGH = 24
"""Units from which a low score is called independent."""
NARROW = 8
"""Numbers a unit under which a view is left out."""


@dataclass(frozen=True)
class StoredOrder:
    """z: pooled over spaces; near: the same against neighbouring numbers alone; by_space: each space's own z."""

    z: float
    near: float
    by_space: Mapping[str, float]


@dataclass(frozen=True)
class StandingOut:
    """share of units that stand out, the same on shuffled tensors (chance), the score (share - chance) / (1 - chance) of
    the best view, the threshold for `related`, units pooled, and the view.
    """

    share: float
    chance: float
    score: float
    threshold: float
    units: int
    view: str


def stored_order(problem: Problem, live: Mapping[str, Bools]) -> StoredOrder:
    """Whether unit number i of A resembles unit number i of B more than the other units, by an exact permutation test.

    Per space, S = cosines of column-centred unit vectors (everything around the unit, stored labelling), D = S doubly
    centred, z = trace(D) / sqrt(sum(D^2) / (n - 1)): the trace under a uniform relabelling has mean 0 and that variance.
    live: per space, the units that count on both sides.
    """
    state = problem.identity()
    by_space: dict[str, float] = {}
    near: list[float] = []
    for space in problem.plain:
        keep = live[space]
        if keep.sum() < 3:
            continue
        s = _cosines(problem, space, state, keep, keep, centred=True)
        d = s - s.mean(axis=0) - s.mean(axis=1, keepdims=True) + s.mean()
        spread = np.sqrt(np.sum(d * d) / (len(d) - 1))
        if spread > 1e-12 * len(d):
            by_space[space] = float(np.trace(d) / spread)
            near.append(_beside(d))
    pooled = np.sqrt(2 * max(len(near), 1))
    return StoredOrder(float(sum(by_space.values()) / pooled), float(sum(near) / pooled), by_space)


def _beside(d: Floats) -> float:
    """z of how far the diagonal stands above the two units on either side of it, under a uniform relabelling.

    Units sorted by anything resemble their neighbours in the other network as much as their own number.
    """
    i = np.arange(len(d))
    gap = np.abs(i[:, None] - i)
    beside = ((gap > 0) & (gap <= 2)).astype(float)
    m = (np.eye(len(d)) - beside / beside.sum(axis=1, keepdims=True)).T @ d
    m = m - m.mean(axis=0) - m.mean(axis=1, keepdims=True) + m.mean()
    spread = np.sqrt(np.sum(m * m) / (len(d) - 1))
    return float(np.trace(m) / spread) if spread > 0 else 0.0


def decides(order: StoredOrder, found: State, spaces: Sequence[str]) -> bool:
    """Whether stored order alone speaks for common descent.

    Not where the search leaves nearly every unit in its place: that is what the other network looks like after somebody
    aligned it, whatever its descent; then partners have to stand out as well.
    """
    places = [found.perms[s] != np.arange(len(found.perms[s])) for s in spaces]
    moved = float(np.concatenate(places).mean()) if places else 0.0
    return min(order.z, order.near) >= STORED_ORDER and moved > STILL


def standing_out(
    symmetry: Symmetry,
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    live: tuple[Mapping[str, Bools], Mapping[str, Bools]],
    found: State,
    rng: np.random.Generator,
    tell: Callable[[str], None] = lambda _: None,
) -> StandingOut:
    """The share of units whose partner stands clear of every rival, beyond what the same search finds on shuffled tensors."""
    real = _views(Problem(symmetry, a, b), found, live)
    nulls: dict[str, list[float]] = {view: [] for view in real}
    for i in range(NULLS):
        tell(f"evidence: shuffled copy {i + 1} of {NULLS}")
        shuffled = Problem(symmetry, a, shuffle(symmetry, b, rng, live[1]))
        for view, units in _views(shuffled, search(shuffled).state, live).items():
            nulls.setdefault(view, []).append(float(units.mean()) if len(units) else 0.0)
    best: StandingOut | None = None
    for view, units in real.items():
        if not len(units):
            continue
        share, chance = float(units.mean()), max(nulls[view], default=0.0)
        score = (share - chance) / (1 - chance) if chance < 1 else 0.0
        if best is None or score > best.score:
            best = StandingOut(share, chance, score, threshold(len(units)), len(units), view)
    return best or StandingOut(0.0, 0.0, 0.0, threshold(0), 0, "")


def threshold(units: int) -> float:
    """Score from which `related` is said: looser for more units."""
    if units < ENOUGH:
        return 0.7
    return max(0.15, 0.10 + 1.2 / float(np.sqrt(units)))


def shuffle(
    symmetry: Symmetry, tensors: Mapping[str, Array], rng: np.random.Generator, live: Mapping[str, Bools]
) -> dict[str, Array]:
    """Each tensor with the entries of every column permuted among the live units it writes: columns no longer fit."""
    out: dict[str, Array] = {}
    for name in tensors:
        t = np.asarray(tensors[name])
        along = [i for i, side in enumerate(symmetry.axes[name]) if side.role == "in"]
        if t.ndim and along:
            flat = np.moveaxis(t, along[0], 0).copy()
            counted = np.ones(len(flat), bool)
            for use, at in places(symmetry.axes[name][along[0]].axis):
                if use.space in live and live[use.space].size == use.size:
                    counted[at[:, ~live[use.space]]] = False
            rows = flat[counted]
            flat[counted] = rng.permuted(rows.reshape(len(rows), -1), axis=0).reshape(rows.shape)
            t = np.moveaxis(flat, 0, along[0])
        out[name] = t
    return out


def _views(problem: Problem, joint: State, live: tuple[Mapping[str, Bools], Mapping[str, Bools]]) -> dict[str, Bools]:
    """For each view, whether each of its pooled units stands out."""
    out: dict[str, list[Bools]] = {"joint": [], "from the inputs": [], "from the outputs": []}
    states = {
        "joint": (joint, ""),
        "from the inputs": (anchored(problem, role="in"), "in"),
        "from the outputs": (anchored(problem, backward=True, role="out"), "out"),
    }
    for view, (state, role) in states.items():
        for space in problem.plain:
            use = [(p, i) for p, i in problem.of[space] if role in ("", p.axes[i].role)]
            width = sum(int(np.prod([x.size for k, x in enumerate(p.axes) if k != i])) for p, i in use)
            rows, columns = live[0][space], live[1][space]
            if width < NARROW or min(rows.sum(), columns.sum()) < 3:
                continue
            s = _cosines(problem, space, state, rows, columns, centred=False, role=role)
            partner = state.perms[space][rows]
            number = np.cumsum(columns) - 1
            out[view].append(_stands_out(s, np.where(columns[partner], number[partner], -1)))
    return {view: np.concatenate(units) if units else np.zeros(0, bool) for view, units in out.items()}


def _stands_out(s: Floats, partner: Indices) -> Bools:
    """For each row with a partner (-1: none) among the columns, whether that stands clear of every rival."""
    rows = np.flatnonzero(partner >= 0)
    columns = partner[rows]
    at = s[rows, columns]
    along, across = s[rows].copy(), s[:, columns].copy()
    along[np.arange(len(rows)), columns] = across[rows, np.arange(len(rows))] = -np.inf
    rival = np.maximum(along.max(axis=1), across.max(axis=0))
    rest = (s[rows].sum(axis=1) - at - rival) / max(s.shape[1] - 2, 1)
    prominent = (at > rival) & (at - rival > 0.3 * (rival - rest))
    clear = np.sqrt(np.maximum(1 - at, 0.0)) < 0.8 * np.sqrt(np.maximum(1 - rival, 1e-300))
    return np.asarray(prominent | clear)


def _cosines(problem: Problem, space: str, state: State, rows: Bools, columns: Bools, centred: bool, role: str = "") -> Floats:
    """Cosines between units of A (rows) and of B (columns), over all that is around them, |cosine| where signs act."""
    n = problem.symmetry.spaces[space].size
    plain: dict[frozenset[str], Floats] = {}
    aa, bb = np.zeros(n), np.zeros(n)
    for piece, i in problem.of[space]:
        if role not in ("", piece.axes[i].role):
            continue
        block = problem.block(piece)
        moved = problem.moved(block, state, held=i)
        x, y = (np.moveaxis(t, i, 0).reshape(n, -1) for t in (block.a, moved))
        if centred:
            x, y = x - x[rows].mean(axis=0), y - y[columns].mean(axis=0)
        aa += np.einsum("ij,ij->i", x, x)
        bb += np.einsum("ij,ij->i", y, y)
        key = piece.axes[i].signs
        s = x @ y.T
        plain[key] = plain[key] + s if key in plain else s
    total = Similarity(n, plain, None).total() if plain else np.zeros((n, n))
    scale = np.sqrt(np.maximum(aa, 1e-300))[:, None] * np.sqrt(np.maximum(bb, 1e-300))[None, :]
    return np.asarray((total / scale)[np.ix_(rows, columns)])
