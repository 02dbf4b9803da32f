"""Noise whose size depends on the state: the exploration of policies trained by gSDE (Raffin, Kober, Stulp 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.ops.base import Array, Equations, Leg, Op, OpKind, Shape, expect, labels_only, plain


class StateNoise(OpKind):
    """The variance of each action: sum over units of (x exp(log_std))^2. log_std (units, actions).

    Units keep their labels, and the sign of x is not seen; a factor of x would have to be added to log_std, and is left out.
    """

    kind = "state_noise"
    roles = ("log_std",)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "rank of log_std", len(params["log_std"]), 2)
        if x[-1] is not None:
            expect(op, "number of units of log_std", params["log_std"][0], x[-1])
        return (*x[:-1], params["log_std"][1])

    def equations(self, op: Op, eq: Equations) -> None:
        *lead, inner = eq.inputs[0]
        units, actions = eq.param_shapes["log_std"]
        labels_only(eq, *lead)
        eq.units(inner)
        eq.scale((inner, 1))
        eq.centre(inner, 0.0)
        eq.param("log_std", Leg(units, inner), plain(actions))
        eq.emit((*lead, eq.fixed(actions, "actions")))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.asarray(np.square(inputs[0]) @ np.exp(2 * params["log_std"]))

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        (x,), (m,) = inputs, sizes
        weights = np.exp(2 * np.asarray(params["log_std"], x.dtype))
        return np.asarray(np.square(x) @ weights), np.asarray((2 * np.abs(x) * m) @ (weights * (1 + np.abs(params["log_std"]))))
