"""Slow, obvious versions of what canon does fast: a forward pass by loops, and the disguises of THEORY by hand.

Nothing here asks canon for more than its types: every rule is written down again, in the way of a textbook, so that a
mistake in canon's equations cannot hide in its tests. A disguise returns new tensors; which unit went where is in `moved`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np

from canon.network import Network
from canon.ops import Op
from canon.symmetry import Axis, Concat, Interleaved, Product, Use

Array = np.ndarray


def uses(axis: Axis) -> set[str]:
    """The spaces along an axis."""
    if isinstance(axis, Use):
        return {axis.space}
    return {s for p in axis.parts for s in uses(p)} if isinstance(axis, Concat | Interleaved | Product) else set()


# The forward pass


def run(network: Network, inputs: Mapping[str, Array], absolute: bool = False) -> dict[str, Array]:
    """All values, one sample after the other, in float64.

    absolute: on absolute values of weights and inputs, a bound on everything that is summed (all activations used here
    are bounded by 2 |z| + 4).
    """
    values: dict[str, list[Array]] = {
        v: [np.abs(s) if absolute else np.asarray(s, float) for s in x] for v, x in inputs.items()
    }
    for op in network.ops:
        params = {r: np.asarray(network.tensors[t], np.float64) for r, t in op.params.items()}
        if absolute:
            params = {r: p if r == "variance" else np.abs(p) for r, p in params.items()}
        samples = zip(*(values[v] for v in op.inputs), strict=True)
        values[op.output] = [_one(op, xs, params, absolute) for xs in samples]
    return {v: np.stack(x) for v, x in values.items()}


def _one(op: Op, xs: tuple[Array, ...], p: Mapping[str, Array], absolute: bool) -> Array:
    """One operation on one sample."""
    x = xs[0]
    if op.kind in SCALARS:
        return 2 * x + 4 if absolute else np.vectorize(SCALARS[op.kind](op), otypes=[float])(x)
    if op.kind == "prelu":
        alpha = np.broadcast_to(p["alpha"], x.shape)
        return x * np.maximum(alpha, 1) if absolute else np.where(x > 0, x, alpha * x)
    if op.kind == "softmax":
        axis = int(op.attrs.get("axis", -1))
        if absolute:
            return 1 + x + 0 * x.max(axis=axis, keepdims=True)
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)
    if op.kind in ("linear", "dropout"):
        return x
    if op.kind == "dense":
        y = np.einsum("...i,oi->...o", x, p["kernel"])
        return y + p.get("bias", 0.0)
    if op.kind == "batch_norm":
        return _batch_norm(op, x, p, absolute)
    if op.kind == "scale_shift":
        shape = [-1 if i == int(op.attrs.get("axis", -1)) % x.ndim else 1 for i in range(x.ndim)]
        return x * p["scale"].reshape(shape) + p["shift"].reshape(shape)
    if op.kind in ("add", "multiply"):
        y = xs[0]
        for other in xs[1:]:
            y = y + other if op.kind == "add" else y * other
        return y
    if op.kind == "concat":
        return np.concatenate(xs, axis=int(op.attrs["axis"]))
    if op.kind == "reshape":
        return x.reshape(op.attrs["shape"])
    first = op.attrs.get("channels", "last") == "first"
    if op.kind == "flatten":
        return (np.moveaxis(x, 0, -1) if first and x.ndim > 1 else x).ravel()
    x = np.moveaxis(x, 0, -1) if first else x
    y = _spatial(op, x, p, absolute)
    return np.moveaxis(y, -1, 0) if first and y.ndim > 1 else y


def _batch_norm(op: Op, x: Array, p: Mapping[str, Array], absolute: bool) -> Array:
    axis = int(op.attrs["axis"]) % x.ndim
    out = np.empty_like(x)
    for c in range(x.shape[axis]):
        at = (slice(None),) * axis + (c,)
        centred = x[at] + p["mean"][c] if absolute else x[at] - p["mean"][c]
        gamma = p["gamma"][c] if "gamma" in p else 1.0
        beta = p["beta"][c] if "beta" in p else 0.0
        out[at] = gamma * centred / math.sqrt(p["variance"][c] + op.attrs["eps"]) + beta
    return out


def _spatial(op: Op, x: Array, p: Mapping[str, Array], absolute: bool) -> Array:
    """Operations over positions; x is (*sizes, channels)."""
    if op.kind == "zero_padding":
        return np.pad(x, [*[tuple(q) for q in op.attrs["padding"]], (0, 0)])
    if op.kind.startswith("global"):
        flat = x.reshape(-1, x.shape[-1])
        y = flat.max(axis=0) if op.kind == "global_max_pool" else flat.mean(axis=0)
        return y.reshape(*[1] * (x.ndim - 1), -1) if op.attrs.get("keepdims") else y
    if op.kind in ("conv", "depthwise_conv"):
        k = p["kernel"].shape[2:]
        strides = op.attrs.get("strides") or [1] * len(k)
    else:
        k = tuple(op.attrs["pool"])
        strides = op.attrs.get("strides") or k
    dilation = op.attrs.get("dilation") or [1] * len(k)
    starts, counts = zip(
        *(
            _starts(n, *w, op.attrs.get("padding", "valid"), i)
            for i, (n, *w) in enumerate(zip(x.shape, k, strides, dilation, strict=False))
        ),
        strict=True,
    )
    channels = len(p["kernel"]) if "kernel" in p else x.shape[-1]
    out = np.zeros((*counts, channels))
    for place in product(*map(range, counts)):
        cells = []  # (index into the window, the channels seen there), cells outside left out: zero, and no part of a pool
        for at in product(*map(range, k)):
            where = tuple(s + i * st + a * d for s, i, st, a, d in zip(starts, place, strides, at, dilation, strict=True))
            if all(0 <= w < n for w, n in zip(where, x.shape, strict=False)):
                cells.append((at, x[where]))
        out[place] = _window(op, cells, p, channels)
    return out


def _starts(n: int, k: int, stride: int, dilation: int, padding: Any, axis: int) -> tuple[int, int]:
    """Where the first window begins (below zero: in the padding), and how many windows there are."""
    reach = (k - 1) * dilation + 1
    if padding == "same":
        count = math.ceil(n / stride)
        return -(max((count - 1) * stride + reach - n, 0) // 2), count
    low, high = (reach - 1, 0) if padding == "causal" else (0, 0) if padding == "valid" else padding[axis]
    return -low, (n + low + high - reach) // stride + 1


def _window(op: Op, cells: list[tuple[tuple[int, ...], Array]], p: Mapping[str, Array], channels: int) -> Array:
    if op.kind == "max_pool":
        return np.max([v for _, v in cells], axis=0)
    if op.kind == "avg_pool":
        return np.mean([v for _, v in cells], axis=0)
    y = np.zeros(channels) + p.get("bias", 0.0)
    for at, v in cells:
        kernel = p["kernel"][(slice(None), slice(None), *at)]
        y += kernel @ v if op.kind == "conv" else kernel[:, 0] * np.repeat(v, channels // len(v))
    return y


def _elu(alpha: float, gain: float = 1.0) -> Callable[[float], float]:
    return lambda z: gain * (z if z > 0 else alpha * math.expm1(z))


def _logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


SCALARS: dict[str, Callable[[Op], Callable[[float], float]]] = {
    "relu": lambda op: lambda z: max(z, 0.0),
    "leaky_relu": lambda op: lambda z: z if z > 0 else op.attrs["alpha"] * z,
    "relu6": lambda op: lambda z: min(max(z, 0.0), op.attrs.get("cap", 6.0)),
    "tanh": lambda op: math.tanh,
    "softsign": lambda op: lambda z: z / (1 + abs(z)),
    "sigmoid": lambda op: _logistic,
    "hard_sigmoid": lambda op: lambda z: min(max(op.attrs["slope"] * z + 0.5, 0.0), 1.0),
    "elu": lambda op: _elu(op.attrs.get("alpha", 1.0)),
    "selu": lambda op: _elu(1.6732632423543772, 1.0507009873554805),
    "gelu": lambda op: (
        (lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))))
        if op.attrs.get("approximate")
        else (lambda z: 0.5 * z * (1 + math.erf(z / math.sqrt(2))))
    ),
    "silu": lambda op: lambda z: z * _logistic(z),
    "softplus": lambda op: lambda z: max(z, 0.0) + math.log1p(math.exp(-abs(z))),
}
"""Functions of single numbers, by Python's own math."""


# Disguises. A unit is moved by hand: its row, its bias, the columns that read it.


class Disguise:
    """Tensors of a network that are being moved by hand, in float64.

    moved: space -> for each old unit, its new place.
    """

    def __init__(self, network: Network, rng: np.random.Generator, sigma: float = 3.0) -> None:
        self.source, self.rng, self.sigma = network, rng, sigma
        self.tensors = {n: np.array(t, np.float64) for n, t in network.tensors.items()}
        self.moved: dict[str, Array] = {}

    def network(self, dtype: Any = np.float64) -> Network:
        return self.source.with_tensors({n: t.astype(dtype) for n, t in self.tensors.items()})

    # one unit

    def scale(self, unit: int, c: float, writes: list[str], reads: list[tuple[str, int]], start: int = 0) -> None:
        """(w, b, v) -> (c w, c b, v / c). writes: tensors with the unit along axis 0; reads: (tensor, places a unit takes
        along axis 1); start: the first place of the space there."""
        for name in writes:
            self.tensors[name][unit] *= c
        for name, copies in reads:
            for i in range(copies):
                self.tensors[name][:, start + unit * copies + i] /= c

    def flip(
        self, unit: int, writes: list[str], bias: str, reads: list[tuple[str, str]], about: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """f(2 a - z) = 2 b - f(z): row and bias change sign, 2 a joins the bias, 2 b v the next bias, v changes sign."""
        for name in writes:
            self.tensors[name][unit] *= -1
        if about[0]:
            self.tensors[bias][unit] += 2 * about[0]
        for kernel, next_bias in reads:
            column = self.tensors[kernel][:, unit]
            if about[1]:
                self.tensors[next_bias] += 2 * about[1] * column.reshape(len(column), -1).sum(axis=1)
            self.tensors[kernel][:, unit] *= -1

    # one space

    def relabel(self, space: str, n: int, along: list[tuple[str, int, int, int]]) -> None:
        """A random relabelling. along: (tensor, axis, first place, places a unit takes) for all that carries the space."""
        place = self.rng.permutation(n)
        self.moved[space] = place
        for name, axis, start, copies in along:
            old = self.tensors[name]
            new = old.copy()
            for unit in range(n):
                for i in range(copies):
                    to, source = start + place[unit] * copies + i, start + unit * copies + i
                    new[(slice(None),) * axis + (to,)] = old[(slice(None),) * axis + (source,)]
            self.tensors[name] = new

    def sizes(self, n: int) -> Array:
        return np.exp(self.rng.normal(0, self.sigma, n))

    def toss(self, n: int) -> Array:
        return self.rng.random(n) < 0.5


def mlp_like(network: Network) -> list[tuple[Op, str, Op]]:
    """(layer, activation, next layer) for every hidden layer of a chain of dense layers."""
    layers = [op for op in network.ops if op.kind == "dense"]
    acts = {op.inputs[0]: op for op in network.ops if op.kind != "dense"}
    return [(a, acts[a.output].kind if a.output in acts else "linear", b) for a, b in pairwise(layers)]


def disguise_mlp(d: Disguise) -> None:
    """Every unit of a chain of dense layers moved by what its activation allows, by hand."""
    for layer, act, reader in mlp_like(d.source):
        w, b, v, e = layer.params["kernel"], layer.params["bias"], reader.params["kernel"], reader.params["bias"]
        n = len(d.tensors[w])
        if act in ("relu", "leaky_relu", "prelu"):
            for unit, c in enumerate(d.sizes(n)):
                d.scale(unit, c, [w, b], [(v, 1)])
        flips = np.flatnonzero(d.toss(n))
        for unit in flips:
            if act in ("tanh", "softsign"):
                d.flip(unit, [w, b], b, [(v, e)])
            elif act in ("sigmoid", "hard_sigmoid"):
                d.flip(unit, [w, b], b, [(v, e)], about=(0.0, 0.5))
            elif act == "relu6":
                d.flip(unit, [w, b], b, [(v, e)], about=(3.0, 3.0))
        along = [(w, 0, 0, 1), (b, 0, 0, 1), (v, 1, 0, 1)]
        if act == "prelu":
            (alpha,) = next(op for op in d.source.ops if op.inputs == (layer.output,)).params.values()
            along.append((alpha, 0, 0, 1))
            for unit in flips:  # (w, b, a, v) -> (-w, -b, 1/a, -a v)
                a = float(d.tensors[alpha][unit])
                d.tensors[w][unit] *= -1
                d.tensors[b][unit] *= -1
                d.tensors[alpha][unit] = 1 / a
                d.tensors[v][:, unit] *= -a
        d.relabel(layer.name, n, along)


def before_batch_norm(
    d: Disguise, kernel: str, bias: str | None, norm: Op, factors: Array, eps: float, naive: bool = False
) -> None:
    """W -> c W, b -> c b, mean -> c mean, variance -> c^2 (variance + eps) - eps, gamma -> sign(c) gamma.

    naive: variance -> c^2 variance, which is not the same function.
    """
    p = norm.params
    for unit, c in enumerate(factors):
        d.tensors[kernel][unit] *= c
        if bias is not None:
            d.tensors[bias][unit] *= c
        d.tensors[p["mean"]][unit] *= c
        old = d.tensors[p["variance"]][unit]
        d.tensors[p["variance"]][unit] = c * c * old if naive else c * c * (old + eps) - eps
        d.tensors[p["gamma"]][unit] *= np.sign(c)


def turn(d: Disguise, kernel: str, bias: str | None, reader: str) -> None:
    """A linear space turned by an invertible matrix: W -> M W, b -> M b, V -> V M^-1."""
    n = len(d.tensors[kernel])
    q, _ = np.linalg.qr(d.rng.standard_normal((n, n)))
    m = q * np.exp(d.rng.uniform(-1, 1, n))
    d.tensors[kernel] = m @ d.tensors[kernel]
    if bias is not None:
        d.tensors[bias] = m @ d.tensors[bias]
    d.tensors[reader] = d.tensors[reader] @ np.linalg.inv(m)


def softmax_shift(d: Disguise, kernel: str, bias: str) -> None:
    """One row and one number added to all logits."""
    d.tensors[kernel] += d.rng.standard_normal(d.tensors[kernel].shape[1])
    d.tensors[bias] += d.rng.standard_normal()
