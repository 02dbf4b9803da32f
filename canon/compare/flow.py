"""`compare`: two runs in, a Comparison out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from canon.borrow import borrow
from canon.compare.bounds import sampled
from canon.compare.check import Agreement
from canon.compare.comparing import FLOAT32, Pair, checked, make_pair, rounding
from canon.compare.evidence import StandingOut, StoredOrder, decides, standing_out, stored_order
from canon.compare.figures import Figures, Live
from canon.compare.measure import Sums, Worst, measure
from canon.compare.plain import plain_diff, same_network, same_tensors
from canon.compare.result import Comparison, File
from canon.compare.units import unit_figures
from canon.compare.verdict import VERDICTS, Facts, verdict
from canon.compare.whole import beside
from canon.errors import CanonError, MismatchError
from canon.matching import State
from canon.network import Network
from canon.run import Run

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """gauge: in which distances are taken, "incoming" or "balanced"; units: list every unit; full: chance and lower bound
    over all units; partial: compare what two architectures share; seed: of probes and surrogates;
    rotations: take rotations of residual streams out as well, where RMS norms alone read them.
    """

    gauge: str = "incoming"
    units: bool = False
    full: bool = False
    partial: bool = False
    seed: int = 0
    rotations: bool = False


def compare(a: Run, b: Run, options: Options = Options(), tell: Tell = lambda _: None) -> Comparison:
    """Compare two runs modulo the symmetry that their graph has.

    A file that can be read in several ways is compared in each; the strongest verdict counts, and a note says which.
    tell: called with a few words before each step that may take long.
    Raises MismatchError (different architectures: the first three differences) and NotFinite.
    """
    if a.whole is not None and b.whole is not None:
        return _compare_whole(a, b, options, tell)
    ways = [(a, b, "")]
    for i, run in enumerate((a, b)):
        for other, words in zip_longest(run.alternatives, run.readings, fillvalue=None):
            if other is not None:
                pair = (run.with_network(other), b) if i == 0 else (a, run.with_network(other))
                ways.append((*pair, f"{'ab'[i]} {words or 'in its other reading (see its note)'}"))
    found: list[Comparison] = []
    for left, right, said in ways:
        try:
            result = _compare(left, right, options, tell)
        except MismatchError:
            if said:  # another reading may have another graph
                continue
            raise
        found.append(replace(result, notes=(*result.notes, f"the verdict reads {said}")) if said else result)
        if result.same:
            break
    return min(found, key=lambda c: (VERDICTS.index(c.verdict), c.distance["matched"] or 0.0))


def _compare_whole(a: Run, b: Run, options: Options, tell: Tell) -> Comparison:
    """Two files that say more than their networks: where that is the same, by the networks; else by all that they say."""
    assert a.whole is not None
    assert b.whole is not None
    alone = _compare(a, b, options, tell)
    same, rounded = beside(a, b)
    if not same:
        return _by_all(a, b, alone, options, tell)
    said = "what the files say of their inputs and outputs is the same" + (" to rounding" if rounded else "")
    word = "equivalent" if rounded and alone.verdict == "identical" else alone.verdict
    return replace(alone, verdict=word, notes=(*alone.notes, said))


def _by_all(a: Run, b: Run, alone: Comparison, options: Options, tell: Tell) -> Comparison:
    assert a.whole is not None
    assert b.whole is not None
    result = _compare(a.with_network(a.whole), b.with_network(b.whole), options, tell)
    said = "the files say other things of their inputs and outputs, and are compared with that"
    said += f"; without it they are {alone.verdict}" if alone.same else ""
    return replace(result, notes=(*result.notes, said))


def _compare(a: Run, b: Run, options: Options, tell: Tell) -> Comparison:
    a, b = _lent(a, b)
    for run in (a, b):
        try:
            run.network.check_finite()
        except CanonError as error:
            raise error.at(run.path) from None
    files = (_file(a), _file(b))
    kept = (a.kept, b.kept)
    tensors, pairing = plain_diff(a.network, b.network, kept)
    notes = [f"{side}: {note}" for side, run in (("a", a), ("b", b)) for note in run.notes]
    if pairing is not None and same_network(a.network, b.network, pairing, kept):
        return Comparison(
            "identical",
            "the same graph, and the same bytes in every tensor",
            *files,
            {"raw": 0.0, "normalised": 0.0, "matched": 0.0, "chance": None, "lower_bound": None},
            worst=None,
            evidence=None,
            spaces=(),
            tensors=tensors,
            check=_no_check("the bytes are the same: there is nothing to run"),
            notes=tuple(notes),
            gauge=options.gauge,
        )
    shared: Mapping[str, Any] | None = None
    na, nb = a.network, b.network
    if options.partial:
        from canon.compare.partial import common

        na, nb, shared = common(na, nb)
    try:
        pair, _, _ = make_pair(na, nb, tell, options.rotations)
    except CanonError as error:
        what = error.what + ("; yet all their tensors are the same" if same_tensors(na, nb) else "")
        raise type(error)(error.where or f"{a.path} and {b.path}", what, error.hint) from None
    work = _Work(pair, na, nb, a, b, options, tell, partial=bool(shared))
    return replace(work.result(files, tensors, notes), partial=shared)


def _lent(a: Run, b: Run) -> tuple[Run, Run]:
    """A side without a graph takes the other's where every tensor fits; its notes say so."""
    unknown = [run.graph == "none" or not run.activations_known for run in (a, b)]
    try:
        if unknown[0] and not unknown[1]:
            a = borrow(a, b)
        elif unknown[1] and not unknown[0]:
            b = borrow(b, a)
    except CanonError:  # it does not fit: both stay as they are
        pass
    return a, b


def _file(run: Run) -> File:
    return File(run.path, run.format, run.checkpoint, run.network.parameters, run.network.main_type)


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
        """All stages, one after the other."""
        pair, options = self.pair, self.options
        self.tell("normalising")
        state, sums, worst = self._prove()
        self.tell("checking outputs")
        checks = checked(pair, self.na, self.nb, self.unit, self._probes(), options.seed)
        coarse = pair.prove(state, coarse=True)[1].deviation if self.unit > FLOAT32 else None
        facts = Facts(
            worst,
            coarse,
            self.unit,
            checks["outputs"],
            None,
            None,
            self._hindrances(),
            (checks["moved_a"], checks["moved_b"]),
            self.partial,
        )
        word, reason = verdict(facts)
        same = word == "equivalent"
        live = pair.live(balanced=not same)
        order: StoredOrder | None = None
        standing: StandingOut | None = None
        if not same:
            self.tell("matching")
            if word != "same-to-precision":
                state = pair.searched
            order, standing = self._evidence(state, live)
            word, reason = verdict(replace(facts, order=order, standing=standing))
        if not same or options.gauge != "incoming":
            sums = measure(pair.a, pair.b, *pair.onto(state, options.gauge))[0]
        figures = Figures(pair, state, sums, live, same, options.gauge, options.full, self.rng, order, self.tell)
        spaces, distance = figures.all()
        sizes = {s.name: s.size for s in pair.symmetry.spaces.values()}
        return Comparison(
            word,
            reason,
            *files,
            distance,
            worst={"tensor": worst.tensor, "index": list(worst.index), "deviation": worst.deviation},
            evidence=None if same else _evidence(order, standing),
            spaces=spaces,
            tensors=tensors,
            check=_checks(checks),
            notes=(*notes, *self._said(word)),
            units=unit_figures(pair, state, sums, live, runners=not same) if options.units else (),
            sampled={} if same else sampled(sizes, options.full),
            gauge=options.gauge,
        )

    def _evidence(self, state: State, live: Live) -> tuple[StoredOrder, StandingOut | None]:
        """Stored order; and whether partners stand out, where that did not decide."""
        both = {s: live[0][s] & live[1][s] for s in live[0]}
        order = stored_order(self.pair.balanced, both)
        if decides(order, state, self.pair.balanced.plain):
            return order, None
        a, b = (dict(t) for t in self.pair.balanced.tensors)
        return order, standing_out(self.pair.symmetry, a, b, live, state, self.rng, self.tell)

    def _prove(self) -> tuple[State, dict[str, Sums], Worst]:
        best: tuple[State, dict[str, Sums], Worst] | None = None
        for make in self.pair.candidates():
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


def _evidence(order: StoredOrder | None, standing: StandingOut | None) -> dict[str, Any]:
    return {
        "stored_order": None if order is None else {"z": order.z, "near": order.near, "by_space": dict(order.by_space)},
        "standing_out": None if standing is None else vars(standing),
    }


def _checks(checks: Mapping[str, Agreement]) -> dict[str, Any]:
    return {
        "probes": max(c.probes for c in checks.values()),
        **{name: c.deviation for name, c in checks.items()},
        "why": "; ".join(dict.fromkeys(c.why for c in checks.values() if c.why)) or None,
    }
