"""Norms over the units or positions of each sample: layer norm, RMS norm, group norm, instance norm.

z = (x - mean) / sqrt(variance + eps), y = gamma z + beta. What comes in is relabelled; eps fixes its scale. What goes out
has a scale and a sign a unit, exactly, through gamma and beta (none without gamma). Flips of what comes in: an RMS norm
and an instance norm see each unit's sign apart, so gamma takes it; a layer norm sees one sign common to all its units, a
group norm one a group, and a sign common to many units is no gauge here, so that is left out, as are the orthogonal maps
that fix the vector of ones (layer norm) or none (RMS norm) once gamma is folded away.
A number added to all units alike is not seen by a layer norm over them: `blind_axis`, and fold takes it out.
Sources: Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019; Wu, He 2018; Ulyanov, Vedaldi, Lempitsky 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from canon.ops.base import Array, AxisRef, Equations, Leg, Op, OpKind, Shape, expect, labels_only, writes


class _Norm(OpKind):
    roles = ("gamma", "beta")
    optional = ("gamma", "beta")
    affine = True
    centred: ClassVar[bool] = True

    def _axes(self, op: Op, rank: int) -> tuple[int, ...]:
        """The axes along which gamma and beta run, batch excluded."""
        return (int(op.attrs.get("axis", -1)) % rank,)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        for role, found in params.items():
            wanted = tuple(x[i] for i in self._axes(op, len(x)))
            expect(op, f"shape of {role}", found, found if None in wanted else wanted)
        return x

    def _tensors(self, op: Op, eq: Equations, legs: Sequence[tuple[int | None, AxisRef]], down: Sequence[AxisRef] = ()) -> None:
        """Gamma and beta over the units that go out (and gamma's `down`, those that come in)."""
        for role in op.params:
            parts = [writes(n or 0, a) for n, a in legs]
            if role == "gamma" and down:
                parts = [Leg(n or 0, a, up=(a,), down=(d,), role="in") for (n, a), d in zip(legs, down, strict=True)]
            eq.param(role, *parts)

    def _view(self, op: Op, x: Array) -> tuple[Array, tuple[int, ...]]:
        """The value (batch first) in the shape in which it is normalised, and the axes over which it is."""
        raise NotImplementedError

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs[0], np.abs(inputs[0]), params)[0]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (m,) = inputs  # without the values themselves, the divisor is only known not to be less than sqrt(eps)
        view, axes = self._view(op, m)
        spread = (view + view.max(axis=axes, keepdims=True)).reshape(m.shape)
        return self._affine(op, 2 * spread / np.sqrt(float(op.attrs["eps"]) or 1.0), params)

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        return self._run(op, inputs[0], sizes[0], {r: np.asarray(p, inputs[0].dtype) for r, p in params.items()})

    def _run(self, op: Op, x: Array, m: Array, params: Mapping[str, Array]) -> tuple[Array, Array]:
        """The output, and what an error of one in m can move it by, to first order."""
        view, axes = self._view(op, x)
        along: Any = {"axis": axes, "keepdims": True}
        spread = m.reshape(view.shape)
        if self.centred:
            view, spread = view - view.mean(**along), spread + spread.mean(**along)
        inverse = 1.0 / np.sqrt((view * view).mean(**along) + float(op.attrs["eps"]))
        z = view * inverse
        size = spread * inverse + np.abs(z) * inverse * (np.abs(z) * spread).mean(**along)
        y = self._affine(op, z.reshape(x.shape), params)
        return y, self._affine(op, size.reshape(x.shape), {r: np.abs(p) for r, p in params.items()})

    def _affine(self, op: Op, z: Array, params: Mapping[str, Array]) -> Array:
        at = self._axes(op, z.ndim - 1)
        shape = [z.shape[i + 1] if i in at else 1 for i in range(z.ndim - 1)]
        order = np.argsort(at)
        gamma, beta = (params[r].transpose(order).reshape(shape) if r in params else None for r in ("gamma", "beta"))
        z = z if gamma is None else z * (gamma + float(op.attrs.get("offset", 0.0)))
        return z if beta is None else z + beta

    def absorb(self, op: Op, params: dict[str, Array], t_in: Array | None, t_out: Array | None) -> dict[str, Array]:
        return {} if t_out is None else {"beta": params["beta"] + t_out}

    def _out(self, op: Op, eq: Equations, inner: AxisRef, sign: bool = False) -> AxisRef:
        """The units that go out: those that come in, with a gauge of their own where gamma takes it."""
        eq.units(inner)
        out = eq.alike(inner)
        eq.scale((inner, 1))
        eq.centre(inner, 0.0)
        if not sign:
            eq.sign((inner, 1))
        if "gamma" not in op.params or op.attrs.get("offset"):
            eq.scale((out, 1))
            eq.sign((out, 1), *([(inner, -1)] if sign else []))
        if "beta" not in op.params:
            eq.centre(out, 0.0)
        return out


class LayerNorm(_Norm):
    """Over one or several axes of each sample. gamma, beta: in the shape of those axes. attrs: axes (-1), eps."""

    kind = "layer_norm"
    mixing = True
    signs: ClassVar[bool] = False

    def _axes(self, op: Op, rank: int) -> tuple[int, ...]:
        return tuple(int(a) % rank for a in op.attrs.get("axes", [-1]))

    def blind_axis(self, op: Op) -> int | None:
        axes = op.attrs.get("axes", [-1])
        return int(axes[0]) if self.centred and len(axes) == 1 else None

    def equations(self, op: Op, eq: Equations) -> None:
        at = self._axes(op, len(eq.out_shape))
        axes = list(eq.inputs[0])
        inner = [axes[i] for i in at]
        # one axis carries the gauge of what goes out; a product of several would say the same thing twice
        labels_only(eq, *(axis for i, axis in enumerate(axes) if i != at[-1]))
        if self.signs and len(at) == 1 and not op.params and not op.attrs.get("offset"):
            # without gamma every orthogonal matrix goes through; relabellings and signs are what is taken of them by default
            eq.rotates(inner[0])
            eq.scale((inner[0], 1))
            eq.centre(inner[0], 0.0)
            eq.emit(axes)
            return
        axes[at[-1]] = self._out(op, eq, axes[at[-1]], self.signs)
        self._tensors(op, eq, [(eq.out_shape[i], axes[i]) for i in at], inner if self.signs else ())
        eq.emit(axes)

    def _view(self, op: Op, x: Array) -> tuple[Array, tuple[int, ...]]:
        return x, tuple(i + 1 for i in self._axes(op, x.ndim - 1))


class RmsNorm(LayerNorm):
    """x / sqrt(mean of x^2 + eps), times gamma: what comes in has a sign a unit as well. attrs: axes (-1), eps.

    offset (0.0): added to gamma, as Gemma has it (1.0). What goes out has no scale of its own then: w -> c (1 + w) - 1 is no
    factor of w, and is left out.
    """

    kind = "rms_norm"
    centred = False
    signs = True


class GroupNorm(_Norm):
    """Over the positions and the channels of a group. gamma, beta (channels,). attrs: axis, groups (-1: one a channel), eps.

    Channels are relabelled inside their group and groups as a whole: S_{C/G} wr S_G.
    """

    kind = "group_norm"
    mixing = True

    def _groups(self, op: Op, channels: int | None) -> int:
        groups = int(op.attrs["groups"])
        return (channels or 1) if groups == -1 else groups

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        n = x[self._axes(op, len(x))[0]]
        if n is not None:
            expect(op, f"rest of {n} channels in {self._groups(op, n)} groups", n % self._groups(op, n), 0)
        return super().shape(op, inputs, params)

    def equations(self, op: Op, eq: Equations) -> None:
        (at,) = self._axes(op, len(eq.out_shape))
        axes = list(eq.inputs[0])
        for i, axis in enumerate(axes):
            if i != at:
                eq.fix(axis, f"positions that {op.name} averages over")
        n = eq.out_shape[at] or 0
        groups = self._groups(op, n)
        if 1 < groups < n:
            outer = eq.fresh(groups)
            eq.same_labels(axes[at], eq.product((outer, eq.over(n // groups, outer))))
        axes[at] = self._out(op, eq, axes[at])
        self._tensors(op, eq, [(n, axes[at])])
        eq.emit(axes)

    def _view(self, op: Op, x: Array) -> tuple[Array, tuple[int, ...]]:
        at = 1 + self._axes(op, x.ndim - 1)[0]
        groups = self._groups(op, x.shape[at])
        view = x.reshape(*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])
        return view, tuple(i for i in range(1, view.ndim) if i != at)


class InstanceNorm(_Norm):
    """Over the positions of each channel. gamma, beta (channels,). attrs: axis, eps. What comes in has a sign a channel."""

    kind = "instance_norm"

    def equations(self, op: Op, eq: Equations) -> None:
        (at,) = self._axes(op, len(eq.out_shape))
        axes = list(eq.inputs[0])
        for i, axis in enumerate(axes):
            if i != at:
                eq.fix(axis, f"positions that {op.name} averages over")
        inner = axes[at]
        axes[at] = self._out(op, eq, inner, sign=True)
        self._tensors(op, eq, [(eq.out_shape[at], axes[at])], (inner,))
        eq.emit(axes)

    def _view(self, op: Op, x: Array) -> tuple[Array, tuple[int, ...]]:
        at = 1 + self._axes(op, x.ndim - 1)[0]
        return x, tuple(i for i in range(1, x.ndim) if i != at)
