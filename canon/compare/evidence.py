"""Evidence of common descent from two files alone: units that still stand in the same places, partners that stand out.

Everything in the balanced gauge; spaces with signs by |cosine|. The thresholds were calibrated on networks trained for it
(docs: data/calibration): significance against shuffled weights is not evidence, since independent runs of one task agree
far beyond chance, but their matches have close rivals, and descent leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canon.matching import Problem, State, anchored, runners_up, search
from canon.matching.problem import Similarity
from canon.ops.base import Array
from canon.symmetry import Floats, Indices, Symmetry

Bools = NDArray[np.bool_]

STORED_ORDER = 5.0
"""Z from which stored order speaks for common descent."""
NULLS = 4
FEWEST = 12
"""Units under which nothing is ever called related."""
ENOUGH = 24
"""Units from which a low score is called independent."""
NARROW = 8
"""Numbers a unit under which a view is left out."""


@dataclass(frozen=True)
class StoredOrder:
    """z: pooled over spaces; by_space: each space's own."""

    z: float
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
    """
    state = problem.identity()
    by_space: dict[str, float] = {}
    for space in problem.free:
        keep = live[space]
        if keep.sum() < 3:
            continue
        s = _cosines(problem, space, state, keep, centred=True)
        d = s - s.mean(axis=0) - s.mean(axis=1, keepdims=True) + s.mean()
        spread = np.sqrt(np.sum(d * d) / (len(d) - 1))
        if spread > 1e-12 * len(d):
            by_space[space] = float(np.trace(d) / spread)
    z = sum(by_space.values()) / np.sqrt(2 * len(by_space)) if by_space else 0.0
    return StoredOrder(float(z), by_space)


def standing_out(
    symmetry: Symmetry,
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    live: Mapping[str, Bools],
    found: State,
    rng: np.random.Generator,
    tell: Callable[[str], None] = lambda _: None,
) -> StandingOut:
    """The share of units whose partner stands clear of every rival, beyond what the same search finds on shuffled tensors."""
    real = _views(Problem(symmetry, a, b), found, live)
    nulls: dict[str, list[float]] = {view: [] for view in real}
    for i in range(NULLS):
        tell(f"evidence: shuffled copy {i + 1} of {NULLS}")
        shuffled = Problem(symmetry, a, shuffle(symmetry, b, rng))
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


def shuffle(symmetry: Symmetry, tensors: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Each tensor with the entries of every column permuted among the units it writes: all structure between columns gone."""
    out: dict[str, Array] = {}
    for name in tensors:
        t = np.asarray(tensors[name])
        along = [i for i, side in enumerate(symmetry.axes[name]) if side.role == "in"]
        if t.ndim and along:
            flat = np.moveaxis(t, along[0], 0)
            shape = flat.shape
            flat = rng.permuted(flat.reshape(len(flat), -1), axis=0)
            t = np.moveaxis(flat.reshape(shape), 0, along[0])
        out[name] = t
    return out


def _views(problem: Problem, joint: State, live: Mapping[str, Bools]) -> dict[str, Bools]:
    """For each view, whether each of its pooled units stands out."""
    out: dict[str, list[Bools]] = {"joint": [], "from the inputs": [], "from the outputs": []}
    states = {
        "joint": (joint, ""),
        "from the inputs": (anchored(problem, role="in"), "in"),
        "from the outputs": (anchored(problem, backward=True, role="out"), "out"),
    }
    for view, (state, role) in states.items():
        for space in problem.free:
            use = [(p, i) for p, i in problem.of[space] if role in ("", p.axes[i].role)]
            width = sum(int(np.prod([x.size for k, x in enumerate(p.axes) if k != i])) for p, i in use)
            keep = live[space]
            if width < NARROW or keep.sum() < 3:
                continue
            s = _cosines(problem, space, state, keep, centred=False, role=role)
            out[view].append(_stands_out(s, _restricted(state.perms[space], keep)))
    return {view: np.concatenate(units) if units else np.zeros(0, bool) for view, units in out.items()}


def _stands_out(s: Floats, partner: Indices) -> Bools:
    n = len(s)
    at = s[np.arange(n), partner]
    _, _, rival = runners_up(s, partner)
    rest = (s.sum(axis=1) - at - rival) / max(n - 2, 1)
    prominent = (at - rival) > 0.3 * (rival - rest)
    clear = np.sqrt(np.maximum(1 - at, 0.0)) < 0.8 * np.sqrt(np.maximum(1 - rival, 1e-300))
    return np.asarray((prominent & (at > rival)) | clear)


def _restricted(partner: Indices, keep: Bools) -> Indices:
    """A matching among the units kept: partners that fall out are replaced by what is left over."""
    index = np.cumsum(keep) - 1
    out = np.where(keep[partner[keep]], index[partner[keep]], -1)
    free = np.setdiff1d(np.arange(int(keep.sum())), out)
    out[out < 0] = free
    return out


def _cosines(problem: Problem, space: str, state: State, keep: Bools, centred: bool, role: str = "") -> Floats:
    """Cosines between the kept units of A and of B, over all that is around them, |cosine| where signs act; (m, m)."""
    n = problem.symmetry.spaces[space].size
    plain: dict[frozenset[str], Floats] = {}
    inner: Floats | None = None
    aa, bb = np.zeros(n), np.zeros(n)
    for piece, i in problem.of[space]:
        if role not in ("", piece.axes[i].role):
            continue
        block = problem.block(piece)
        moved = problem.moved(block, state, held=i)
        x, y = (np.moveaxis(t, i, 0).reshape(n, -1) for t in (block.a, moved))
        if centred:
            x, y = x - x[keep].mean(axis=0), y - y[keep].mean(axis=0)
        aa += np.einsum("ij,ij->i", x, x)
        bb += np.einsum("ij,ij->i", y, y)
        key = piece.axes[i].signs
        s = x @ y.T
        plain[key] = plain[key] + s if key in plain else s
    total = Similarity(n, plain, inner).total() if plain else np.zeros((n, n))
    scale = np.sqrt(np.maximum(aa, 1e-300))[:, None] * np.sqrt(np.maximum(bb, 1e-300))[None, :]
    return np.asarray((total / scale)[np.ix_(keep, keep)])
