"""How each operation hands paths on: one class a kind, each a function of the flows so far and the tensors of files alike.

A flow is (files, rows, *axes) for each power. Activations are the identity; positions that a window slides over count as
one, and the axes they were averaged over have size 1. Of an activation with two slopes a unit both count: 1 + a^p. An affine
map is divided by a number that depends on its shape alone, so that deep networks stay within float64's range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from canon.ops import Op, kind_of
from canon.ops.base import Array
from canon.ops.geometry import channel_axis
from canon.ops.norm import folded_gain
from canon.symmetry import Floats
from canon.zoo.kernels import ALL, EVEN, SIGNED, Flow, contract, power

Bools = NDArray[np.bool_]

_SEED = 20
_GLANCE = 12
"""Weights of a unit that are looked at before all are."""


@dataclass
class Inputs:
    """The tensors of files of one graph, stacked: (files, *shape) each; magnitudes: of those into which something was summed;
    change: (files,), the relative change of an entry that still counts as a copy; keys, rows: what is computed.

    suspect: (files,), set where a step met a unit that folding would have treated apart.
    """

    tensors: Mapping[str, Array]
    magnitudes: Mapping[str, Array]
    change: Floats
    keys: tuple[int, ...] = ALL
    rows: int = 1
    suspect: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.suspect = np.zeros(len(self.change), bool)

    def __len__(self) -> int:
        return len(self.change)

    def double(self, name: str) -> Array:
        """A tensor in float64."""
        return np.asarray(self.tensors[name], np.float64)

    def largest(self, t: Array, magnitude: Array) -> Array:
        """The largest that entries can be: twice the change, for a copy has magnitudes of its own."""
        return np.asarray(np.abs(t) + 2 * self.change.reshape(-1, *[1] * (t.ndim - 1)) * magnitude)

    def raised(self, t: Array, magnitude: Array | None, key: int) -> Array:
        """A tensor to a power, (files, rows, *shape)."""
        out = [power(t, key)]
        if self.rows > 1 and key not in SIGNED:
            out.append(out[0] if magnitude is None else power(self.largest(t, magnitude), key))
        return np.stack(out, axis=1)


Flows = dict[str, Flow]
Step = Callable[[Flows, Inputs], Flow]


@lru_cache(maxsize=256)
def seeded(shape: tuple[int, ...], what: str) -> Array:
    """Numbers from 1/2 to 3/2, the same for everybody who asks for the same; not to be written to."""
    numbers = 0.5 + np.random.default_rng([_SEED, *shape, *what.encode()]).random(shape)
    numbers.flags.writeable = False
    return numbers


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Averaged over some axes of the value, which stay with size 1."""
    at = tuple(i + 2 for i in axes if x.shape[i + 2] > 1)
    return x.mean(axis=at, keepdims=True) if at else x


def _along(t: Array, axis: int, ndim: int) -> Array:
    """(files, rows, units) shaped to meet a flow along one axis of its value."""
    shape = [*t.shape[:2], *[1] * (ndim - 2)]
    shape[axis + 2 if axis >= 0 else axis] = -1
    return t.reshape(shape)


@dataclass(frozen=True)
class Start:
    """An input: a number for each of its entries."""

    shape: tuple[int, ...]
    name: str

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """The probe to each power."""
        x = seeded(self.shape, self.name)
        rows = {key: 1 if key in SIGNED else given.rows for key in given.keys}
        return {key: np.broadcast_to(power(x, key), (len(given), rows[key], *self.shape)) for key in given.keys}


class _Weighted:
    """What affine steps share: the batch norm behind, and biases.

    norm: the batch norm that alone reads the op, where it was not folded; centred: whether a shift common to all units is
    taken out.
    """

    op: Op
    norm: Op | None
    centred: bool

    def _gains(self, given: Inputs) -> tuple[Array, Array, Array] | None:
        """Gain, shift and the magnitude of the shift, (files, units) each."""
        if self.norm is None:
            return None
        params = {role: given.double(t) for role, t in self.norm.params.items()}
        gain, beta = folded_gain(self.norm, params)
        moved = gain * params["mean"]
        return gain, beta - moved, np.abs(beta) + np.abs(moved)

    def _bias(self, given: Inputs, gains: tuple[Array, Array, Array] | None) -> tuple[Array, Array | None] | None:
        name = self.op.params.get("bias")
        if name is None and gains is None:
            return None
        b = given.double(name) if name is not None else np.zeros(())
        m = given.magnitudes.get(name) if name is not None else None
        if gains is not None:
            gain, shift, size = gains
            b, m = b * gain + shift, np.abs(b * gain) + size
        if self.centred:
            m = np.abs(b) if m is None else m
            b, m = b - b.mean(axis=1, keepdims=True), m + m.mean(axis=1, keepdims=True)
        return b, m

    def _finish(self, flow: Flow, axis: int, given: Inputs) -> Flow:
        """Gain and bias along an axis of the value."""
        gains = self._gains(given)
        bias = self._bias(given, gains)
        for key, y in flow.items():
            if gains is not None:
                y = y * _along(power(gains[0], key)[:, None], axis, y.ndim)
            if bias is not None:
                y = y + _along(given.raised(*bias, key), axis, y.ndim)
            flow[key] = y
        return flow


@dataclass(frozen=True)
class Affine(_Weighted):
    """Dense and convolution. averaged: axes of what comes in that paths are averaged over."""

    op: Op
    averaged: tuple[int, ...]
    norm: Op | None = None
    centred: bool = False

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """Contract over what comes in and over the window."""
        kernel, upper = self._kernel(given)
        own = -1 if self.op.kind == "dense" else channel_axis(self.op)
        at = own if own < 0 else own + 2
        came = {key: np.moveaxis(_mean(x, self.averaged), at, -1) for key, x in flows[self.op.inputs[0]].items()}
        flat = {key: x.reshape(*x.shape[:2], prod(x.shape[2:-1]), x.shape[-1]) for key, x in came.items()}
        met = contract(kernel, flat, upper)
        if not given.magnitudes:  # not folded: it would look at these units one by one
            given.suspect |= (met[2][:, 0] == 0).any(axis=(1, 2)) | self._never_positive(kernel)
        fan = float(prod(kernel.shape[2:]))
        out: Flow = {}
        for key, y in met.items():
            y = y.reshape(*came[key].shape[:-1], -1) * fan ** (0.5 * abs(key) - 1)
            out[key] = np.moveaxis(y, -1, at)
        return self._finish(out, own, given)

    def _never_positive(self, kernel: Array) -> Bools:
        """For each file, whether some unit has no positive weight (no negative one, where a norm may turn its sign)."""
        flat = kernel.reshape(*kernel.shape[:2], -1) if kernel.ndim > 3 else kernel
        out = np.zeros(len(kernel), bool)
        for sign in (1, -1) if self.norm is not None else (1,):
            some = (sign * flat[:, :, :_GLANCE] <= 0).all(axis=2)
            for file, unit in np.argwhere(some):
                out[file] |= bool((sign * flat[file, unit] <= 0).all())
        return out

    def _kernel(self, given: Inputs) -> tuple[Array, Array | None]:
        name = self.op.params["kernel"]
        t, m = given.tensors[name], given.magnitudes.get(name)
        if self.centred:
            t = np.asarray(t, np.float64)
            mean, size = t.mean(axis=1, keepdims=True), np.abs(t).mean(axis=1, keepdims=True)
            t, m = t - mean, np.abs(t) + size
        return t, given.largest(t, m) if m is not None and given.rows > 1 else None


@dataclass(frozen=True)
class Depthwise(_Weighted):
    """Windows of single channels."""

    op: Op
    averaged: tuple[int, ...]
    norm: Op | None = None
    centred: bool = False

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """Each channel times the sum over its window."""
        name = self.op.params["kernel"]
        kernel, m = given.double(name), given.magnitudes.get(name)
        own, fan = channel_axis(self.op), float(prod(kernel.shape[3:]))
        out: Flow = {}
        for key, x in flows[self.op.inputs[0]].items():
            x = _mean(x, self.averaged)
            at = own if own < 0 else own + 2
            x = np.repeat(x, kernel.shape[1] // x.shape[at], axis=at)
            w = given.raised(kernel, m, key)
            w = w.reshape(*w.shape[:3], -1).sum(axis=-1)
            if key == 2:
                given.suspect |= (w[:, 0] == 0).any(axis=1)
            out[key] = x * _along(w, own, x.ndim) * fan ** (0.5 * abs(key) - 1)
        return self._finish(out, own, given)


@dataclass(frozen=True)
class Along:
    """A gain and a shift a unit: scale and shift, or those of a norm."""

    op: Op
    gain: str
    shift: str
    axis: int

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """Each unit times its gain, plus its shift."""
        out: Flow = {}
        for key, x in flows[self.op.inputs[0]].items():
            for role in (self.gain, self.shift):
                name = self.op.params.get(role)
                if name is not None:
                    t = _along(given.raised(given.double(name), given.magnitudes.get(name), key), self.axis, x.ndim)
                    x = x * t if role == self.gain else x + t
            out[key] = x
        return out


@dataclass(frozen=True)
class Embedding:
    """A table of tokens: each is a number of its own times its row."""

    op: Op

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """Sum over the tokens."""
        table = given.tensors[self.op.params["table"]]
        tokens = seeded((table.shape[1],), "tokens")
        lead = [1] * (next(iter(flows[self.op.inputs[0]].values())).ndim - 2)
        start = {key: np.broadcast_to(power(tokens, key), (len(given), x.shape[1], 1, len(tokens)))
                 for key, x in flows[self.op.inputs[0]].items()}  # fmt: skip
        met = contract(table.swapaxes(1, 2), start)
        return {key: y.reshape(*y.shape[:2], *lead, -1) / len(tokens) for key, y in met.items()}


@dataclass(frozen=True)
class Slopes:
    """PReLU: both slopes of each unit, 1 and a. A flip of the unit swaps them, up to the factor that its readers take."""

    op: Op

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """Each entry times 1 + a^p."""
        a = given.double(self.op.params["alpha"])
        return {key: x * (1 + given.raised(a, None, key)) for key, x in flows[self.op.inputs[0]].items()}


@dataclass(frozen=True)
class Joined:
    """Several values, entry by entry: every kind of sum or extremum is the sum, a product the product."""

    op: Op

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """The sum or product of the flows; values without an axis meet all entries along it."""
        came = [flows[v] for v in self.op.inputs]
        rank = max(x.ndim for flow in came for x in flow.values())
        join = np.multiply if self.op.kind == "multiply" else np.add
        wide = [{k: x.reshape(*x.shape[:2], *[1] * (rank - x.ndim), *x.shape[2:]) for k, x in flow.items()} for flow in came]
        return {key: reduce(join, (flow[key] for flow in wide)) for key in given.keys}


@dataclass(frozen=True)
class Pooled:
    """What looks at positions alone: they count as one already, or do now. drops: whether their axes go."""

    op: Op
    averaged: tuple[int, ...]
    drops: bool

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """The mean over positions."""
        out = {key: _mean(x, self.averaged) for key, x in flows[self.op.inputs[0]].items()}
        if self.drops:
            out = {key: x.reshape(*x.shape[:2], -1) for key, x in out.items()}
        return out


@dataclass(frozen=True)
class Carried:
    """What carries entries elsewhere and computes nothing: run as it is. shapes: of what comes in, where it matters in full;
    averaged: axes that paths are averaged over before.
    """

    op: Op
    shapes: tuple[tuple[int, ...], ...] = ()
    averaged: tuple[int, ...] = ()

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """The operation's own forward pass, files and rows being its batch."""
        out: Flow = {}
        for key in given.keys:
            came = [_mean(flows[v][key], self.averaged) for v in self.op.inputs]
            lead = came[0].shape[:2]
            if self.shapes:
                came = [np.broadcast_to(x, (*lead, *s)) for x, s in zip(came, self.shapes, strict=True)]
            y = kind_of(self.op).forward(self.op, [x.reshape(-1, *x.shape[2:]) for x in came], {})
            out[key] = y.reshape(*lead, *y.shape[1:])
        return out


@dataclass(frozen=True)
class Identity:
    """An activation, or whatever else hands labels, scales and signs on as they come."""

    op: Op

    def __call__(self, flows: Flows, given: Inputs) -> Flow:
        """What came in."""
        return flows[self.op.inputs[0]]


__all__ = ["ALL", "EVEN", "Affine", "Along", "Carried", "Depthwise", "Embedding", "Flows", "Identity", "Inputs", "Joined",
           "Pooled", "Slopes", "Start", "Step", "seeded"]  # fmt: skip
