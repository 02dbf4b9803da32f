"""Units that do nothing, or always the same: dead units become the zero unit, constant ones move into the next biases.

Nothing is deleted: the units stay in place with all their parameters zero. Rules, each exact:
zero in (nothing comes in, and zero goes out), constant (nothing comes in), unread (nothing goes out), never active (a relu
that reads values which are never negative through weights and a bias that are never positive).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from canon.fold.constants import absorb_constant
from canon.fold.work import Step, Work
from canon.network import Network
from canon.ops import Op, kind_of
from canon.symmetry import Symmetry, Use, derive, leaves, places

Bools = NDArray[np.bool_]
Side = tuple[str, int]
"""An axis of a tensor: its name and dimension."""

_POINTWISE = (
    "relu", "leaky_relu", "relu6", "tanh", "softsign", "sigmoid", "hard_sigmoid", "elu", "selu", "gelu", "silu", "softplus",
)  # fmt: skip
_CARRIES = ("max_pool", "avg_pool", "global_max_pool", "global_avg_pool", "flatten")
_TOPS = {"relu": np.inf, "softplus": np.inf, "sigmoid": 1.0, "hard_sigmoid": 1.0, "softmax": 1.0}
"""The largest values of functions that are never negative."""


def fold_units(work: Work) -> None:
    """Zero out what does nothing, until nothing more turns up."""
    for _ in range(50):
        network = work.network()
        symmetry = derive(network)
        changed = [name for name in symmetry.spaces if _Space(work, network, symmetry, name).fold()]
        if not changed:
            return


def dead_units(network: Network, symmetry: Symmetry) -> dict[str, Bools]:
    """Per space, the units all of whose parameters are zero."""
    out: dict[str, Bools] = {}
    for name, space in symmetry.spaces.items():
        sides = [s for role in ("in", "out") for s in sides_of(symmetry, name, role)]
        known = bool(sides) and space.over is None
        out[name] = ~_any(network, symmetry, sides, name) if known else np.zeros(space.size, bool)
    return out


def sides_of(symmetry: Symmetry, space: str, role: str) -> list[Side]:
    """The tensor axes that carry a space in a role."""
    return [
        (tensor, dim)
        for tensor, axes in symmetry.axes.items()
        for dim, side in enumerate(axes)
        if side.role == role and any(isinstance(leaf, Use) and leaf.space == space for leaf in leaves(side.axis))
    ]


def _any(network: Network, symmetry: Symmetry, sides: Iterable[Side], space: str) -> Bools:
    """Which units of the space have a nonzero entry on any of these axes."""
    out = np.zeros(symmetry.spaces[space].size, bool)
    for tensor, dim in sides:
        t = network.tensors[tensor]
        hit: Bools = np.asarray(t.any(axis=tuple(i for i in range(t.ndim) if i != dim)))
        for use, at in places(symmetry.axes[tensor][dim].axis):
            if use.space == space:
                out |= hit[at].any(axis=0)
    return out


class _Space:
    """One space in one round of folding."""

    def __init__(self, work: Work, network: Network, symmetry: Symmetry, name: str) -> None:
        self.work, self.network, self.symmetry, self.name = work, network, symmetry, name
        self.space = symmetry.spaces[name]

    def fold(self) -> bool:
        """Zero out dead and constant units; whether anything changed."""
        inside = {s.over for s in self.symmetry.spaces.values()} | {b.over for b in self.symmetry.blocks.values()}
        tied = self.space.over is not None or self.name in inside
        into = sides_of(self.symmetry, self.name, "in")
        read = sides_of(self.symmetry, self.name, "out")
        if tied or self.space.linear or not into or not read:
            return False
        gains = [s for s in into if self.network.tensors[s[0]].ndim > 1 or self._is_scale(s[0])]
        gain = _any(self.network, self.symmetry, gains, self.name)
        bias = _any(self.network, self.symmetry, [s for s in into if s not in gains], self.name)
        out = _any(self.network, self.symmetry, read, self.name)
        none = np.zeros(self.space.size, bool)
        around = self._around()
        unread = none if any(kind_of(op).mixes(op) for op in around) else ~out
        silent = ~gain & ~bias if all(kind_of(op).keeps_zero(op) for op in around) else none
        never = self._never_active()
        changed = False
        for why, mask in (("unread", unread), ("zero in", silent), ("never active", never)):
            fresh = mask & (gain | bias | out)
            if fresh.any():
                self._clear([*into, *read, *sides_of(self.symmetry, self.name, "label")], fresh)
                self.work.record.append(Step("dead", self.name, why, tuple(int(i) for i in np.flatnonzero(fresh))))
                gain, bias, out, changed = gain & ~fresh, bias & ~fresh, out & ~fresh, True
        constant = ~gain & out
        if constant.any() and self._move_constants(constant):
            self._clear([*into, *read], constant)
            self.work.record.append(
                Step("constant", self.name, "into the next biases", tuple(int(i) for i in np.flatnonzero(constant)))
            )
            changed = True
        return changed

    def _is_scale(self, tensor: str) -> bool:
        return any(role == "scale" for _, role in self.network.uses[tensor])

    def _around(self) -> list[Op]:
        """The ops that read or write a value that carries the space."""
        carrying = {
            v
            for v, sides in self.symmetry.values.items()
            if any(isinstance(leaf, Use) and leaf.space == self.name for side in sides for leaf in leaves(side.axis))
        }
        return [op for op in self.network.ops if not carrying.isdisjoint((*op.inputs, op.output))]

    def _only_writer(self) -> Op | None:
        """The one dense layer or convolution that writes the space, if its whole output axis is this space."""
        writers = [op for op in self.network.ops if op.name in self.space.writers and op.params]
        if len(writers) != 1 or writers[0].kind not in ("dense", "conv") or not self.work.unshared(writers[0]):
            return None
        axis = self.symmetry.values[writers[0].output][self.work.channels(writers[0])].axis
        alone = len({t for t, _ in sides_of(self.symmetry, self.name, "in")} - set(writers[0].params.values())) == 0
        return writers[0] if alone and isinstance(axis, Use) else None

    def _never_active(self) -> Bools:
        none = np.zeros(self.space.size, bool)
        op = self._only_writer()
        reader = self.work.only_reader(op.output) if op is not None else None
        if op is None or reader is None or reader.kind != "relu":
            return none
        top = self._top(op.inputs[0])
        if top is None:
            return none
        kernel = self.network.tensors[op.params["kernel"]]
        bias = self.network.tensors[op.params["bias"]] if "bias" in op.params else np.zeros(len(kernel))
        if top == np.inf:
            if not (kernel.reshape(len(kernel), -1)[:, 0] <= 0).any():
                return none
            return np.asarray((kernel <= 0).all(axis=tuple(range(1, kernel.ndim))) & (bias <= 0))
        # the largest value over inputs from 0 to top: the same for every flip of a unit between 0 and top
        most = top * np.maximum(np.asarray(kernel, np.float64), 0).reshape(len(kernel), -1).sum(axis=1) + bias
        return np.asarray(most <= 0)

    def _top(self, value: str) -> float | None:
        """The largest that a value which is never negative can be (inf where there is no bound); None if it can be negative."""
        op = self.network.writer.get(value)
        if op is None:
            return None
        if op.kind in (*_CARRIES, "concat", "zero_padding", "reshape"):
            tops = {self._top(v) for v in op.inputs}
            return tops.pop() if len(tops) == 1 else None
        if op.kind == "relu6":
            return float(op.attrs.get("cap", 6.0))
        return _TOPS.get(op.kind)

    def _move_constants(self, units: Bools) -> bool:
        """Add what constant units hand on to the biases of their readers; False where zeros are padded in between."""
        op = self._only_writer()
        if op is None or None in self.network.shapes[op.output]:
            return False
        shape = tuple(n or 1 for n in self.network.shapes[op.output])
        at = self.work.channels(op)
        bias = self.work.get(op, "bias")
        start = np.zeros(self.space.size) if bias is None else np.where(units, bias[0], 0.0)
        sizes = np.zeros(self.space.size) if bias is None else np.where(units, bias[1], 0.0)
        ways = self._ways(op.output, [])
        if ways is None:
            return False
        spread = [-1 if i == at else 1 for i in range(len(shape))]
        for reader, way in ways:
            x, mask, size = (np.broadcast_to(np.asarray(v, float).reshape(spread), shape)[None] for v in (start, units, sizes))
            for step in way:
                size = kind_of(step).magnitude(step, [size], {})
                x = kind_of(step).forward(step, [x], {})
                mask = kind_of(step).forward(step, [mask], {}) if step.kind in _CARRIES else mask
            absorb_constant(self.work, reader, x * (mask > 0), size * (mask > 0))
        return True

    def _ways(self, value: str, way: list[Op]) -> list[tuple[Op, list[Op]]] | None:
        if value in self.work.outputs:
            return None
        out: list[tuple[Op, list[Op]]] = []
        for reader in self.work.readers(value):
            if self.work.takes_constants(reader):
                out.append((reader, way))
            elif reader.kind in (*_POINTWISE, *_CARRIES):
                further = self._ways(reader.output, [*way, reader])
                if further is None:
                    return None
                out += further
            else:
                return None
        return out

    def _clear(self, sides: list[Side], units: Bools) -> None:
        for tensor, dim in sides:
            hit = np.zeros(self.network.tensors[tensor].shape[dim], bool)
            for use, at in places(self.symmetry.axes[tensor][dim].axis):
                if use.space == self.name:
                    hit[at[:, units]] = True
            for store in (self.work.tensors, self.work.magnitudes):
                if tensor in store:
                    t = store[tensor].copy()
                    t[(slice(None),) * dim + (hit,)] = 0
                    store[tensor] = t
