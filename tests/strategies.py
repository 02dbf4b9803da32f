"""Hypothesis strategies: random small networks out of every kind of operation, and random elements of a symmetry.

Structure (which blocks, in which order) is drawn by hypothesis, so that it shrinks; widths, windows and weights come from
one drawn seed. Weights are scaled as in He et al. 2015, so that outputs vary. `Drawn.features` names what a network holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from reference import uses

from canon.action import Action
from canon.network import Network
from canon.ops import Op, kind_of
from canon.symmetry import Symmetry

ELEMENTWISE = (
    "relu", "leaky_relu", "relu6", "elu", "selu", "gelu", "silu", "softplus", "tanh", "sigmoid", "hard_sigmoid", "softsign",
    "linear", "prelu", "prelu shared",
)  # fmt: skip
SPATIAL = (
    "conv", "depthwise 1", "depthwise 2", "separable", "max_pool", "avg_pool", "zero_padding",
)  # fmt: skip
ANYWHERE = (
    "batch_norm",
    "dropout",
    "add",
    "multiply",
    "concat",
    "shared",
    "linear space",
    "softmax gate",
    "second output",
    "second input",
)
FLAT = ("dense", "reshape", "opaque")

FEATURES = (
    *ELEMENTWISE, *SPATIAL, *ANYWHERE, *FLAT,
    "conv 1d", "conv 2d", "same", "strides", "dilation", "channels first", "channels last", "softmax", "flatten",
    "global_max_pool", "global_avg_pool", "batch_norm without gamma", "batch_norm without beta", "float32", "float64",
)  # fmt: skip
"""What every profile has to draw at least twenty times."""

_Block = Callable[[str, str], str]


@dataclass(frozen=True)
class Drawn:
    """A network with the names of what it holds, and the rng seed for whatever else is random about it."""

    network: Network
    features: frozenset[str]
    seed: int

    @property
    def runnable(self) -> bool:
        return not any(op.kind == "opaque" for op in self.network.ops)

    def __repr__(self) -> str:
        ops = "; ".join(f"{o.name}({', '.join(o.inputs)}){dict(o.attrs) or ''}" for o in self.network.ops)
        shapes = {n: t.shape for n, t in self.network.tensors.items()}
        ends = f"in {dict(self.network.inputs)}; out {self.network.outputs}"
        return f"Drawn({ops}; {ends}; {shapes}; seed {self.seed}, {self.network.dtype})"

    def _repr_pretty_(self, p: Any, _: bool) -> None:  # what hypothesis prints for a failing example
        p.text(repr(self))


@dataclass
class Draft:
    """A network that is being put together."""

    rng: np.random.Generator
    channels: str = "last"
    dtype: Any = np.float64
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    features: set[str] = field(default_factory=set)

    # putting in

    def input(self, *shape: int) -> str:
        name = f"input{len(self.inputs)}"
        self.inputs[name] = self.shapes[name] = shape
        return name

    def op(self, kind: str, inputs: str | Iterable[str], params: Mapping[str, Any] | None = None, **attrs: Any) -> str:
        """Add an operation and return its output. params: role -> array (a new tensor) or the name of one that is there."""
        name = f"{kind}_{len(self.ops)}"
        names = {}
        for role, t in (params or {}).items():
            names[role] = t if isinstance(t, str) else f"{name}/{role}"
            if not isinstance(t, str):
                self.tensors[names[role]] = np.asarray(t, np.float64)
        ins = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        op = Op(kind, name, ins, name, names, attrs)
        self.shapes[name] = kind_of(op).shape(
            op, [self.shapes[v] for v in ins], {r: self.tensors[t].shape for r, t in names.items()}
        )
        self.ops.append(op)
        return name

    def network(self, *outputs: str) -> Network:
        tensors = {n: t.astype(self.dtype) for n, t in self.tensors.items()}
        return Network(tensors, tuple(self.ops), self.inputs, tuple(dict.fromkeys((*outputs, *self.extra))))

    # looking up

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def saw(self, *features: str) -> None:
        self.features.update(features)

    def at(self, v: str) -> int:
        """The axis of the units of a value."""
        return 0 if self.is_spatial(v) and self.channels == "first" else len(self.shapes[v]) - 1

    def width(self, v: str) -> int:
        return self.shapes[v][self.at(v)]

    def is_spatial(self, v: str) -> bool:
        return len(self.shapes[v]) > 1

    def sizes(self, v: str) -> list[int]:
        s = list(self.shapes[v])
        del s[self.at(v)]
        return s

    # weights

    def normal(self, *shape: int, fan_in: float = 12.0) -> np.ndarray:
        return self.rng.standard_normal(shape) * np.sqrt(2.0 / fan_in)

    def kernel(self, out: int, inner: int, *k: int, bias: bool | None = None) -> dict[str, np.ndarray]:
        params = {"kernel": self.normal(out, inner, *k, fan_in=inner * int(np.prod(k)))}
        if self.rng.random() < 0.8 if bias is None else bias:
            params["bias"] = self.normal(out) if self.rng.random() < 0.9 else np.zeros(out)
        return params

    # single layers

    def dense(self, v: str, out: int, bias: bool | None = None) -> str:
        self.saw("dense")
        return self.op("dense", v, self.kernel(out, self.shapes[v][-1], bias=bias))

    def window(self, v: str, keep: bool) -> tuple[list[int], dict[str, Any]]:
        """A window that fits into the value, with its attributes. keep: sizes stay as they are."""
        sizes = self.sizes(v)
        attrs: dict[str, Any] = {"channels": self.channels}
        k = [int(self.rng.integers(1, min(n, 3) + 1)) for n in sizes]
        if keep:
            attrs["padding"] = "same"
            self.saw(*(["same"] if max(k) > 1 else []))
            return k, attrs
        padding = self.pick("valid", "same", "valid", "same", "explicit", "causal" if len(sizes) == 1 else "valid")
        if self.rng.random() < 0.25 and all((a - 1) * 2 + 1 <= n for a, n in zip(k, sizes, strict=True)):
            attrs["dilation"] = [2] * len(k)
            self.saw(*(["dilation"] if max(k) > 1 else []))
        elif self.rng.random() < 0.35:
            attrs["strides"] = [int(self.rng.integers(1, 3)) for _ in k]
            self.saw(*(["strides"] if max(attrs["strides"]) > 1 else []))
        attrs["padding"] = (
            [[int(self.rng.integers(0, 2)), int(self.rng.integers(0, 2))] for _ in k] if padding == "explicit" else padding
        )
        self.saw(*(["same"] if padding == "same" and max(k) > 1 else []))
        return k, attrs

    def conv(self, v: str, out: int, keep: bool = False, bias: bool | None = None) -> str:
        k, attrs = self.window(v, keep)
        self.saw("conv", f"conv {len(k)}d")
        return self.op("conv", v, self.kernel(out, self.width(v), *k, bias=bias), **attrs)

    def depthwise(self, v: str, m: int, name: str = "depthwise_conv") -> str:
        k, attrs = self.window(v, False)
        self.saw(f"depthwise {m}")
        n = self.width(v) * m
        params = {"kernel": self.normal(n, 1, *k, fan_in=float(np.prod(k)))}
        if self.rng.random() < 0.6:
            params["bias"] = self.normal(n)
        return self.op(name, v, params, **attrs)

    def affine(self, v: str, out: int | None = None, bias: bool | None = None) -> str:
        """A dense layer, or a convolution that keeps the positions."""
        out = int(self.rng.integers(3, 6)) if out is None else out
        return self.conv(v, out, keep=True, bias=bias) if self.is_spatial(v) else self.dense(v, out, bias)

    def norm(self, v: str) -> str:
        n = self.width(v)
        params = {"mean": self.normal(n), "variance": self.rng.uniform(0.3, 2.0, n)}
        self.saw("batch_norm")
        if self.rng.random() < 0.75:
            params["gamma"] = self.rng.uniform(0.4, 1.6, n) * self.rng.choice([-1, 1], n)
        else:
            self.saw("batch_norm without gamma")
        if self.rng.random() < 0.75:
            params["beta"] = self.normal(n)
        else:
            self.saw("batch_norm without beta")
        axis = self.pick(self.at(v), self.at(v) - len(self.shapes[v]))
        return self.op("batch_norm", v, params, axis=axis, eps=self.pick(1e-3, 1e-5))

    def activation(self, v: str, kind: str) -> str:
        self.saw(kind)
        attrs: dict[str, Any] = {}
        if kind.startswith("prelu"):
            shape = [1] * len(self.shapes[v])
            if kind == "prelu":
                shape = (
                    list(self.shapes[v])
                    if self.rng.random() < 0.25
                    else [n if i == self.at(v) else 1 for i, n in enumerate(self.shapes[v])]
                )
            alpha = (
                self.rng.uniform(0.1, 0.9, shape) * self.rng.choice([-1, 1, 1], shape) * self.rng.choice([1.0, 1.0, 3.0], shape)
            )
            return self.op("prelu", v, {"alpha": alpha})
        if kind in ("leaky_relu", "elu"):
            attrs["alpha"] = self.pick(0.01, 0.3, 1.0) if kind == "elu" else self.pick(0.01, 0.3)
        elif kind == "relu6":
            attrs["cap"] = 6.0
        elif kind == "gelu":
            attrs["approximate"] = bool(self.rng.random() < 0.5)
        elif kind == "hard_sigmoid":
            attrs["slope"] = self.pick(0.2, 1 / 6)
        return self.op(kind, v, **attrs)

    # blocks

    def block(self, v: str, what: str, act: str) -> str:
        """One block behind a value; what does not go there is left out."""
        if what == "elementwise":
            return self.activation(self.affine(v) if self.rng.random() < 0.8 else v, act)
        if what in SPATIAL and not self.is_spatial(v):
            return self.activation(self.dense(v, int(self.rng.integers(3, 6))), act)
        blocks: dict[str, _Block] = {
            "conv": self._conv,
            "dense": self._dense,
            "depthwise 1": lambda v, a: self._depthwise(v, a, 1),
            "depthwise 2": lambda v, a: self._depthwise(v, a, 2),
            "separable": self._separable,
            "max_pool": self._pool("max_pool"),
            "avg_pool": self._pool("avg_pool"),
            "zero_padding": self._pad,
            "batch_norm": self._norm,
            "dropout": self._dropout,
            "add": self._add,
            "multiply": self._multiply,
            "concat": self._concat,
            "shared": self._shared,
            "linear space": self._linear,
            "softmax gate": self._gate,
            "second output": self._output,
            "second input": self._input,
            "reshape": self._reshape,
            "opaque": self._opaque,
        }
        return blocks[what](v, act)

    def _conv(self, v: str, act: str) -> str:
        return self.activation(self.conv(v, int(self.rng.integers(3, 6))), act)

    def _dense(self, v: str, act: str) -> str:
        return self.activation(self.dense(v, int(self.rng.integers(3, 7))), act)

    def _depthwise(self, v: str, act: str, m: int) -> str:
        v = self.activation(self.affine(v, 3), act)
        v = self.depthwise(v, m)
        return self.activation(v, self.pick(*ELEMENTWISE[:12])) if self.rng.random() < 0.7 else v

    def _separable(self, v: str, act: str) -> str:
        self.saw("separable")
        v = self.depthwise(v, self.pick(1, 2))
        out = int(self.rng.integers(3, 6))
        one = [1] * len(self.sizes(v))
        return self.activation(self.op("conv", v, self.kernel(out, self.width(v), *one), channels=self.channels), act)

    def _pool(self, kind: str) -> _Block:
        def pool(v: str, act: str) -> str:
            self.saw(kind)
            if self.rng.random() < 0.7:
                v = self.activation(self.conv(v, 4, keep=True), act)
            sizes = self.sizes(v)
            k = [int(self.rng.integers(1, min(n, 3) + 1)) for n in sizes]
            attrs: dict[str, Any] = {"pool": k, "channels": self.channels, "padding": self.pick("valid", "same")}
            if self.rng.random() < 0.5:
                attrs["strides"] = [int(self.rng.integers(1, 3)) for _ in k]
            return self.op(kind, v, **attrs)

        return pool

    def _pad(self, v: str, act: str) -> str:
        self.saw("zero_padding")
        v = self.activation(self.affine(v), act)
        padding = [[int(self.rng.integers(0, 3)), 1] for _ in self.sizes(v)]
        return self._conv(self.op("zero_padding", v, padding=padding, channels=self.channels), act)

    def _norm(self, v: str, act: str) -> str:
        if self.rng.random() < 0.5:
            return self.activation(self.norm(self.affine(v)), act)
        v = self.norm(self.activation(self.affine(v), act))  # a norm that no layer in front can take
        return self.activation(v, "relu") if self.rng.random() < 0.5 else v

    def _dropout(self, v: str, act: str) -> str:
        self.saw("dropout")
        return self.op("dropout", self.activation(self.affine(v), act), rate=0.5)

    def _add(self, v: str, act: str) -> str:
        """A residual stage: a stem, one or two blocks on it."""
        self.saw("add")
        n = int(self.rng.integers(3, 6))
        x = self.affine(v, n)
        if self.rng.random() < 0.5:
            x = self.activation(x, act)
        for _ in range(int(self.rng.integers(1, 3))):
            y = self.activation(self.affine(x), act)
            y = self.affine(y, n)
            if self.rng.random() < 0.4:
                y = self.norm(y)
            x = self.op("add", self.pick((x, y), (y, x)))
            if self.rng.random() < 0.5:
                x = self.activation(x, act)
        return x

    def _multiply(self, v: str, act: str) -> str:
        self.saw("multiply")
        n = int(self.rng.integers(3, 6))
        gate, value = self.affine(v, n), self.affine(v, n)
        if self.rng.random() < 0.8:
            gate = self.activation(gate, act)
        return self.op("multiply", (gate, value))

    def _concat(self, v: str, act: str) -> str:
        self.saw("concat")
        parts = [
            self.activation(self.affine(v, int(self.rng.integers(2, 5))), self.pick(act, "relu", "tanh")) for _ in range(2)
        ]
        if self.rng.random() < 0.5:
            parts.append(v)
        v = self.op("concat", parts, axis=self.pick(self.at(v), self.at(v) - len(self.shapes[v])))
        return self._norm(v, act) if self.rng.random() < 0.3 else v

    def _shared(self, v: str, act: str) -> str:
        self.saw("shared")
        n = int(self.rng.integers(3, 6))
        v = self.activation(self.affine(v, n), act)
        once = self.affine(v, n)
        op = self.ops[-1]
        if self.rng.random() < 0.2:  # side by side on two values
            twice = self.op(op.kind, self.activation(self.affine(v, n), act), dict(op.params), **op.attrs)
            return self.op("concat", (self.activation(once, act), self.activation(twice, act)), axis=self.at(v))
        twice = self.op(op.kind, self.activation(once, act), dict(op.params), **op.attrs)
        return twice if self.rng.random() < 0.6 else self.op("add", (once, twice))

    def _linear(self, v: str, act: str) -> str:
        self.saw("linear space")
        n = int(self.rng.integers(2, 5))
        if not self.is_spatial(v) or self.rng.random() < 0.3:
            v = self.affine(v, n)
            if self.rng.random() < 0.3:
                v = self.op("linear", v)
            return self.activation(self.affine(v), act)
        k, attrs = self.window(v, True)  # a convolution and one of single positions, as a bottleneck has them
        v = self.op("conv", v, self.kernel(n, self.width(v), *k), **attrs)
        v = self.op("conv", v, self.kernel(4, n, *[1] * len(k)), channels=self.channels)
        return self.activation(v, act)

    def _gate(self, v: str, act: str) -> str:
        """Attention over the channels: a softmax in the middle of a network."""
        self.saw("softmax gate")
        n = int(self.rng.integers(3, 6))
        v = self.activation(self.affine(v, n), act)
        weights = self.op("softmax", self.affine(v, n), axis=self.at(v) - len(self.shapes[v]))
        return self.op("multiply", (weights, v))

    def _output(self, v: str, act: str) -> str:
        self.saw("second output")
        v = self.activation(self.affine(v), act)
        self.extra.append(v)
        return v

    def _input(self, v: str, act: str) -> str:
        self.saw("second input")
        other = self.activation(self.affine(self.input(*self.shapes[v])), act)
        parts = (self.activation(self.affine(v), act), other)
        return self.op("concat", parts, axis=self.at(v))

    def _reshape(self, v: str, act: str) -> str:
        self.saw("reshape")
        if self.is_spatial(v):
            shape = [*self.shapes[v]]
            return self.op("reshape", v, shape=self.pick([-1, shape[-1]], [*shape[:2], -1]) if len(shape) > 2 else [-1])
        v = self.dense(v, 6, bias=True)
        if self.rng.random() < 0.7:
            v = self.activation(v, act)
        v = self.op("reshape", v, shape=self.pick([3, 2], [2, -1]))
        if self.rng.random() < 0.5:  # as decoders do: units become positions and channels
            v = self.op("conv", v, self.kernel(3, self.shapes[v][-1], 2), padding="same", channels="last")
            return self.op("flatten", self.activation(v, act))
        return self.op("flatten", self.op("dense", v, self.kernel(3, self.shapes[v][-1])))

    def _opaque(self, v: str, act: str) -> str:
        self.saw("opaque")
        v = self.activation(self.affine(v), act)
        return self.op("opaque", v, {"weight": self.normal(self.width(v), 2)}, class_name="Mystery", shape=list(self.shapes[v]))

    def flat(self, v: str) -> str:
        if not self.is_spatial(v):
            return v
        how = self.pick("flatten", "flatten", "global_max_pool", "global_avg_pool", "reshape")
        self.saw(how)
        if how == "reshape":
            return self.op("reshape", v, shape=[-1])
        if how == "flatten":
            return self.op("flatten", v, channels=self.channels)
        v = self.op(how, v, channels=self.channels, keepdims=bool(self.rng.random() < 0.3))
        return v if not self.is_spatial(v) else self.op("flatten", v, channels=self.channels)


@st.composite
def networks(
    draw: Any, runnable: bool = False, dtypes: tuple[Any, ...] = (np.float32, np.float64), without: tuple[str, ...] = ()
) -> Drawn:
    """A random network of up to six blocks. runnable: without opaque operations."""
    seed = draw(st.integers(0, 2**32 - 1).map(lambda n: zlib.crc32(n.to_bytes(4, "little"))))
    domain = draw(st.sampled_from(["flat", "sequence", "image"]))
    d = Draft(np.random.default_rng(seed), draw(st.sampled_from(["last", "first"])), draw(st.sampled_from(dtypes)))
    left_out = {*without, *(("opaque",) if runnable else ())}
    acts = st.sampled_from([a for a in ELEMENTWISE if a not in left_out])
    spatial = st.sampled_from([b for b in (*SPATIAL, *ANYWHERE, "elementwise", "reshape") if b not in left_out])
    flat = st.sampled_from([b for b in (*ANYWHERE, *FLAT, "elementwise") if b not in left_out])
    sizes = [int(d.rng.integers(4, 7)) for _ in range({"flat": 0, "sequence": 1, "image": 2}[domain])]
    c = int(d.rng.integers(2, 5))
    v = d.input(*((c, *sizes) if d.channels == "first" else (*sizes, c)))
    if domain != "flat":
        for _ in range(draw(st.integers(1, 4))):
            if d.is_spatial(v):
                v = d.block(v, draw(spatial), draw(acts))
        d.saw(f"channels {d.channels}")
        v = d.flat(v)
    for _ in range(draw(st.integers(1 if domain == "flat" else 0, 3))):
        v = d.block(v, draw(flat), draw(acts))
    v = d.dense(v, 3)
    end = draw(st.sampled_from(["", "softmax", "sigmoid"]))
    if end:
        d.saw(end)
        v = d.op(end, v, **({"axis": -1} if end == "softmax" else {}))
    d.saw("float32" if d.dtype == np.float32 else "float64")
    return Drawn(d.network(v), frozenset(d.features), seed)


def element(
    symmetry: Symmetry,
    rng: np.random.Generator,
    reach: float = 9.0,
    exact: bool = False,
    labels: bool = True,
    turned: Collection[str] = (),
) -> Action:
    """An element of the group, drawn without canon.action.random_action: scales exp(U(-reach, reach)), any signs and labels.

    exact: only what moves entries without rounding: powers of two, and signs about zero that leave slopes alone;
    turned: linear spaces that are moved by a matrix, others by labels, scales and signs.
    """
    linear = {s.name for s in symmetry.spaces.values() if s.linear and s.name in turned} if not exact else set()
    perms: dict[str, Any] = {}
    for s in symmetry.spaces.values():
        if s.name not in linear and labels:
            perms[s.name] = rng.permutation(s.size)
            if s.over is not None:
                perms[s.name] = np.array([rng.permutation(s.size) for _ in range(symmetry.spaces[s.over].size)])
    gauges: dict[str, Any] = {}
    for g in symmetry.gauges.values():
        if uses(g.axis) & linear:
            continue
        if g.kind == "positive":
            logs = rng.uniform(-reach, reach, g.size)
            gauges[g.name] = 2.0 ** np.round(logs / np.log(2)) if exact else np.exp(logs)
        elif g.kind == "sign" and not (exact and g.flip != "none"):
            gauges[g.name] = rng.choice([-1.0, 1.0], g.size)
    mixes = {}
    for name in linear:
        n = symmetry.spaces[name].size
        u, _, v = np.linalg.svd(rng.standard_normal((n, n)))
        mixes[name] = (u * np.exp(rng.uniform(-1, 1, n))) @ v
    return Action(symmetry, perms, gauges, mixes)
