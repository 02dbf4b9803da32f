"""Functions of single numbers that graphs are written out in: clips, roots, powers, the error function.

A power z^p takes a scale c to c^p, which is a gauge where p is whole or one half; the sign goes through odd ones. A clip is
odd about the middle of its bounds. What is left out of domains (a root of what is negative) is not a number here either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from canon.ops.activations import Elementwise
from canon.ops.base import Array, Equations, Op, OpKind, Shape, labels_only


class Clip(Elementwise):
    """z, but not below low and not above high: flips about their middle. attrs: low, high (None: no bound)."""

    kind = "clip"
    odd = True

    def _bounds(self, op: Op) -> tuple[float, float]:
        low, high = op.attrs.get("low"), op.attrs.get("high")
        return -np.inf if low is None else float(low), np.inf if high is None else float(high)

    def centres(self, op: Op) -> tuple[float, float]:
        middle = sum(self._bounds(op)) / 2
        return middle, middle

    def equations(self, op: Op, eq: Equations) -> None:
        low, high = self._bounds(op)
        if np.isfinite(low + high):
            super().equations(op, eq)
            return
        for axis in eq.inputs[0]:
            eq.units(axis)
            if 0 not in (low, high):
                eq.scale((axis, 1))
            eq.sign((axis, 1))
        eq.emit(eq.inputs[0])

    def f(self, op: Op, z: Array) -> Array:
        return np.clip(z, *self._bounds(op))

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        y = self.f(op, inputs[0])
        return y, np.maximum(sizes[0], np.abs(y))

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return inputs[0] + max(abs(b) for b in (*self._bounds(op), 0.0) if np.isfinite(b))


class Erf(Elementwise):
    """The error function, odd: signs."""

    kind = "erf"
    odd = True
    bound = (1.13, 0.0)

    def f(self, op: Op, z: Array) -> Array:
        from scipy.special import erf

        return np.asarray(erf(z))


class _Steep(Elementwise):
    """Functions of no bounded slope: how far an error moves them is taken at the value itself."""

    def slope(self, op: Op, z: Array) -> Array:
        """|f'(z)|."""
        raise NotImplementedError

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self.both(op, inputs, inputs, params)[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            y = self.f(op, inputs[0])
            return y, np.asarray(np.abs(y) + self.slope(op, inputs[0]) * sizes[0])


class Log(_Steep):
    """log z: labels only."""

    kind = "log"

    def keeps_zero(self, op: Op) -> bool:
        return False

    def f(self, op: Op, z: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.log(z)

    def slope(self, op: Op, z: Array) -> Array:
        return np.asarray(1 / np.abs(z))


class Power(_Steep):
    """z^p: a scale c goes out as c^p where p is whole or one half, a sign where p is odd. attrs: exponent, not 0."""

    kind = "power"

    def _exponent(self, op: Op) -> float:
        return float(op.attrs["exponent"])

    def keeps_zero(self, op: Op) -> bool:
        return self._exponent(op) > 0

    def equations(self, op: Op, eq: Equations) -> None:
        p = self._exponent(op)
        whole = p == int(p)
        axes = []
        for inner in eq.inputs[0]:
            eq.units(inner)
            out = eq.alike(inner)
            eq.centre(inner, 0.0)
            eq.centre(out, 0.0)
            if whole or 2 * p == int(2 * p):
                eq.scale((out, 2), (inner, -int(2 * p)))
            else:
                eq.scale((inner, 1))
                eq.scale((out, 1))
            if not whole:  # of what is negative there is none
                eq.sign((inner, 1))
                eq.sign((out, 1))
            elif int(p) % 2:
                eq.sign((out, 1), (inner, -1))
            else:
                eq.sign((out, 1))
            axes.append(out)
        eq.emit(axes)

    def f(self, op: Op, z: Array) -> Array:
        p = self._exponent(op)
        with np.errstate(all="ignore"):
            if p in (0.5, -0.5):
                return np.sqrt(z) if p > 0 else np.asarray(1 / np.sqrt(z))
            return np.asarray(z**p)

    def slope(self, op: Op, z: Array) -> Array:
        p = self._exponent(op)
        return np.asarray(abs(p) * np.abs(z) ** (p - 1))


class Sign(Elementwise):
    """-1, 0 or 1: positive scales stop here, the sign goes through."""

    kind = "sign"
    odd = True

    def equations(self, op: Op, eq: Equations) -> None:
        axes = []
        for inner in eq.inputs[0]:
            eq.units(inner)
            out = eq.alike(inner)
            eq.scale((out, 1))
            eq.sign((inner, 1), (out, -1))
            eq.centre(inner, 0.0)
            eq.centre(out, 0.0)
            axes.append(out)
        eq.emit(axes)

    def f(self, op: Op, z: Array) -> Array:
        return np.sign(z)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.ones_like(inputs[0])


_ROUND: dict[str, Callable[..., Any]] = {"floor": np.floor, "ceil": np.ceil, "nearest": np.round}


class Round(Elementwise):
    """To whole numbers: labels only. attrs: how ("floor", "ceil", "nearest": halves to even)."""

    kind = "round"
    bound = (1.0, 1.0)

    def f(self, op: Op, z: Array) -> Array:
        return np.asarray(_ROUND[str(op.attrs["how"])](z))


class LocalResponseNorm(OpKind):
    """x_c / (bias + alpha / size * sum of x_k^2 over the `size` channels about c)^beta (Krizhevsky et al. 2012).

    Neighbours among the channels count, so they keep their places; eps's part is played by bias, which fixes their scale.
    Left out: a sign a channel. attrs: size, alpha, beta, bias, channels.
    """

    kind = "local_response_norm"
    mixing = True
    holds_zero = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        at = (0 if op.attrs.get("channels", "last") == "first" else -1) % len(eq.inputs[0])
        for i, axis in enumerate(eq.inputs[0]):
            if i == at:
                eq.fix(axis, f"{op.name} counts neighbouring channels together")
            else:
                labels_only(eq, axis)
        eq.emit(eq.inputs[0])

    def _run(self, op: Op, x: Array, m: Array) -> tuple[Array, Array]:
        at = 1 if op.attrs.get("channels", "last") == "first" else x.ndim - 1
        size, beta = int(op.attrs["size"]), float(op.attrs["beta"])
        share = float(op.attrs["alpha"]) / size
        base = float(op.attrs["bias"]) + share * self._summed(x * x, at, size)
        scale = base**-beta
        moved = share * self._summed(2 * np.abs(x) * m, at, size)
        return x * scale, np.asarray(m * scale + np.abs(x) * scale * beta / base * moved)

    def _summed(self, x: Array, at: int, size: int) -> Array:
        """Sums over (size - 1) // 2 channels before each, itself, and size // 2 after it."""
        room = [(0, 0)] * x.ndim
        room[at] = ((size - 1) // 2, size // 2)
        wide = np.pad(x, room)
        here = [slice(None)] * x.ndim
        total = np.zeros_like(x)
        for k in range(size):
            here[at] = slice(k, k + x.shape[at])
            total += wide[tuple(here)]
        return total

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs[0], np.abs(inputs[0]))[0]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs[0], inputs[0])[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        return self._run(op, inputs[0], sizes[0])
