"""The figures of each space and of the whole network, with chance and the lower bound beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canon.action import Action
from canon.compare.bounds import Chance, chance, lower_bound
from canon.compare.comparing import Bools, Pair
from canon.compare.evidence import StoredOrder
from canon.compare.measure import Sums, correlations, mean_distance, measure
from canon.compare.result import SpaceFigures
from canon.compare.units import moved
from canon.matching import State, stored

Live = tuple[dict[str, Bools], dict[str, Bools]]


@dataclass
class Figures:
    """Collects the figures of one comparison.

    state: the matching; sums: of the matched stage, by space; same: whether the two are one network, for which chance
    and the lower bound say nothing; gauge: in which distances are taken.
    """

    pair: Pair
    state: State
    sums: Mapping[str, Sums]
    live: Live
    same: bool
    gauge: str
    full: bool
    rng: np.random.Generator
    order: StoredOrder | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)

    def all(self) -> tuple[tuple[SpaceFigures, ...], dict[str, Any]]:
        """Figures by space, and those of the network: root mean squares over spaces, the output included."""
        pair = self.pair
        problem = pair.balanced if self.gauge == "balanced" else pair.incoming
        still = Action(pair.symmetry)
        raw = measure(pair.a, pair.b, still, still, centred=False)[0]
        normal = measure(pair.a, pair.b, *pair.onto(stored(problem), self.gauge))[0]
        spaces: list[SpaceFigures] = []
        chances: list[Chance] = []
        bounds: list[float] = []
        for name, own in self.sums.items():
            here = self._free(name)
            by_chance = None
            if here and not self.same:
                self.tell(f"chance: {name}")
                by_chance = chance(problem, name, self.state, self.live[0][name], self.rng, self.full)
                bounds.append(self._bound(name, own))
            if by_chance is not None:
                chances.append(by_chance)
            spaces.append(self._space(name, raw[name], normal[name], own, by_chance))
        network: dict[str, Any] = {s: _rms([getattr(x, s) for x in spaces]) for s in ("raw", "normalised", "matched")}
        network["chance"] = network["lower_bound"] = None
        if chances:
            total = np.sqrt(np.mean(np.square([c.distances for c in chances]), axis=0))
            network["chance"] = {"mean": float(total.mean()), "sd": float(total.std(ddof=1))}
            network["lower_bound"] = float(np.sqrt(np.sum(np.square(bounds)) / len(spaces)))
        return tuple(spaces), network

    def _free(self, name: str) -> bool:
        space = self.pair.symmetry.spaces.get(name)
        return space is not None and space.over is None

    def _bound(self, name: str, own: Sums) -> float:
        problem = self.pair.balanced if self.gauge == "balanced" else self.pair.incoming
        found = lower_bound(problem, name, self.rng, self.full)
        return 0.0 if found is None else min(found[0], mean_distance(own, self._kept(name, own, True)) or 0.0)

    def _space(self, name: str, raw: Sums, normal: Sums, own: Sums, by_chance: Chance | None) -> SpaceFigures:
        matched, place = self._kept(name, own, True), self._kept(name, own, False)
        known = name in self.pair.symmetry.spaces
        r = {
            "raw": _mean(correlations(raw)[place]),
            "matched": _mean(correlations(own)[matched]),
            "chance": None if by_chance is None else _mean(by_chance.correlations),
        }
        return SpaceFigures(
            name,
            units=len(own["n"]),
            live=int(matched.sum()),
            group=self.pair.symmetry.group(name) if known else "fixed",
            moved=moved(self.state, name) if self._free(name) else 0,
            raw=mean_distance(raw, place),
            normalised=mean_distance(normal, place),
            matched=mean_distance(own, matched),
            correlation=r,
            chance=None if by_chance is None else float(np.sqrt(np.mean(by_chance.distances**2))),
            z=None if self.order is None else self.order.by_space.get(name),
        )

    def _kept(self, name: str, own: Sums, matched: bool) -> Bools:
        """The pairs that count: those of which at least one unit is live, in the matching or as stored."""
        if name not in self.live[0]:
            return np.asarray((own["aa"] > 0) | (own["bb"] > 0))
        b = self.live[1][name]
        if matched and self.state.perms[name].ndim == 1:
            b = b[self.state.perms[name]]
        return np.asarray(self.live[0][name] | b)


def _mean(values: Any) -> float | None:
    kept = np.asarray(values)[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else None


def _rms(values: list[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return float(np.sqrt(np.mean(np.square(kept)))) if kept else None
