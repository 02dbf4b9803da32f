"""`compare`: two runs in, a Comparison out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canon.action import Action
from canon.compare.bounds import SAMPLE, Chance, chance, lower_bound, sampled
from canon.compare.check import Agreement
from canon.compare.comparing import FLOAT32, Bools, Pair, checked, make_pair, rounding
from canon.compare.evidence import StandingOut, StoredOrder, standing_out, stored_order
from canon.compare.measure import Sums, Worst, correlations, mean_distance, measure
from canon.compare.plain import plain_diff, same_network
from canon.compare.result import Comparison, File, SpaceFigures
from canon.compare.units import moved, unit_figures
from canon.compare.verdict import Facts, verdict
from canon.errors import CanonError
from canon.matching import State, search, stored
from canon.network import Network
from canon.run import Run

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """gauge: in which distances are taken, "incoming" or "balanced"; units: list every unit; full: chance and lower bound
    over all units; partial: compare what two architectures share; seed: of probes and surrogates.
    """

    gauge: str = "incoming"
    units: bool = False
    full: bool = False
    partial: bool = False
    seed: int = 0


def compare(a: Run, b: Run, options: Options = Options(), tell: Tell = lambda _: None) -> Comparison:
    """Compare two runs modulo the symmetry that their graph has.

    tell: called with a few words before each step that may take long.
    Raises MismatchError (different architectures; the first three differences), NotFinite, and what forward raises never.
    """
    for run in (a, b):
        try:
            run.network.check_finite()
        except CanonError as error:
            raise error.at(run.path) from None
    files = (_file(a), _file(b))
    tensors, pairing = plain_diff(a.network, b.network)
    notes = [f"{side}: {note}" for side, run in (("a", a), ("b", b)) for note in run.notes]
    if pairing is not None and same_network(a.network, b.network, pairing):
        return Comparison(
            "identical", "the same graph, and the same bytes in every tensor", *files,
            {"raw": 0.0, "normalised": 0.0, "matched": 0.0, "chance": None, "lower_bound": None},
            None, None, (), tensors, _no_check("the bytes are the same: there is nothing to run"), tuple(notes), gauge=options.gauge,
        )  # fmt: skip
    shared: Mapping[str, Any] | None = None
    na, nb = a.network, b.network
    if options.partial:
        from canon.compare.partial import common

        na, nb, shared = common(na, nb)
    try:
        pair, _, _ = make_pair(na, nb, tell)
    except CanonError as error:
        raise type(error)(error.where or f"{a.path} and {b.path}", error.what, error.hint) from None
    work = _Work(pair, na, nb, a, b, options, tell, partial=bool(shared))
    return replace(work.result(files, tensors, notes), partial=shared)


def _file(run: Run) -> File:
    return File(run.path, run.format, run.checkpoint, run.network.parameters, str(run.network.dtype))


def _no_check(why: str) -> dict[str, Any]:
    return {"probes": 0, "moved_a": None, "moved_b": None, "outputs": None, "why": why}


class _Work:
    """One comparison of two networks that are not the same bytes."""

    def __init__(
        self, pair: Pair, na: Network, nb: Network, a: Run, b: Run, options: Options, tell: Tell, partial: bool
    ) -> None:
        self.pair, self.na, self.nb, self.a, self.b = pair, na, nb, a, b
        self.options, self.tell, self.partial = options, tell, partial
        self.rng = np.random.default_rng(options.seed)
        self.unit = max(rounding(na), rounding(nb))

    def result(self, files: tuple[File, File], tensors: Any, notes: list[str]) -> Comparison:
        self.tell("normalising")
        state, sums, worst = self._prove()
        self.tell("checking outputs")
        checks = checked(
            self.pair,
            self.na,
            self.nb,
            max(self.unit, FLOAT32 if self.unit > 1e-12 else 0.0),
            self._probes(),
            self.options.seed,
        )
        coarse = worst.deviation * min(self.unit, FLOAT32) / self.unit if self.unit > FLOAT32 else None
        facts = Facts(worst, coarse, self.unit, checks["outputs"], None, None, self._hindrances(), self.partial)
        word, reason = verdict(facts)
        same = word == "equivalent"
        live = self.pair.live(balanced=not same)
        order: StoredOrder | None = None
        standing: StandingOut | None = None
        if not same:
            self.tell("matching")
            state = search(self.pair.balanced, self.tell).state if worst.deviation > 1 else state
            both = {s: live[0][s] & live[1][s] for s in live[0]}
            order = stored_order(self.pair.balanced, both)
            if order.z < 5 and word not in ("same-to-precision",):
                p = self.pair.balanced
                a, b = ({n: np.asarray(side[n]) for n in side} for side in (p._a, p._b))
                standing = standing_out(self.pair.symmetry, a, b, both, state, self.rng, self.tell)
            word, reason = verdict(replace(facts, order=order, standing=standing))
        gauge = self.options.gauge
        sums = (
            sums
            if same and gauge == "incoming"
            else measure(self.pair.a, self.pair.b, self.pair.gauge_action(gauge), self.pair.to_action(state, gauge))[0]
        )
        spaces, figures = self._spaces(state, sums, live, same)
        evidence = None if same else _evidence(order, standing)
        sizes = {s.name: s.size for s in self.pair.symmetry.spaces.values()}
        units = unit_figures(self.pair, state, sums, live, runners=not same) if self.options.units else ()
        return Comparison(
            word, reason, *files, figures, {"tensor": worst.tensor, "index": list(worst.index), "deviation": worst.deviation},
            evidence, spaces, tensors, _checks(checks), (*notes, *self._said(word)), units,
            sampled={} if same else sampled(sizes, self.options.full), gauge=gauge,
        )  # fmt: skip

    def _prove(self) -> tuple[State, dict[str, Sums], Worst]:
        best: tuple[State, dict[str, Sums], Worst] | None = None
        for name, make in self.pair.candidates():
            if name == "searched" and best is not None and best[2].deviation > 1e6:
                break  # far from any copy: the search that the distance needs will be looked at below
            state = make()
            if state is None:
                continue
            sums, worst = self.pair.prove(state)
            if best is None or worst.deviation < best[2].deviation:
                best = (state, sums, worst)
            if worst.deviation <= 1:
                break
        assert best is not None
        return best

    def _probes(self) -> dict[str, dict[str, Any]]:
        stored_ = {**self.a.probes, **self.b.probes}
        names = list(self.na.inputs)
        return {k: {names[0]: x} for k, x in stored_.items()} if len(names) == 1 else {}

    def _hindrances(self) -> list[str]:
        out = []
        if not (self.a.activations_known and self.b.activations_known):
            out.append(
                "the activations are not recorded, so that rescaling could not be taken out (--activation or --architecture)"
            )
        for run in (self.a, self.b):
            opaque = [op.name for op in run.network.ops if op.kind == "opaque"]
            if opaque:
                out.append(f"{opaque[0]} is opaque: what moves through it is not known")
        linear = [s.name for s in self.pair.symmetry.spaces.values() if s.linear]
        if linear:
            out.append(f"{linear[0]} is a linear space, of which only relabelling and scale were taken out")
        return out

    def _said(self, word: str) -> list[str]:
        out = []
        for side, made in (("a", self.pair.a), ("b", self.pair.b)):
            for step in made.folded.record:
                if step.what in ("dead", "constant"):
                    out.append(f"{side}: {len(step.units)} {step.what} units in {step.where} ({step.detail})")
        unclear = [
            f"{g} in {side}"
            for side, made in (("a", self.pair.a), ("b", self.pair.b))
            for g, m in made.gauge.margins.items()
            if (m < 1e-6).any()
        ]
        if unclear:
            out.append(f"signs too close to call: {', '.join(unclear)}")
        if word in ("related", "independent", "undecided"):
            kinds = {op.kind for op in self.na.ops}
            if kinds & {"opaque"} or self.na.parameters > 20_000_000:
                out.append("the evidence is not calibrated for networks of this kind or size")
        return out

    def _spaces(
        self, state: State, sums: dict[str, Sums], live: tuple[dict[str, Bools], dict[str, Bools]], same: bool
    ) -> tuple[tuple[SpaceFigures, ...], dict[str, Any]]:
        pair, gauge = self.pair, self.options.gauge
        problem = pair.balanced if gauge == "balanced" else pair.incoming
        still = Action(pair.symmetry)
        raw = measure(pair.a, pair.b, still, still, centred=False)[0]
        normal = measure(pair.a, pair.b, pair.gauge_action(gauge), pair.to_action(stored(problem), gauge))[0]
        out: list[SpaceFigures] = []
        bounds: list[float] = []
        for name, own in sums.items():
            keep = self._kept(name, own, state, live)
            place = self._kept(name, own, None, live)
            space = pair.symmetry.spaces.get(name)
            by_chance: Chance | None = None
            if not same and space is not None and space.over is None:
                self.tell(f"chance: {name}")
                by_chance = chance(problem, name, state, live[0][name], self.rng, self.options.full)
                low = lower_bound(problem, name, self.rng, self.options.full)
                matched = mean_distance(own, keep)
                bounds.append(min(low[0], matched or 0.0) if low is not None else 0.0)
            out.append(
                SpaceFigures(
                    name,
                    len(own["n"]),
                    int(keep.sum()),
                    pair.symmetry.group(name) if space is not None else "fixed",
                    moved(state, name) if space is not None and space.over is None else 0,
                    mean_distance(raw[name], place),
                    mean_distance(normal[name], place),
                    mean_distance(own, keep),
                    {
                        "raw": _mean(correlations(raw[name])[place]),
                        "matched": _mean(correlations(own)[keep]),
                        "chance": None if by_chance is None else _mean(by_chance.correlations),
                    },
                    None if by_chance is None else float(np.sqrt(np.mean(by_chance.distances**2))),
                )  # fmt: skip
            )
            self._chances = getattr(self, "_chances", [])
            if by_chance is not None:
                self._chances.append(by_chance.distances)
        figures: dict[str, Any] = {
            stage: _rms([getattr(s, stage) for s in out]) for stage in ("raw", "normalised", "matched")
        }
        figures["chance"] = None
        figures["lower_bound"] = None
        if not same and self._chances:
            total = np.sqrt(np.mean(np.square(self._chances), axis=0))
            figures["chance"] = {"mean": float(total.mean()), "sd": float(total.std(ddof=1))}
            figures["lower_bound"] = float(np.sqrt(np.sum(np.square(bounds)) / len(out)))
        return tuple(out), figures

    def _kept(
        self, name: str, own: Sums, state: State | None, live: tuple[dict[str, Bools], dict[str, Bools]]
    ) -> Bools:
        if name not in live[0]:
            return (own["aa"] > 0) | (own["bb"] > 0)
        b = live[1][name]
        if state is not None and state.perms[name].ndim == 1:
            b = b[state.perms[name]]
        keep: Bools = live[0][name] | b
        return keep


def _mean(values: Any) -> float | None:
    kept = np.asarray(values)[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else None


def _rms(values: list[float | None]) -> float | None:
    kept = [v for v in values if v is not None]
    return float(np.sqrt(np.mean(np.square(kept)))) if kept else None


def _evidence(order: StoredOrder | None, standing: StandingOut | None) -> dict[str, Any]:
    return {
        "stored_order": None if order is None else {"z": order.z, "by_space": dict(order.by_space)},
        "standing_out": None if standing is None else vars(standing),
    }


def _checks(checks: Mapping[str, Agreement]) -> dict[str, Any]:
    return {
        "probes": max(c.probes for c in checks.values()),
        **{name: c.deviation for name, c in checks.items()},
        "why": "; ".join(dict.fromkeys(c.why for c in checks.values() if c.why)) or None,
    }


__all__ = ["SAMPLE", "Options", "compare"]
