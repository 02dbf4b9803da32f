"""The permutation null: what a measure gives when samples are paired at random, and where its value stands to that.

Under the null that the two sides have nothing to do with each other, every pairing of the samples is as likely as the
one at hand, so that p = (1 + number of permutations at least as alike) / (1 + permutations) is exact: uniform under the
null whatever the data. Samples are permuted whole, all their positions together. The same permutations serve every
measure and every pair of layers, so that figures can be compared, and one product X^T P Y serves all measures of a pair.

Source: Pitman, "Significance tests which may be applied to samples from any populations", 1937; (1 + k)/(1 + N): Phipson
and Smyth, "Permutation p-values should never be zero", 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from canon.errors import NumericError
from canon.similarity.layer import Floats, Indices
from canon.similarity.measures import Measure
from canon.similarity.pair import Pair

PERMUTATIONS = 99
"""Unless told otherwise: p is then a multiple of one in a hundred."""
FEWEST = 19
"""What is left of them where layers are wide, unless told otherwise: p may still reach 0.05."""
BUDGET = 2e12
"""Multiplications and additions that the permutations of all pairs may take before they become fewer."""
_ROUNDING = 1e-8
"""Of a value: a permutation that comes this near has reached it."""


@dataclass(frozen=True)
class Figure:
    """A measure's value, and what chance makes of it.

    value: None where it has none, and then why says so; chance: mean and sd over permutations; z: how many sd the value is
    more alike than chance; p: see above; calibrated: 0 at the mean of chance, 1 at the best there is. Each is None where it
    does not exist: no z without spread, nothing calibrated where chance is at the best already.
    permutations: how many; rows: how many the value comes from; reference: its values on other networks, by path.
    """

    value: float | None
    chance: Mapping[str, float] | None = None
    z: float | None = None
    p: float | None = None
    calibrated: float | None = None
    permutations: int = 0
    rows: int = 0
    why: str = ""
    reference: Mapping[str, float | None] = field(default_factory=dict)


def orders(samples: int, count: int, seed: int) -> Iterator[Indices]:
    """`count` seeded permutations of the samples."""
    rng = np.random.default_rng([seed, samples])
    for _ in range(count):
        yield rng.permutation(samples)


def figures(
    pair: Pair,
    measures: Sequence[Measure],
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    watch: Callable[[Pair], None] = lambda pair: None,
) -> dict[str, Figure]:
    """Every measure of a pair with its null. watch: sees each permuted pair too, for nulls of its own."""
    found: dict[str, Figure] = {}
    values: dict[str, float] = {}
    for measure in measures:
        try:
            values[measure.name] = measure.of(pair)
        except NumericError as error:
            found[measure.name] = Figure(None, why=f"undefined: {error.what}")
    defined = [measure for measure in measures if measure.name in values]
    draws: dict[str, list[float]] = {measure.name: [] for measure in defined}
    for k, order in enumerate(orders(pair.a.samples, permutations, seed)):
        tell(f"{pair.a.name} and {pair.b.name}: permutation {k + 1} of {permutations}")
        other = pair.permuted(order)
        watch(other)
        for measure in defined:
            draws[measure.name].append(measure.of(other))
        del other  # or its matrices stay until the next one has made its own
    for measure in defined:
        rows = len(pair.a.few) if measure.work == "samples" else pair.a.held if measure.outputs else pair.a.count
        found[measure.name] = _figure(measure, values[measure.name], np.array(draws[measure.name]), rows)
    return {measure.name: found[measure.name] for measure in measures}


def _figure(measure: Measure, value: float, null: Floats, rows: int) -> Figure:
    if not len(null):
        return Figure(value, rows=rows)
    sign = -1.0 if measure.distance else 1.0
    mean = float(null.mean())
    sd = float(null.std(ddof=1)) if len(null) > 1 else 0.0
    size = max(abs(value), abs(mean), 1e-300)
    reached = int((sign * null >= sign * value - _ROUNDING * size).sum())
    flat = sd <= _ROUNDING * size
    room = measure.best - mean
    return Figure(
        value,
        {"mean": mean, "sd": sd},
        None if flat else sign * (value - mean) / sd,
        (1 + reached) / (1 + len(null)),
        None if abs(room) <= 10 * _ROUNDING * max(abs(measure.best), abs(mean)) else (value - mean) / room,
        len(null),
        rows,
    )


def affordable(sizes: Sequence[tuple[int, int, int]], measures: Sequence[Measure], budget: float = BUDGET) -> int:
    """How many permutations to draw for pairs of these sizes (rows held, units, units)."""
    once = sum(_cost(n, d1, d2, measures) for n, d1, d2 in sizes)
    return min(max(math.floor(budget / max(once, 1.0)), FEWEST), PERMUTATIONS)


def _cost(n: int, d1: int, d2: int, measures: Sequence[Measure]) -> float:
    """Operations of one permutation; those of eigenvalues and of assignments weighed by how slowly they run."""
    small, large = sorted((min(d1, n), min(d2, n)))
    each = {
        "light": 2.0 * d1 * d2,
        "assign": 30.0 * d1 * d2,
        "spectral": 8.0 * small * small * large + 12.0 * small**3,
        "samples": 200.0 * min(n, 1024) ** 2,
    }
    product = 2.0 * min(n, max(d1, d2) * 64) * d1 * d2
    return product + sum(each[m.work] for m in measures)
