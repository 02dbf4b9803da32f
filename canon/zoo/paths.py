"""The path kernel: sums over all paths from inputs to outputs of the product of what lies on a path, to a power.

    S_p = sum over paths of (o * w_d * ... * w_1 * x)^p

x, o: seeded numbers from 1/2 to 3/2 at the inputs and outputs, which have labels; biases are paths of their own. Every
relabelling permutes the paths, every scale and sign cancels between the two weights that meet in a unit: S_2, S_4 and the
signed S_1, S_3 are invariant under the whole group, with no sort, no gauge and no tie in them.

How far a copy's figure can be: a relative change of d in every entry moves log(S_p) / p by at most L d, L the affine maps on
the way. What was summed into an entry is followed through a second row, computed from the largest the entry can be (by its
own magnitude and by that of a copy, which may be as much again). Of the
signed sums, |S_1| is at most the sum of sizes and |S_3| at most sqrt(S_2 S_4), by Cauchy and Schwarz: they are told as shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from canon.symmetry import Floats
from canon.zoo.kernels import ALL, EVEN, SIZES, Flow, power
from canon.zoo.steps import Flows, Inputs, Step, seeded

PROBES = 2
"""Output vectors o; each gives a figure for every power."""
SILENT = -1e6
"""Logarithm of a sum without any path."""
_SLACK = 2e-12
"""What float64 itself may add."""


@dataclass(frozen=True)
class Paths:
    """The path kernel of one graph, ready to run on the tensors of any file that has it.

    steps: (value, how its flow is made) in order; depth: affine maps on the way; keys: the powers that are invariant; last:
    which step is the last to read a value, which is let go then; sums: whether the steps themselves sum into entries.
    """

    steps: tuple[tuple[str, Step], ...]
    outputs: tuple[str, ...]
    depth: int
    keys: tuple[int, ...] = ALL
    last: Mapping[str, int] = field(default_factory=dict)
    sums: bool = False

    def run(self, given: Inputs) -> tuple[Floats, Floats]:
        """Figures and tolerances, (files, count). In order, for each output vector o: log S_2 / 2, log S_4 / 4; then, where
        signed powers are invariant, log of the sum of sizes, S_1 over it, and S_3 / sqrt(S_2 S_4).

        Two figures differ by at most the larger of their tolerances where the files are copies. NaN: out of float64's range.
        """
        flows: Flows = {}
        given.keys, given.rows = self.keys, 2 if self.sums or given.magnitudes else 1
        with np.errstate(all="ignore"):
            for i, (value, step) in enumerate(self.steps):
                flows[value] = step(flows, given)
                for name in [v for v in flows if self.last.get(v, len(self.steps)) <= i]:
                    del flows[name]
            ends = [{key: x.reshape(*x.shape[:2], -1) for key, x in flows[v].items()} for v in self.outputs]
            return self._figures({key: np.concatenate([e[key] for e in ends], axis=2) for key in self.keys}, given.change)

    def only(self, keys: tuple[int, ...]) -> Paths:
        """The same with fewer powers."""
        return replace(self, keys=tuple(k for k in self.keys if k in keys))

    def _figures(self, flow: Flow, change: Floats) -> tuple[Floats, Floats]:
        spread = self.depth * change + _SLACK
        moved = np.expm1(spread)
        values: list[Floats] = []
        room: list[Floats] = []
        for o in seeded((PROBES, flow[2].shape[2]), "out"):
            sums = {key: x @ power(o, key) for key, x in flow.items()}
            s = {key: x[:, 0] for key, x in sums.items()}
            more = {key: x[:, -1] - x[:, 0] for key, x in sums.items()}  # what was summed into entries may add
            for key in EVEN:
                values.append(_log(s[key]) / key)
                room.append(spread + _gap(more[key], s[key]) / key)
            if SIZES not in s:
                continue
            root = np.sqrt(s[2] * s[4])
            values += [_log(s[SIZES]), _share(s[1], s[SIZES]), _share(s[3], root)]
            room += [
                spread + _gap(more[SIZES], s[SIZES]),
                2 * (moved + _share(more[SIZES], s[SIZES])),
                6 * moved + 1.1 * _share(np.sqrt(more[2] * more[4]), root) + _share(more[2], s[2]) + _share(more[4], s[4]),
            ]
        return np.stack(values, axis=1), np.stack(room, axis=1)


def _log(x: Floats) -> Floats:
    return np.where(x == 0, SILENT, np.log(np.where(x == 0, 1.0, x)))


def _gap(more: Floats, whole: Floats) -> Floats:
    """How far log(whole) can be, up or down, if the whole can be off by so much."""
    share = _share(more, whole)
    return np.where(share < 1, -np.log1p(-np.minimum(share, 1.0)), np.inf)


def _share(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole != 0)
