"""Recurrent layers with the semantics of Keras: LSTM, GRU, simple RNN.

Gates are stacked along axis 0 of kernel (gates u, in), recurrent_kernel (gates u, u) and bias, in Keras' order: i, f, c, o
for an LSTM, z, r, h for a GRU; the block of c or h is the candidate, the only one whose function f is `activation`.

The group on the u hidden units. A relabelling moves the rows of all gates at once, and the columns of the recurrent kernel.
With s a factor a unit, h -> s h needs the state to carry s through the cell: c = f c' + i f(z_c) and h = o f(c), or
h = z h' + (1 - z) f(z_h): gates multiply unit by unit, so the state does iff f(s z) = s f(z). An odd f (tanh) lets signs
through, a homogeneous one (relu) positive scales. The rows of the candidate take s, those of the other gates do not, since
what they compute must stay; all columns of the recurrent kernel take 1 / s. The first state is zero, and so may be a masked
step's output, so flips about another point than zero (f a sigmoid) are not free. With f linear, a simple RNN has any
matrix in the place of s: left out. Flips of what comes in about another point than zero are left out as well.

Sources: Hochreiter, Schmidhuber 1997; Cho et al. 2014. Signs of LSTM units are in Godfrey et al. 2022's sense intertwiners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from canon.errors import UnsupportedOp
from canon.ops.activations import Elementwise
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, plain, reads, writes

_Number = Any
"""Array or _Sized: the cells are written once for both."""
_Function = Callable[[_Number], _Number]


class _Sized:
    """A value with what an error of one in its parts can move it by, to first order."""

    __slots__ = ("size", "value")

    def __init__(self, value: Array, size: Array) -> None:
        self.value, self.size = value, size

    def __add__(self, other: _Sized) -> _Sized:
        return _Sized(self.value + other.value, self.size + other.size)

    def __sub__(self, other: _Sized) -> _Sized:
        return _Sized(self.value - other.value, self.size + other.size)

    def __mul__(self, other: _Sized) -> _Sized:
        return _Sized(self.value * other.value, np.abs(self.value) * other.size + np.abs(other.value) * self.size)

    def __getitem__(self, at: Any) -> _Sized:
        return _Sized(self.value[at], self.size[at])


class _Recurrent(OpKind):
    """Inputs: the value (steps, features) and, if steps are masked, a mask (steps,): 0 where a step is skipped.

    A skipped step leaves the state as it is and puts out what the step before did (zero_output_for_mask: zero).
    attrs: activation, recurrent_activation (a kind, or {"kind": ..., its attrs}), return_sequences, go_backwards (the last
    step first, and put out first), zero_output_for_mask.
    """

    roles = ("kernel", "recurrent_kernel", "bias")
    optional = ("bias",)
    gates: ClassVar[int]
    candidate: ClassVar[int]

    # shapes and symmetry

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        x, *masks = inputs
        expect(op, "rank of what a recurrent layer reads", len(x), 2)
        u = params["recurrent_kernel"][-1]
        expect(op, "shape of the recurrent kernel", params["recurrent_kernel"], (self.gates * u, u))
        features = params["kernel"][-1] if x[-1] is None else x[-1]
        expect(op, "shape of the kernel", params["kernel"], (self.gates * u, features))
        if "bias" in params:
            expect(op, "shape of the bias", params["bias"], self._bias(op, self.gates * u))
        for mask in masks:
            expect(op, "rank of the mask", len(mask), 1)
        for name in ("activation", "recurrent_activation"):
            _function(op, name)
        return (x[0], u) if op.attrs.get("return_sequences") else (u,)

    def _bias(self, op: Op, n: int) -> tuple[int, ...]:
        return (n,)

    def keeps_zero(self, op: Op) -> bool:
        kind, inner = _function(op, "activation")
        return kind.keeps_zero(inner)

    def equations(self, op: Op, eq: Equations) -> None:
        (steps, inner), *masks = eq.inputs
        n, u = eq.param_shapes["recurrent_kernel"]
        eq.fix(steps, f"steps that {op.name} takes one after the other")
        for mask in masks:
            eq.fix(mask[0], "the steps of a mask")
        eq.centre(inner, 0.0)
        state = eq.fresh(u)
        eq.units(state)
        eq.centre(state, 0.0)
        kind, function = _function(op, "activation")
        if not kind.scales(function):
            eq.scale((state, 1))
        if not kind.odd or kind.centres(function) != (0.0, 0.0):
            eq.sign((state, 1))
        gate = eq.alike(state)
        eq.scale((gate, 1))
        eq.sign((gate, 1))
        rows = eq.concat([state if i == self.candidate else gate for i in range(self.gates)])
        eq.param("kernel", writes(n, rows), reads(eq.param_shapes["kernel"][1], inner))
        eq.param("recurrent_kernel", writes(n, rows), reads(u, state))
        if "bias" in op.params:
            eq.param("bias", *map(plain, eq.param_shapes["bias"][:-1]), writes(n, rows))
        eq.emit((eq.fixed(eq.out_shape[0], "steps"), state) if op.attrs.get("return_sequences") else (state,))

    # running

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, *masks = inputs
        biases = self._biases(params)
        read = x @ params["kernel"].T + biases[0]
        zero = np.zeros((len(x), params["recurrent_kernel"].shape[1]), x.dtype)
        recurrent = params["recurrent_kernel"].T

        def back(h: _Number, columns: slice = slice(None)) -> _Number:
            return h @ recurrent[:, columns] + biases[1][columns]

        found = self._run(op, [read[:, t] for t in range(x.shape[1])], masks, zero, back, _applied)
        return found if isinstance(found, np.ndarray) else np.stack(found, axis=1)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.both(op, inputs, inputs, params)[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        x, *masks = inputs
        params = {r: np.asarray(p, x.dtype) for r, p in params.items()}
        biases, kernel, recurrent = self._biases(params), params["kernel"].T, params["recurrent_kernel"].T
        steep = np.abs(recurrent)
        read = _Sized(x @ kernel + biases[0], sizes[0] @ np.abs(kernel) + np.abs(biases[0]))
        nothing = np.zeros((len(x), len(recurrent)), x.dtype)

        def back(h: _Number, columns: slice = slice(None)) -> _Number:
            b = biases[1][columns]
            return _Sized(h.value @ recurrent[:, columns] + b, h.size @ steep[:, columns] + np.abs(b))

        steps = [read[:, t] for t in range(x.shape[1])]
        found = self._run(op, steps, masks, _Sized(nothing, nothing), back, _sized)
        every = [found] if isinstance(found, _Sized) else found
        # each step rounds once more, which the count of affine maps does not know of
        y, m = np.stack([s.value for s in every], axis=1), np.stack([s.size for s in every], axis=1) * max(1, len(steps))
        return (y[:, 0], m[:, 0]) if isinstance(found, _Sized) else (y, m)

    def _biases(self, params: Mapping[str, Array]) -> tuple[Array, Array]:
        """What is added to W x and to U h."""
        zero = np.zeros(len(params["kernel"]), params["kernel"].dtype)
        bias = params.get("bias", zero)
        return (bias, zero) if bias.ndim == 1 else (bias[0], bias[1])

    def _run(
        self,
        op: Op,
        read: Sequence[_Number],
        masks: Sequence[Array],
        zero: _Number,
        back: _Function,
        apply: Callable[..., _Number],
    ) -> _Number:
        """The outputs of all steps as a list, or of the last one; read: W x + b, step by step."""
        f, g = (
            (lambda z, kind=kind, inner=inner: apply(kind, inner, z))
            for kind, inner in (_function(op, "activation"), _function(op, "recurrent_activation"))
        )
        order = range(len(read))
        state: tuple[_Number, ...] = (zero, zero)
        out, outputs = zero, []
        for t in reversed(order) if op.attrs.get("go_backwards") else order:
            new = self.step(op, read[t], state, back, f, g)
            shown = new[0]
            if masks:
                counts = masks[0][:, t, None] != 0
                new = tuple(_chosen(counts, a, b) for a, b in zip(new, state, strict=False))
                shown = _chosen(counts, shown, zero if op.attrs.get("zero_output_for_mask") else out)
            state, out = new, shown
            outputs.append(shown)
        return outputs if op.attrs.get("return_sequences") else state[0]

    def step(
        self, op: Op, read: _Number, state: tuple[_Number, ...], back: _Function, f: _Function, g: _Function
    ) -> tuple[_Number, ...]:
        """The new state, output first. read: W x + b; back: h -> U h (+ its bias); f, g: activation, gate."""
        raise NotImplementedError


class SimpleRnn(_Recurrent):
    """h = f(W x + U h + b)."""

    kind = "simple_rnn"
    gates, candidate = 1, 0

    def step(
        self, op: Op, read: _Number, state: tuple[_Number, ...], back: _Function, f: _Function, g: _Function
    ) -> tuple[_Number, ...]:
        return (f(read + back(state[0])),)


class Lstm(_Recurrent):
    """i, f, o = g(W x + U h + b), c = f c' + i a(W_c x + U_c h + b_c), h = o a(c)."""

    kind = "lstm"
    gates, candidate = 4, 2

    def step(
        self, op: Op, read: _Number, state: tuple[_Number, ...], back: _Function, f: _Function, g: _Function
    ) -> tuple[_Number, ...]:
        h, c = state
        i, forget, new, o = _blocks(read + back(h), 4)
        c = g(forget) * c + g(i) * f(new)
        return g(o) * f(c), c


class Gru(_Recurrent):
    """z, r = g(W x + U h + b), h = z h' + (1 - z) a(W_h x + b_h + U_h (r h')).

    attrs: reset_after: the candidate is a(W_h x + b_h + r (U_h h' + b')) instead, and bias is (2, 3 u): of W x and of U h.
    """

    kind = "gru"
    gates, candidate = 3, 2

    def _bias(self, op: Op, n: int) -> tuple[int, ...]:
        return (2, n) if op.attrs.get("reset_after") else (n,)

    def step(
        self, op: Op, read: _Number, state: tuple[_Number, ...], back: Any, f: _Function, g: _Function
    ) -> tuple[_Number, ...]:
        h = state[0]
        x = _blocks(read, 3)
        u = _width(read) // 3
        if op.attrs.get("reset_after"):
            hz, hr, hh = _blocks(back(h), 3)
            z, r = g(x[0] + hz), g(x[1] + hr)
            new = f(x[2] + r * hh)
        else:
            hz, hr = _blocks(back(h, slice(0, 2 * u)), 2)
            z, r = g(x[0] + hz), g(x[1] + hr)
            new = f(x[2] + back(r * h, slice(2 * u, None)))
        return (new + z * (h - new),)


class _Linear(Elementwise):
    """The identity, as a recurrent layer's activation."""

    scale = odd = True

    def f(self, op: Op, z: Array) -> Array:
        return z


def _function(op: Op, name: str) -> tuple[Elementwise, Op]:
    """An activation of a recurrent layer: its kind, and an op that holds its attributes."""
    said = op.attrs.get(name, "tanh" if name == "activation" else "sigmoid")
    attrs = {"kind": said} if isinstance(said, str) else dict(said)
    kind_name = str(attrs.pop("kind"))
    kind = _Linear() if kind_name == "linear" else OpKind.registry.get(kind_name)
    if not isinstance(kind, Elementwise) or kind.roles:
        raise UnsupportedOp(op.name, f"a recurrent layer with activation {kind_name!r}")
    return kind, Op(kind_name, op.name, (), "", attrs=attrs)


def _applied(kind: Elementwise, inner: Op, z: Array) -> Array:
    return kind.forward(inner, [z], {})


def _sized(kind: Elementwise, inner: Op, z: _Sized) -> _Sized:
    y, m = kind.both(inner, [z.value], [z.size], {})
    return _Sized(y, m)


def _chosen(where: Array, a: _Number, b: _Number) -> _Number:
    if isinstance(a, _Sized):
        return _Sized(np.where(where, a.value, b.value), np.where(where, a.size, b.size))
    return np.where(where, a, b)


def _width(z: _Number) -> int:
    return int((z.value if isinstance(z, _Sized) else z).shape[-1])


def _blocks(z: _Number, n: int) -> list[_Number]:
    """n blocks of equal width along the last axis."""
    u = _width(z) // n
    return [z[..., i * u : (i + 1) * u] for i in range(n)]
