"""Two sources side by side: their layers held whole where that fits, else summed up while they stream past.

Held (up to 512 MB of rows, both sides together), everything is computed from the rows themselves. Beyond, two passes over
the batches: the first for means, the second for the sums of centred products, X^T X of every layer and X^T Y of every pair
in turn. Memory is then that of these d x d sums, of a batch, and of some thousand rows of a seeded choice of samples, from
which null and measures of pairs of samples are taken; it does not grow with the number of samples. One centring either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from canon.errors import NumericError, UsageError
from canon.ops.base import Array
from canon.similarity.activations import Source
from canon.similarity.layer import Floats, Indices, Layer, Scaled, check_finite, expanded, in_places
from canon.similarity.pair import Pair

HOLD = 1 << 29
"""Bytes of rows that are held; and of sums kept at once, when they are not."""
BATCH = 1 << 26
"""Bytes of activations in one batch."""
KEEP, FEWEST = 4096, 8
"""Samples of a stream whose rows are held: at most, and at least."""
Tell = Callable[[str], None]
Names = tuple[str, str]


class Sides:
    """Layers of two sources, and their pairs.

    kept: layers of a that were made before, on the same samples; hold: bytes of rows that may be held.
    """

    def __init__(
        self, a: Source, b: Source, tell: Tell, *, kept: dict[str, Layer] | None = None, hold: int = HOLD, seed: int = 0
    ) -> None:
        self.a, self.b, self._tell, self._hold = a, b, tell, hold
        rows = sum(8 * e.positions * e.units for source in (a, b) for e in source.layers.values())
        self.held = a.samples * rows <= hold
        self.batch = max(min(BATCH // max(a.cost, b.cost, 1), 2048), 1)
        self._layers: tuple[dict[str, Layer], dict[str, Layer]]
        if self.held:
            self._layers = (kept or gathered(a, self.batch, tell), gathered(b, self.batch, tell))
        else:
            for source in (a, b):
                _check_widths(source, hold)
            self._chosen = _choice(a.samples, rows, hold, seed)
            self._layers = tuple(self._opened(source) for source in (a, b))  # type: ignore[assignment]

    @property
    def layers_a(self) -> dict[str, Layer]:
        """The layers of a, where they are held."""
        return self._layers[0]

    @property
    def rows_held(self) -> int:
        """Samples whose rows are held."""
        return self.a.samples if self.held else len(self._chosen)

    def pairs(self, wanted: Sequence[Names]) -> Iterator[tuple[Names, Pair]]:
        """The pairs of layers of these names, in this order."""
        if self.held:
            for names in wanted:
                yield names, Pair(self._layers[0][names[0]], self._layers[1][names[1]])
            return
        at = 0
        while at < len(wanted):
            group, size = [wanted[at]], self._size(wanted[at])
            while at + len(group) < len(wanted) and size + self._size(wanted[at + len(group)]) <= self._hold:
                size += self._size(wanted[at + len(group)])
                group.append(wanted[at + len(group)])
            at += len(group)
            yield from self._summed(group, f"{at} of {len(wanted)} pairs of layers")

    def _size(self, names: Names) -> int:
        return 8 * self.a.layers[names[0]].units * self.b.layers[names[1]].units

    def _opened(self, source: Source) -> dict[str, Layer]:
        """Layers after the first pass: means, extremes, variances, and the rows of the chosen samples."""
        passing = {name: _First(e.units, e.positions) for name, e in source.layers.items()}
        rows: dict[str, list[Array]] = {name: [] for name in source.layers}
        seen = 0
        for batch in source.batches(list(source.layers), self.batch):
            first = seen
            for name, values in batch.items():
                positions = source.layers[name].positions
                count = len(values) // positions
                seen = first + count
                with np.errstate(over="ignore", invalid="ignore"):
                    passing[name].add(np.asarray(values, np.float64))
                if not np.isfinite(passing[name].total).all():
                    check_finite(f"{source.path}: {name}", values, positions, first)
                here = self._chosen[(self._chosen >= first) & (self._chosen < seen)] - first
                rows[name].append(values[expanded(here, positions)])
            self._tell(f"{source.path}: means, {seen:,} of {source.samples:,} samples")
        return {
            name: passing[name].layer(name, np.concatenate(rows[name]).astype(np.float64), extent.positions, extent.rounding)
            for name, extent in source.layers.items()
        }

    def _summed(self, group: Sequence[Names], which: str) -> Iterator[tuple[Names, Pair]]:
        """The pairs of a group after the second pass."""
        sums = {names: _Cross(*(self._layers[s][names[s]] for s in (0, 1))) for names in group}
        own = [
            {name: _Own(self._layers[side][name]) for name in dict.fromkeys(names[side] for names in group)} for side in (0, 1)
        ]
        done = 0
        for batches in zip(self.a.batches(list(own[0]), self.batch), self.b.batches(list(own[1]), self.batch), strict=True):
            centred = [
                {name: one.add(batch[name]) for name, one in side.items()} for side, batch in zip(own, batches, strict=True)
            ]
            for names, cross in sums.items():
                cross.add(centred[0][names[0]], centred[1][names[1]])
            done = min(done + self.batch, self.a.samples)
            self._tell(f"products of {which}, {done:,} of {self.a.samples:,} samples")
        for side in own:
            for one in side.values():
                one.finish()
        for names in group:
            yield names, sums.pop(names).pair()


Centred = tuple[Floats, Floats, Floats]
"""Rows, their squared norms, and these with standardised units."""


class _First:
    """What the first pass finds out about a layer. Sums are taken about the first batch's mean, so that none cancels."""

    def __init__(self, units: int, positions: int) -> None:
        self.count, self.about = 0, np.zeros(units)
        self.places = np.zeros((positions, units))
        self.squares, self.positive = np.zeros(units), np.zeros(units)
        self.low, self.high = np.full(units, np.inf), np.full(units, -np.inf)

    def add(self, values: Floats) -> None:
        if not self.count:
            self.about = values.mean(axis=0)
        self.count += len(values)
        self.low, self.high = np.minimum(self.low, values.min(axis=0)), np.maximum(self.high, values.max(axis=0))
        self.positive += (values > 0).sum(axis=0)
        moved = values - self.about
        self.places += in_places(moved, len(self.places))
        self.squares += np.einsum("ij,ij->j", moved, moved)

    @property
    def total(self) -> Floats:
        return np.asarray(self.places.sum(axis=0))

    def layer(self, name: str, rows: Floats, positions: int, rounding: float) -> Layer:
        off = self.total / self.count
        mean = self.about + off
        power = np.maximum(self.squares - self.count * off**2, 0.0)
        if not np.isfinite(power).all():
            raise NumericError(name, "values so large that their squares overflow")
        here = rows.mean(axis=0)
        rows -= here
        known = {
            "extent": (self.low, self.high),
            "active": self.positive / self.count,
            "power": power,
            "centre": mean,
            "places": self.places - off * (self.count // len(self.places)),
        }
        return Layer(name, rows, here, count=self.count, positions=positions, rounding=rounding, known=known)


class _Own:
    """X^T X of a layer and its row norms, summed over batches."""

    def __init__(self, layer: Layer) -> None:
        self.layer, flat = layer, layer.standardised
        assert isinstance(flat, Scaled)
        self.factor = flat.factor
        self.new = "scatter" not in vars(layer)
        self.scatter = np.zeros((layer.units, layer.units)) if self.new else layer.scatter
        self.norms = np.zeros(4)

    def add(self, values: Array) -> Centred:
        x = np.subtract(values, self.layer.centre, dtype=np.float64)
        p = np.einsum("ij,ij->i", x, x)
        q = np.square(x * self.factor).sum(axis=1)
        if self.new:
            self.scatter += x.T @ x
            self.norms += (p.sum(), p @ p, q.sum(), q @ q)
        return x, p, q

    def finish(self) -> None:
        if self.new:
            self.layer.learn(scatter=self.scatter, norms=(float(self.norms[0]), float(self.norms[1])))
            self.layer.standardised.learn(norms=(float(self.norms[2]), float(self.norms[3])))


class _Cross:
    """X^T Y of a pair, summed over batches."""

    def __init__(self, a: Layer, b: Layer) -> None:
        self.a, self.b = a, b
        self.cross = np.zeros((a.units, b.units))
        self.products = np.zeros(2)

    def add(self, x: Centred, y: Centred) -> None:
        self.cross += x[0].T @ y[0]
        self.products += (x[1] @ y[1], x[2] @ y[2])

    def pair(self) -> Pair:
        plain, scaled = (float(v) for v in self.products)
        return Pair(self.a, self.b, cross=lambda: self.cross, products=plain, scaled_products=scaled)


def gathered(source: Source, batch: int, tell: Tell) -> dict[str, Layer]:
    """All layers of a source, held whole and centred in place."""
    rows = {name: np.empty((source.samples * e.positions, e.units)) for name, e in source.layers.items()}
    done = 0
    for found in source.batches(list(source.layers), batch):
        count = 0
        for name, values in found.items():
            at = done * source.layers[name].positions
            rows[name][at : at + len(values)] = values
            count = len(values) // source.layers[name].positions
        done += count
        tell(f"{source.path}: {done:,} of {source.samples:,} samples")
    out: dict[str, Layer] = {}
    for name, extent in source.layers.items():
        x = rows.pop(name)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean(axis=0)
        if not np.isfinite(mean).all():
            check_finite(f"{source.path}: {name}", x, extent.positions)
            raise NumericError(f"{source.path}: {name}", "values so large that their sum overflows")
        x -= mean
        out[name] = Layer(name, x, mean, positions=extent.positions, rounding=extent.rounding)
    return out


def _choice(samples: int, rows: int, hold: int, seed: int) -> Indices:
    """The samples of a stream whose rows are held, in their order."""
    most = min(KEEP, hold // max(rows, 1))
    if most < min(FEWEST, samples):
        raise UsageError("", f"{rows:,} bytes of activations a sample: not even {FEWEST} samples can be held",
                         "Take --positions mean, or name --layers.")  # fmt: skip
    chosen: Any = np.random.default_rng([seed, samples]).choice(samples, min(most, samples), replace=False, shuffle=False)
    return np.sort(np.asarray(chosen, np.intp))


def _check_widths(source: Source, hold: int) -> None:
    for name, extent in source.layers.items():
        if 8 * extent.units**2 > hold:
            raise UsageError(
                f"{source.path}: {name}",
                f"{extent.units:,} units on {source.samples:,} samples: neither these rows nor sums of all pairs of units fit",
                "Take fewer --samples, name --layers, or count positions as samples: --positions samples.",
            )
