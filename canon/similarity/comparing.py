"""The flow: check that both sides saw the same samples, map all pairs of layers, look closely at those that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from canon.errors import MismatchError, NumericError, UsageError
from canon.similarity.activations import Computed, Source
from canon.similarity.layer import FEW, Layer
from canon.similarity.measures import DEFAULT, MEASURES, Measure
from canon.similarity.null import affordable, figures
from canon.similarity.pair import Pair
from canon.similarity.probes import same_samples
from canon.similarity.reference import with_reference
from canon.similarity.result import Best, LayerFigures, LayerInfo, SideInfo, Similarity
from canon.similarity.sums import HOLD, Names, Sides, Tell
from canon.similarity.units import Units, Watch, matched, units
from canon.similarity.values import IN_WORDS

LEAD = "cka_standardised"
LEVEL = 0.05
"""p up to which a layer's best match is more than chance."""


@dataclass(frozen=True)
class Options:
    """How to compare.

    measures: names, DEFAULT where none is given; lead: the measure of the map; permutations: how many, or as many as are
    affordable; seed: of the null; units: whether units are looked at one by one; unsigned: layers of a in which a unit and
    its negative are the same unit; hold: bytes of rows that may be held.
    """

    measures: tuple[str, ...] = ()
    lead: str = LEAD
    permutations: int | None = None
    seed: int = 0
    units: bool = False
    unsigned: frozenset[str] = frozenset()
    hold: int = HOLD


def similarity(
    a: Source,
    b: Source,
    options: Options | None = None,
    references: Sequence[Source] = (),
    tell: Tell = lambda text: None,
) -> Similarity:
    """Compare two sides' activations.

    Raises MismatchError where the samples are not the same, in the same order; UsageError; NotFinite.
    """
    options = options or Options()
    named = _measures(options)
    for other in (b, *references):
        _check_samples(a, other)
    wanted = [(x, y) for x in a.layers for y in b.layers if a.layers[x].positions == b.layers[y].positions]
    left_out = tuple(
        (x, y, f"{a.layers[x].positions} positions a sample and {b.layers[y].positions}")
        for x in a.layers
        for y in b.layers
        if a.layers[x].positions != b.layers[y].positions
    )
    if not wanted:
        raise MismatchError(f"{a.path} and {b.path}", f"no two layers can be compared: {left_out[0][2]}",
                            "--positions mean averages positions away, --positions units flattens them.")  # fmt: skip
    sides = Sides(a, b, tell, hold=options.hold, seed=options.seed)
    run = _Flow(sides, options, named, wanted, tell)
    pairs = run.mapped()
    pairs = run.with_null(_close(pairs, _best(pairs, options.lead), a, b))
    best = _best(pairs, options.lead)
    kept = sides.layers_a if sides.held else None
    pairs = with_reference(pairs, a, references, kept, tell) if references else pairs
    made = (_side(a, run.constant[0]), _side(b, run.constant[1]))
    return Similarity(
        *made,
        a.samples,
        _identity(a, b),
        IN_WORDS[a.positions],
        sides.rows_held,
        options.lead,
        pairs,
        best,
        left_out,
        tuple(run.tables),
        tuple(source.path for source in references),
        tuple(_notes(a, b, pairs, sides, run.constant, left_out, options)),
    )


def _measures(options: Options) -> list[Measure]:
    names = options.measures or DEFAULT
    for name in (*names, options.lead):
        if name not in MEASURES:
            raise UsageError("", f"there is no measure {name!r}", f"There are {', '.join(MEASURES)}.")
    return [MEASURES[name] for name in MEASURES if name in names or (options.units and name == "matching_hard")]


def _check_samples(a: Source, b: Source) -> None:
    where = f"{a.path} and {b.path}"
    if a.samples != b.samples:
        raise MismatchError(where, f"{a.samples:,} samples and {b.samples:,}",
                            "Measures compare what both sides give on the same samples.")  # fmt: skip
    why = same_samples(a.ids, b.ids)
    if why:
        raise MismatchError(where, why, "Measures need the same samples in the same order on both sides.")
    if a.samples < 2:
        count = "one sample" if a.samples else "no samples"
        raise UsageError(where, f"{count}: nothing varies", "Measures look at how units vary over samples.")


def _identity(a: Source, b: Source) -> str | None:
    """How the samples are known to be the same ones; None where they are not."""
    if isinstance(a, Computed) and isinstance(b, Computed) and a.probes is b.probes:
        return "same probes"
    return "agree" if a.ids is not None and b.ids is not None else None


class _Flow:
    """The passes over all pairs, and what they find out on the way."""

    def __init__(self, sides: Sides, options: Options, named: Sequence[Measure], wanted: Sequence[Names], tell: Tell) -> None:
        self.sides, self.options, self.named, self.wanted, self.tell = sides, options, named, wanted, tell
        self.constant: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.tables: list[Units] = []

    def mapped(self) -> tuple[LayerFigures, ...]:
        """Every pair by the map's measure, without its null."""
        lead = [MEASURES[self.options.lead]]
        out = []
        for k, ((x, y), pair) in enumerate(self.sides.pairs(self.wanted)):
            self.tell(f"pair {k + 1} of {len(self.wanted)}: {x} and {y}")
            for side, (name, layer) in enumerate(((x, pair.a), (y, pair.b))):
                self.constant[side].setdefault(name, _constant(layer))
            out.append(LayerFigures(x, y, figures(pair, lead, 0), False))
        return tuple(out)

    def with_null(self, close: Mapping[Names, bool]) -> tuple[LayerFigures, ...]:
        """Every pair by the map's measure with its null, the close ones by all measures; units of those marked."""
        lead = MEASURES[self.options.lead]
        hidden = [m for m in MEASURES.values() if m is lead or (m in self.named and not m.outputs)]
        closely = self._permutations(list(close), hidden)
        coarsely = self._permutations([names for names in self.wanted if names not in close], [lead])
        out = []
        for k, ((x, y), pair) in enumerate(self.sides.pairs(self.wanted)):
            tell = self._told(f"pair {k + 1} of {len(self.wanted)}")
            if (x, y) not in close:
                out.append(LayerFigures(x, y, figures(pair, [lead], coarsely, self.options.seed, tell), False))
                continue
            wanted = [m for m in MEASURES.values() if m in hidden or (m in self.named and self._outputs(x, y))]
            watch = self._watch(pair, x) if self.options.units and close[x, y] else None
            found = figures(pair, wanted, closely, self.options.seed, tell, watch or (lambda other: None))
            out.append(LayerFigures(x, y, found, True))
            if watch is not None:
                self.tables.append(units(pair, (x, y), watch))
        return tuple(out)

    def _watch(self, pair: Pair, x: str) -> Watch | None:
        """What is to see the null's permutations unit by unit; None where units cannot be matched, as their figure says."""
        watch = Watch(x in self.options.unsigned)
        try:
            matched(pair, watch.unsigned)
        except NumericError:
            return None
        return watch

    def _outputs(self, x: str, y: str) -> bool:
        a, b = self.sides.a.outputs, self.sides.b.outputs
        return (x in a and y in b) or (bool(self.options.measures) and not a and not b)

    def _permutations(self, wanted: Sequence[Names], measures: Sequence[Measure]) -> int:
        if self.options.permutations is not None or not wanted:
            return self.options.permutations or 0
        a, b = self.sides.a.layers, self.sides.b.layers
        rows = self.sides.rows_held
        return affordable([(rows * a[x].positions, a[x].units, b[y].units) for x, y in wanted], measures)

    def _told(self, which: str) -> Tell:
        return lambda text: self.tell(f"{which}, {text}")


def _constant(layer: Layer) -> int:
    return int((~layer.live).sum())


def _best(pairs: Sequence[LayerFigures], lead: str) -> tuple[Best, ...]:
    """For each layer of a the layer of b that the measure finds most alike; of equals the one of its name, then the first."""
    sign = -1.0 if MEASURES[lead].distance else 1.0
    out: dict[str, tuple[tuple[float, bool], Best]] = {}
    for pair in pairs:
        value = pair.measures[lead].value
        if value is None:
            continue
        rank = (round(sign * value, 9), pair.a == pair.b)
        if pair.a not in out or rank > out[pair.a][0]:
            figure = pair.measures[lead]
            least = max(LEVEL, 1 / (1 + figure.permutations))  # few permutations: as small as it can be
            out[pair.a] = (rank, Best(pair.a, pair.b, lead, None if figure.p is None else figure.p <= least))
    return tuple(best for _, best in out.values())


def _close(pairs: Sequence[LayerFigures], best: Sequence[Best], a: Source, b: Source) -> dict[Names, bool]:
    """The pairs looked at closely: each layer of a with its best, and with its namesake; True for the one whose units are
    listed, the namesake where there is one.
    """
    nearest = {one.a: one.b for one in best}
    known = {(p.a, p.b) for p in pairs}
    out: dict[Names, bool] = {}
    for x in a.layers:
        namesake = x if (x, x) in known else _same_place(x, a, b, known)
        for y in dict.fromkeys(n for n in (namesake, nearest.get(x)) if n is not None):
            out[x, y] = y == (namesake or nearest.get(x))
    return out


def _same_place(x: str, a: Source, b: Source, known: set[Names]) -> str | None:
    """The layer at the same place, where both sides have as many layers and none of a name."""
    if len(a.layers) != len(b.layers) or set(a.layers) & set(b.layers):
        return None
    y = list(b.layers)[list(a.layers).index(x)]
    return y if (x, y) in known else None


def _side(source: Source, constant: Mapping[str, int]) -> SideInfo:
    layers = tuple(
        LayerInfo(name, e.units, e.positions, constant.get(name, 0), name in source.outputs)
        for name, e in source.layers.items()
    )
    return SideInfo(source.path, source.origin, source.about, layers)


def _notes(
    a: Source,
    b: Source,
    pairs: Sequence[LayerFigures],
    sides: Sides,
    constant: tuple[Mapping[str, int], Mapping[str, int]],
    left_out: Sequence[tuple[str, str, str]],
    options: Options,
) -> list[str]:
    out = []
    if isinstance(a, Computed) and a.probes.noise:
        out.append("run on noise: on real samples (--probes) layers may agree more, or less")
    if _identity(a, b) is None:
        who = (
            "neither side names its"
            if a.ids is None and b.ids is None
            else f"{'a' if a.ids is None else 'b'} does not name its"
        )
        out.append(f"whether the samples are the same, in the same order, could not be checked: {who} samples (sample_ids)")
    thin = sorted({
        (e.units, name, source.samples * e.positions)
        for source in (a, b)
        for name, e in source.layers.items()
        if e.units >= source.samples * e.positions
    })  # fmt: skip
    if thin:
        d, name, n = thin[-1]
        out.append(
            f"fewer samples than units ({n:,} for the {d:,} of {name}): canonical correlations and regression are perfect"
            " whatever the data, and biased CKA is inflated; read calibrated values"
        )
    for which, side in zip("ab", constant, strict=True):
        dead = {name: n for name, n in side.items() if n}
        if dead:
            said = ", ".join(f"{n} of {name}" for name, n in list(dead.items())[:6])
            out.append(f"{which}: constant on all samples, and so without any correlation: {said}")
    if any(e.positions > 1 for s in (a, b) for e in s.layers.values()):
        out.append("positions count as samples; the null permutes samples whole")
    if not sides.held:
        out.append(
            f"too large to hold: summed in batches; the null comes from {sides.rows_held:,} of {a.samples:,} samples, scaled"
        )
    paired = {
        n
        for p in pairs
        for n, f in p.measures.items()
        if MEASURES[n].work == "samples" and 0 < f.rows < a.samples * a.layers[p.a].positions
    }
    if paired:
        out.append(f"{', '.join(n for n in MEASURES if n in paired)}: of about {FEW:,} rows, a seeded choice")
    if left_out:
        out.append(
            f"{len(left_out)} pairs of layers differ in positions ({left_out[0][0]} and {left_out[0][1]}: {left_out[0][2]});"
            " --positions mean compares them too"
        )
    return out
