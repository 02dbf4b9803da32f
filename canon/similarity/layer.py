"""Layer: what one layer answers to every sample, centred once; what several measures ask of it is computed once.

Notation, here and in the measures: X (n, d) is centred, a row for each sample (for each position of each sample, where
positions count as samples) and a column for each unit; S = X^T X is its scatter matrix, not divided by n. All in float64.

With more units than rows, S is larger than it need be: rotations of the units change neither X X^T nor any measure that
allows them, so those measures work on `core`, the same X X^T in at most n columns. That is the n x n form of each
formula; no measure writes it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canon.errors import NotFinite, NumericError, UsageError
from canon.ops.base import Array

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Bools = NDArray[np.bool_]

FEW = 1024
"""Rows up to which measures that look at every pair of samples use all of them; of more, a seeded choice."""
BLOCK = 1024
"""Rows handled at once where a copy of all would be too much."""
_SAFE = 1e-8
"""Reciprocal condition over which a scatter matrix is far from singular."""
_CONSTANT = 4
"""Roundings of its largest value within which a unit that varies does not vary at all."""


class Layer:
    """One layer's centred activations, and what is computed from them when it is first asked for.

    name; rows: X, or of a stream the rows held of it; mean: what was taken off, (d,); count: n, all rows; positions: how
    many neighbouring rows belong to one sample; rounding: u of the type the values came in; known: properties that were
    found otherwise than from the rows held, by name.
    """

    def __init__(
        self,
        name: str,
        rows: Floats,
        mean: Floats,
        *,
        count: int | None = None,
        positions: int = 1,
        rounding: float = 2.0**-53,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.mean, self._rows = name, mean, rows
        self.count = len(rows) if count is None else count
        self.positions, self.rounding = positions, rounding
        self._kept: dict[object, Any] = {}
        self.learn(**(known or {}))

    def learn(self, **known: Any) -> None:
        """Take properties as known: they are not computed from the rows."""
        vars(self).update(known)

    @property
    def rows(self) -> Floats:
        """The centred rows held, (m, d)."""
        return self._rows

    @property
    def units(self) -> int:
        """How many units, d."""
        return len(self.mean)

    @property
    def held(self) -> int:
        """How many rows are held, m."""
        return len(self._rows)

    @property
    def samples(self) -> int:
        """How many samples the rows held come from."""
        return self.held // self.positions

    @property
    def wide(self) -> bool:
        """Whether it has more units than rows."""
        return self.units > self.count

    def once(self, key: object, compute: Callable[[Layer], Any]) -> Any:
        """What `compute` makes of this layer, kept under a key."""
        if key not in self._kept:
            self._kept[key] = compute(self)
        return self._kept[key]

    @cached_property
    def extent(self) -> tuple[Floats, Floats]:
        """Smallest and largest value of each unit, as they came."""
        return self.rows.min(axis=0) + self.mean, self.rows.max(axis=0) + self.mean

    @cached_property
    def live(self) -> Bools:
        """Which units vary: over more than 4 roundings of their largest value."""
        # what varies spans at least two standard deviations, and no value is farther from the mean than the root of the power
        reach = np.sqrt(self.power)
        least, most = 2 * reach / np.sqrt(self.count), np.abs(self.centre) + reach
        if (least > 2 * _CONSTANT * self.rounding * most).all():
            return np.ones(self.units, bool)
        low, high = self.extent
        size = np.maximum(np.abs(low), np.abs(high))
        return np.asarray((high - low > _CONSTANT * self.rounding * size) & (self.power > 0))

    @cached_property
    def active(self) -> Floats:
        """The share of values over zero, unit by unit."""
        return np.asarray((self.rows > -self.mean).mean(axis=0))

    @cached_property
    def centre(self) -> Floats:
        """The mean over all rows."""
        return self.mean

    @cached_property
    def places(self) -> Floats:
        """The sum of the rows of each position, over samples, (positions, d)."""
        return in_places(self.rows, self.positions)

    @cached_property
    def power(self) -> Floats:
        """The diagonal of S."""
        if "scatter" in vars(self):
            found: Floats = np.diagonal(self.scatter)
        else:
            found = np.einsum("ij,ij->j", self.rows, self.rows)
        if not np.isfinite(found).all():
            raise NumericError(self.name, "values so large that their squares overflow")
        return found

    @cached_property
    def scatter(self) -> Floats:
        """S = X^T X, (d, d)."""
        return self.rows.T @ self.rows

    @cached_property
    def squares(self) -> Floats:
        """p: the squared norm of each row held."""
        return np.asarray(np.einsum("ij,ij->i", self.rows, self.rows))

    @cached_property
    def norms(self) -> tuple[float, float]:
        """Sum of p and of p^2, over all rows."""
        return float(self.squares.sum()), float(self.squares @ self.squares)

    @cached_property
    def standardised(self) -> Layer:
        """Every live unit with sum of squares 1, constant ones zero: correlations are then products."""
        return Scaled(self)

    @cached_property
    def core(self) -> Layer:
        """Itself, or where it is wide the same X X^T in at most n columns: its principal coordinates."""
        if not self.wide:
            return self
        rows = self.rows
        values, vectors = np.linalg.eigh(rows @ rows.T)
        kept = _above(values, self.count)
        coordinates = vectors[:, kept] * np.sqrt(values[kept])
        return Layer(self.name, coordinates, np.zeros(coordinates.shape[1]), positions=self.positions)

    @cached_property
    def principal(self) -> tuple[Floats, Floats]:
        """Eigenvalues of S, largest first, and its eigenvectors as columns; those that are zero up to rounding are left out.

        Of the core.
        """
        values, vectors = np.linalg.eigh(self.core.scatter)
        kept = _above(values, max(self.count, len(values)))
        return values[kept][::-1], vectors[:, kept][:, ::-1]

    @cached_property
    def whitener(self) -> Floats:
        """W (d, rank) with W^T S W = 1, of the core. Units are standardised first, so that badly scaled ones cost no digits.

        Raises NumericError where no unit varies.
        """
        core = self.core
        self.check_live()
        flat, live = core.standardised, core.live
        assert isinstance(flat, Scaled)
        found = _whitening(flat.scatter if live.all() else flat.scatter[np.ix_(live, live)], self.count)
        whole = np.zeros((len(live), found.shape[1]))
        whole[live] = flat.factor[live][:, None] * found
        return whole

    def check_live(self) -> None:
        """Raise NumericError where no unit varies."""
        if not self.live.any():
            raise NumericError(self.name, "all units are constant")

    @cached_property
    def few(self) -> Indices:
        """Rows that measures of pairs of samples look at: all, or about FEW of a seeded choice of samples."""
        return expanded(self.few_samples, self.positions)

    @cached_property
    def few_samples(self) -> Indices:
        """The samples of `few`: the same for every layer with as many samples and positions."""
        most = max(FEW // self.positions, 2)
        if self.samples <= most:
            return np.arange(self.samples)
        return np.sort(np.random.default_rng(self.samples).permutation(self.samples)[:most])

    @property
    def seen(self) -> Floats:
        """The rows of `few` as they came, not centred."""
        return self.rows[self.few] + self.mean


class Scaled(Layer):
    """A layer with standardised units; X itself is not copied."""

    def __init__(self, base: Layer) -> None:
        super().__init__(base.name, base.rows, np.zeros(base.units), count=base.count, positions=base.positions)
        self.base = base
        self.factor: Floats = np.where(base.live, 1.0, 0.0) / np.sqrt(np.where(base.live, base.power, 1.0))

    @property
    def rows(self) -> Floats:
        """The standardised rows: a copy, made anew each time."""
        return self.base.rows * self.factor

    @cached_property
    def live(self) -> Bools:
        """Which units vary."""
        return self.base.live

    @cached_property
    def power(self) -> Floats:
        """One for every live unit."""
        return np.where(self.live, 1.0, 0.0)

    @cached_property
    def scatter(self) -> Floats:
        """The correlation matrix, zero for constant units."""
        return self.base.scatter * self.factor[:, None] * self.factor

    @cached_property
    def squares(self) -> Floats:
        """The squared norm of each standardised row held."""
        return np.concatenate([
            np.square(self.base.rows[i : i + BLOCK] * self.factor).sum(axis=1) for i in range(0, self.base.held, BLOCK)
        ])  # fmt: skip

    @cached_property
    def standardised(self) -> Layer:
        """Itself."""
        return self


def layer(name: str, values: Array, *, positions: int = 1, centre: bool = True, rounding: float | None = None) -> Layer:
    """A layer from values (rows, units) of any real type; they are copied, once.

    rounding: u of the type the values were kept in, that of their own by default; centre=False leaves the mean in, for
    measures that others define without centring.
    Raises UsageError for what is no matrix of at least two rows, NotFinite, NumericError.
    """
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise UsageError(
            name, f"activations must be numbers, samples by units; these are {values.dtype} of shape {values.shape}"
        )
    if len(values) < 2 or not values.shape[1]:
        raise UsageError(name, f"{_counted(len(values), 'sample')} of {_counted(values.shape[1], 'unit')}: nothing to compare",
                         "Measures look at how units vary over samples: give at least two, better many.")  # fmt: skip
    if rounding is None:
        rounding = rounding_of(values.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0, dtype=np.float64)
    if not np.isfinite(mean).all():
        check_finite(name, values, positions)
        raise NumericError(name, "values so large that their sum overflows")
    if not centre:
        mean = np.zeros(values.shape[1])
    return Layer(name, np.subtract(values, mean, dtype=np.float64), mean, positions=positions, rounding=rounding)


def rounding_of(dtype: np.dtype[Any]) -> float:
    """u of a type: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2 if dtype.kind == "f" else 2.0**-53


def check_finite(name: str, values: Array, positions: int = 1, first: int = 0) -> None:
    """Raise NotFinite where a value is NaN or infinite: how many, and where the first is. first: number of the first sample."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, unit = (int(i) for i in np.argwhere(bad)[0])
        beyond = "; float16 ends at 65504" if values.dtype == np.float16 and np.isinf(values[row, unit]) else ""
        raise NotFinite(
            name,
            f"{int(bad.sum())} of {bad.size} activations are NaN or infinite, the first at sample {first + row // positions},"
            f" unit {unit}{beyond}",
            "Leave such samples out on both sides, or look for where the network overflows.",
        )


def expanded(samples: Indices, positions: int) -> Indices:
    """The rows of samples: all their positions."""
    if positions == 1:
        return samples
    return (samples[:, None] * positions + np.arange(positions)).reshape(-1)


def in_places(rows: Floats, positions: int) -> Floats:
    """Rows summed over samples, position by position: (positions, d)."""
    return np.asarray(rows.reshape(-1, positions, rows.shape[1]).sum(axis=0))


def _whitening(scatter: Floats, count: int) -> Floats:
    """W (d, rank) with W^T S W = 1: by Cholesky's factor where S is far from singular, at a third of the cost, else by
    eigenvectors, without those that are zero up to rounding.
    """
    from scipy.linalg import lapack

    factor, fault = lapack.dpotrf(scatter, lower=0, clean=1)
    if not fault:
        condition, _ = lapack.dpocon(factor, np.abs(scatter).sum(axis=0).max())
        if condition > _SAFE:
            return np.asarray(lapack.dtrtri(factor)[0])
    values, vectors = np.linalg.eigh(scatter)
    kept = _above(values, max(count, len(values)))
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _above(values: Floats, size: int) -> Bools:
    """Which eigenvalues of a scatter matrix are more than rounding, as numpy's matrix_rank tells it."""
    return np.asarray(values > values.max(initial=0.0) * size * np.finfo(np.float64).eps)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"
