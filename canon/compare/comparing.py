"""The comparison, from two runs to a verdict: the flow of it, one stage after the other.

Pair the graphs, fold, normalise, match, prove or measure, weigh the evidence, check by running, say the word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from canon.action import Action
from canon.compare.check import MANY, Agreement, agree, probes, run_on
from canon.compare.measure import Precision, Sums, Worst, measure, unit_count
from canon.compare.pairing import Pairing, pair, renamed, with_biases
from canon.compare.side import Side
from canon.fold import Folded, fold, sides_of
from canon.gauge import Gauged
from canon.gauge.moments import incoming_sides, side_moment
from canon.matching import Problem, State, anchored, descend, search, settle, sketched, stored, turned
from canon.network import Network
from canon.ops.base import Array
from canon.pieces import entries
from canon.precision import roundoff, tiny
from canon.symmetry import Symmetry, gather, places

Bools = NDArray[np.bool_]

FLOAT32 = 2.0**-24
NEGLIGIBLE = 1e-6
"""A unit whose incoming times outgoing norm is under this share of its space's median is negligible."""


def rounding(network: Network) -> float:
    """Unit roundoff of the coarsest type that parameters are stored in."""
    return max((roundoff(kind) for kind in _types(network)), default=FLOAT32)


def smallest_normal(network: Network) -> float:
    """The smallest normal number of the coarsest stored type."""
    return max((tiny(kind) for kind in _types(network)), default=0.0)


def _types(network: Network) -> set[str]:
    """The names of the floating point types that parameters are stored in."""
    return {network.stored_type(n) for n, t in network.tensors.items() if t.dtype.kind == "f" and t.size}


@dataclass
class Pair:
    """Two networks under one set of names, in one symmetry, with everything that is computed once for both."""

    a: Side
    b: Side
    symmetry: Symmetry
    pairing: Pairing
    unit: float
    floors: tuple[float, float]
    tell: Callable[[str], None] = field(default=lambda _: None)

    @cached_property
    def incoming(self) -> Problem:
        """Both in the incoming gauge."""
        return Problem(self.symmetry, self.a.normalised(), self.b.normalised())

    @cached_property
    def balanced(self) -> Problem:
        """Both in the balanced gauge."""
        self.tell("balancing")
        return Problem(self.symmetry, self.a.normalised(self.a.balanced), self.b.normalised(self.b.balanced))

    # from a state to actions

    def to_action(self, state: State, gauge: str = "incoming") -> Action:
        """What brings B's folded network into A's labelling and signs, in a gauge: the state after B's gauge."""
        return self._move(state) @ self.b.action(self._gauged(self.b, gauge))

    def gauge_action(self, gauge: str = "incoming") -> Action:
        """A's gauge as an action on its folded network."""
        return self.a.action(self._gauged(self.a, gauge))

    def onto(self, state: State, gauge: str = "incoming") -> tuple[Action, Action]:
        """The same two on the sides' tensors, whose heads are balanced already: A's gauge, and what brings B's into it."""
        left, right = (side.scaling(self._gauged(side, gauge)) for side in (self.a, self.b))
        return left, self._move(state) @ right

    def _move(self, state: State) -> Action:
        turns = {}
        for name, t in state.turns.items():  # a matrix for each new unit: by old ones
            moved = state.perms.get(self.symmetry.blocks[name].over)
            turns[name] = t
            if moved is not None:
                turns[name] = np.empty_like(t)
                turns[name][moved] = t
        return Action(self.symmetry, dict(state.perms), {**state.signs, **self._entry_signs(state)}, turns=turns)

    @staticmethod
    def _gauged(side: Side, gauge: str) -> Gauged:
        return side.balanced if gauge == "balanced" else side.gauge

    def _entry_signs(self, state: State) -> dict[str, Array]:
        """Signs that sit on the entries of a product rather than on units: read off once the labels are known."""
        out: dict[str, Array] = {}
        for g in self.symmetry.gauges.values():
            if g.kind != "sign" or not g.on_entries or g.flip == "slope":
                continue
            total = np.zeros(g.size)
            move = Action(self.symmetry, dict(state.perms), dict(state.signs))
            left, right = self.a.normalised(), self.b.normalised()
            for op in self.a.folded.network.ops:
                for tensor, dim in incoming_sides(op, self.symmetry, g.name):
                    x = left[tensor] * move.linear(tensor, right[tensor], move.values_of(right))
                    sums = np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1).sum(axis=1)
                    at = entries(self.symmetry.axes[tensor][dim].axis, g.name)
                    np.add.at(total, at[at >= 0], sums[at >= 0])
            signs = np.where(total < 0, -1.0, 1.0)
            moved = gather(g.axis, state.perms)
            back = signs.copy()
            if moved is not None:
                back[moved] = signs
            out[g.name] = back
        return out

    # proof

    def prove(self, state: State, coarse: bool = False) -> tuple[dict[str, Sums], Worst]:
        """Distances under a state, and the entry that deviates most in units of its bound.

        coarse: with the rounding and the smallest normal number of the stored type, where that is coarser than float32.
        """
        precision = Precision(self.unit, self.floors)
        if not coarse:
            least = tiny("float32")
            precision = Precision(min(self.unit, FLOAT32), (min(self.floors[0], least), min(self.floors[1], least)))
        sums, worst = measure(self.a, self.b, *self.onto(state), precision)
        return sums, worst or Worst("", (), 0.0)

    def candidates(self) -> list[Callable[[], State | None]]:
        """Ways to find an action that proves both equal, the cheapest first."""
        return [
            self._sketched,
            lambda: stored(self.incoming),
            lambda: settle(self.incoming, anchored(self.incoming, role="in")),
            lambda: settle(self.incoming, self._descended()),
            lambda: settle(self.incoming, self.searched),
        ]

    @cached_property
    def searched(self) -> State:
        """The best matching of a full search, computed once."""
        return search(self.balanced, self.tell).state

    def _descended(self) -> State:
        return descend(self.balanced, anchored(self.incoming, role="in"), "from the inputs").state

    def _sketched(self) -> State | None:
        va, vb = (s.scaling().values_of(s.tensors) for s in (self.a, self.b))
        found = sketched(self.symmetry, self.a.tensors, self.b.tensors, va, vb, self.incoming.identity())
        return None if found is None else turned(self.incoming, found)

    def live(self, balanced: bool) -> tuple[dict[str, Bools], dict[str, Bools]]:
        """Per space and side, the units that count: neither dead nor negligible."""
        return _live(self.a, self.a.balanced if balanced else self.a.gauge), _live(
            self.b, self.b.balanced if balanced else self.b.gauge
        )


def _live(side: Side, gauge: Gauged) -> dict[str, Bools]:
    out: dict[str, Bools] = {}
    values = side.scaling(gauge).values_of(side.tensors)
    for name, space in side.symmetry.spaces.items():
        norms = {}
        for role in ("in", "out"):
            total = np.zeros(unit_count(side.symmetry, name))
            for tensor, dim in sides_of(side.symmetry, name, role):
                sums = side_moment(side.tensors[tensor], side.symmetry, tensor, dim, values, 2, rough=True)
                for use, at in places(side.symmetry.axes[tensor][dim].axis):
                    if use.space == name:
                        total += sums[at.reshape(-1, len(total))].sum(axis=0)
            norms[role] = np.sqrt(total)
        dead = side.dead[name] if space.over is None else np.zeros(len(norms["in"]), bool)
        alive = ~dead
        strength = norms["in"] * norms["out"]
        middle = float(np.median(strength[alive])) if alive.any() else 0.0
        out[name] = alive & (strength > NEGLIGIBLE * middle) if middle > 0 else alive
    return out


def make_pair(
    na: Network, nb: Network, tell: Callable[[str], None] = lambda _: None, rotations: bool = False
) -> tuple[Pair, Folded, Folded]:
    """Fold both networks and pair what is left. Raises MismatchError naming the first differences.

    rotations: take orthogonal matrices on streams out as well (derive).
    """
    fa, fb = fold(na, rotations), fold(nb, rotations)
    return joined(fa, fb, na, nb, tell)


def joined(fa: Folded, fb: Folded, na: Network, nb: Network, tell: Callable[[str], None]) -> tuple[Pair, Folded, Folded]:
    """Pair two folded networks and put the second under the first one's names."""
    pairing = pair(fa.network, fb.network)
    left = Folded(with_biases(fa.network, fb.network, pairing), na, fa.magnitudes, fa.record, fa.rotations)
    named = renamed(fb.network, left.network, pairing)
    sizes = {pairing.tensors[t]: m for t, m in fb.magnitudes.items() if t in pairing.tensors}
    right = Folded(named, nb, sizes, fb.record, fb.rotations)
    symmetry = left.symmetry
    a, b = Side(left, symmetry), Side(right, symmetry)
    unit = max(rounding(na), rounding(nb))
    return Pair(a, b, symmetry, pairing, unit, (smallest_normal(na), smallest_normal(nb)), tell), left, right


def checked(
    pair_: Pair, na: Network, nb: Network, unit: float, stored_probes: Mapping[str, Mapping[str, Array]], seed: int
) -> dict[str, Agreement]:
    """Run A against its canonical form, B likewise, and A against B."""
    sets = probes(na, stored_probes, seed)
    order = list(na.inputs)
    double = float(np.finfo(np.float64).eps) / 2
    first = run_on(na, sets, order)
    hopeless = agree(first, first, FLOAT32 if na.parameters >= MANY else double, sets)
    if hopeless.deviation is None:  # no agreement of anything could be proved on these probes
        return dict.fromkeys(("moved_a", "moved_b", "outputs"), hopeless)
    runs = [first, run_on(nb, sets, order)]
    out = {}
    for name, net, side, run in (("moved_a", na, pair_.a, runs[0]), ("moved_b", nb, pair_.b, runs[1])):
        large = net.parameters >= MANY
        moved = run_on(side.action()(side.folded.network, as_stored=large), sets, order)
        out[name] = agree(run, moved, max(rounding(net), FLOAT32) if large else double, sets)
    out["outputs"] = agree(runs[0], runs[1], unit, sets)
    return out
