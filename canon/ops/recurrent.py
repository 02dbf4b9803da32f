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

Sources: Hochreiter, Schmidhuber 1997; Cho et al. 2014; the group by what intertwines, Godfrey et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from canon.errors import UnsupportedOp
from canon.ops.activations import Elementwise
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, plain, reads, writes

_Function = Callable[[Array], Array]
_TRIALS, _NUDGE, _CAUTION = 4, 2.0**-36, 8.0
"""How often a layer is run on changed numbers, by how much they are changed, and by how much more its outputs may move."""


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
        eq.emit((eq.fixed(eq.out_shape[0], "positions"), state) if op.attrs.get("return_sequences") else (state,))

    # running

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, *masks = inputs
        recurrent = params["recurrent_kernel"].T
        none = np.zeros(recurrent.shape[1], x.dtype)
        bias = params.get("bias", none)
        first, second = (bias, none) if bias.ndim == 1 else (bias[0], bias[1])

        def back(h: Array, columns: slice = slice(None)) -> Array:
            return np.asarray(h @ recurrent[:, columns] + second[columns])

        f, g = (_Applied(*_function(op, name)) for name in ("activation", "recurrent_activation"))
        read = x @ params["kernel"].T + first
        zero = np.zeros((len(x), len(recurrent)), x.dtype)
        state: tuple[Array, ...] = (zero, zero)
        out, outputs = zero, []
        for t in range(x.shape[1])[:: -1 if op.attrs.get("go_backwards") else 1]:
            new = self.step(op, read[:, t], state, back, f, g)
            shown = new[0]
            if masks:
                counts = masks[0][:, t, None] != 0
                new = tuple(np.where(counts, a, b) for a, b in zip(new, state, strict=False))
                shown = np.where(counts, shown, zero if op.attrs.get("zero_output_for_mask") else out)
            state, out = new, shown
            outputs.append(shown)
        return np.stack(outputs, axis=1) if op.attrs.get("return_sequences") else out

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.both(op, inputs, inputs, params)[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        """The output, and how far it moves where every number that goes in is changed by one part of its size.

        Measured, not bounded: a bound is multiplied by |U| at every step and says nothing after twenty. The layer is run on
        numbers changed at random; the root mean square of what follows, over trials and units, is taken several times.
        """
        (x, *masks), rng = inputs, np.random.default_rng(0)
        params = {r: np.asarray(p, x.dtype) for r, p in params.items()}
        y = self.forward(op, inputs, params)
        total = np.zeros_like(y[..., :1])
        for _ in range(_TRIALS):
            near = {r: p + _NUDGE * rng.choice([-1.0, 1.0], p.shape) * np.abs(p) for r, p in params.items()}
            moved = self.forward(op, [x + _NUDGE * rng.choice([-1.0, 1.0], x.shape) * sizes[0], *masks], near)
            total += (((moved - y) / _NUDGE) ** 2).mean(axis=-1, keepdims=True)
        return y, np.abs(y) + _CAUTION * np.sqrt(total / _TRIALS)

    def step(
        self, op: Op, read: Array, state: tuple[Array, ...], back: Callable[..., Array], f: _Function, g: _Function
    ) -> tuple[Array, ...]:
        """The new state, output first. read: W x + b; back: h -> U h (+ its bias); f, g: activation, gate."""
        raise NotImplementedError


class SimpleRnn(_Recurrent):
    """h = f(W x + U h + b)."""

    kind = "simple_rnn"
    gates, candidate = 1, 0

    def step(
        self, op: Op, read: Array, state: tuple[Array, ...], back: Callable[..., Array], f: _Function, g: _Function
    ) -> tuple[Array, ...]:
        return (f(read + back(state[0])),)


class Lstm(_Recurrent):
    """i, f, o = g(W x + U h + b), c = f c' + i a(W_c x + U_c h + b_c), h = o a(c)."""

    kind = "lstm"
    gates, candidate = 4, 2

    def step(
        self, op: Op, read: Array, state: tuple[Array, ...], back: Callable[..., Array], f: _Function, g: _Function
    ) -> tuple[Array, ...]:
        h, c = state
        i, forget, new, o = np.split(read + back(h), 4, axis=-1)
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
        self, op: Op, read: Array, state: tuple[Array, ...], back: Callable[..., Array], f: _Function, g: _Function
    ) -> tuple[Array, ...]:
        h = state[0]
        x = np.split(read, 3, axis=-1)
        u = h.shape[-1]
        if op.attrs.get("reset_after"):
            hz, hr, hh = np.split(back(h), 3, axis=-1)
            z, r = g(x[0] + hz), g(x[1] + hr)
            new = f(x[2] + r * hh)
        else:
            hz, hr = np.split(back(h, slice(0, 2 * u)), 2, axis=-1)
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


class _Applied:
    """An elementwise kind as a function of arrays."""

    def __init__(self, kind: Elementwise, inner: Op) -> None:
        self._kind, self._inner = kind, inner

    def __call__(self, z: Array) -> Array:
        return self._kind.forward(self._inner, [z], {})
