"""Attention between positions, without its projections: those are dense layers before and after it.

Each head's queries meet its keys alone, q . k, and its values are summed with weights that know nothing of their units, so
that (q, k) -> (A q, A^-T k) and (v, out) -> (C v, C out) are free for any invertible A and C, a pair for each key-value head.
The dense layers around absorb them: they are the group of the blocks that `equations` makes. Heads are relabelled, queries
that share a key-value head inside it: S_g wr S_K. Rotary positions leave of A what commutes with their rotations (rotary),
a norm of queries and keys leaves signs (head_norm), slopes of their own (ALiBi) leave no relabelling of heads.
Sources: Vaswani et al. 2017; Shazeer 2019 (multi-query); Ainslie et al. 2023 (grouped queries); Press, Smith, Lewis 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, labels_only


class Attention(OpKind):
    """softmax(scale q k^T + bias) v, head by head. inputs: q (Tq, heads * d), k (Tk, kv_heads * d), v (Tk, kv_heads * dv) and,
    optionally, a bias added to the scores, (heads, Tq, Tk). Head h reads key-value head h // (heads / kv_heads).

    attrs: heads; kv_heads (heads); scale (1 / sqrt(d)); causal (False); window (none; how many positions back, itself
    included, a query sees); softcap (none; scores s become c tanh(s / c)); slopes (none; one a head, slope * (j - i) is added
    to the score of query i and key j); null (False; a zero score with no value beside the keys': softmax plus one).
    """

    kind = "attention"
    mixing = True
    affine = True  # sums of products, twice: it counts in the rounding bound

    def _sizes(self, op: Op) -> tuple[int, int]:
        heads = int(op.attrs["heads"])
        return heads, int(op.attrs.get("kv_heads", heads))

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        q, k, v, *bias = inputs
        heads, groups = self._sizes(op)
        for name, x in (("queries", q), ("keys", k), ("values", v)):
            expect(op, f"number of axes of the {name}", len(x), 2)
            n = heads if x is q else groups
            if x[1] is None or x[1] % n:
                raise ShapeConflict(op.name, f"{name} of width {x[1]} do not split into {n} heads")
        expect(op, "rest of the heads over the key-value heads", heads % groups, 0)
        expect(op, "width of a head of the keys", (k[1] or 0) // groups, (q[1] or 0) // heads)
        if bias:
            expect(op, "number of heads of the bias", bias[0][0], heads)
        return (q[0], heads * ((v[1] or 0) // groups))

    def equations(self, op: Op, eq: Equations) -> None:
        heads, groups = self._sizes(op)
        (tq, q), (tk, k), (tv, v) = (axes[:2] for axes in eq.inputs[:3])
        for t in (tq, tk, tv):
            eq.fix(t, f"positions that {op.name} attends over")
        outer = eq.fresh(groups)
        labels_only(eq, outer)
        each = [eq.over(heads // groups, outer)] if heads > groups else []
        for axis in each:
            eq.units(axis)
        d, dv = (eq.in_shapes[0][1] or 0) // heads, (eq.in_shapes[2][1] or 0) // groups
        turned = eq.block(d, outer, "qk")
        values = eq.block(dv, outer, "vo")
        eq.same(q, eq.product((outer, *each, turned)))
        eq.same(k, eq.product((outer, eq.dual(turned))))
        eq.same(v, eq.product((outer, values)))
        slopes = op.attrs.get("slopes")
        if slopes is not None and len(set(slopes)) > 1:
            for axis in (outer, *each):
                eq.fix(axis, f"{op.name} gives each head a slope of its own")
        for bias in eq.inputs[3:]:
            eq.same(bias[0], eq.product((outer, *each)))
            for t in bias[1:]:
                eq.fix(t, f"positions that {op.name} attends over")
        eq.emit((tq, eq.product((outer, *each, values))))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs, [np.abs(x) for x in inputs])[0]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs, inputs)[1]

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        return self._run(op, inputs, sizes)

    def _run(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array]) -> tuple[Array, Array]:
        """The output, and what an error of one in `sizes` can move it by, to first order."""
        heads, groups = self._sizes(op)
        (q, mq), (k, mk), (v, mv) = (
            (split_heads(x, n), split_heads(m, n))
            for x, m, n in zip(inputs[:3], sizes[:3], (heads, groups, groups), strict=True)
        )
        k, mk, v, mv = (np.repeat(x, heads // groups, axis=1) for x in (k, mk, v, mv))
        scale = float(op.attrs.get("scale", q.shape[-1] ** -0.5))
        kt, mkt = k.swapaxes(-1, -2), mk.swapaxes(-1, -2)
        scores = scale * (q @ kt)
        size = abs(scale) * (mq @ np.abs(kt) + np.abs(q) @ mkt)
        cap = op.attrs.get("softcap")
        if cap:
            scores = float(cap) * np.tanh(scores / float(cap))
        ahead = np.arange(scores.shape[-1]) - np.arange(scores.shape[-2])[:, None]
        if (slopes := op.attrs.get("slopes")) is not None:
            scores = scores + np.asarray(slopes, scores.dtype)[:, None, None] * ahead
        for bias, m in zip(inputs[3:], sizes[3:], strict=True):
            scores, size = scores + bias, size + m
        hidden = np.zeros(ahead.shape, bool)
        if op.attrs.get("causal", False):
            hidden |= ahead > 0
        if op.attrs.get("window"):
            hidden |= ahead <= -int(op.attrs["window"])
        scores = np.where(hidden, -np.inf, scores)
        top = scores.max(axis=-1, keepdims=True)
        if op.attrs.get("null", False):
            top = np.maximum(top, 0.0)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        if op.attrs.get("null", False):
            total = total + np.exp(-top)
        p = weights / total
        size = p * (size + (p * size).sum(axis=-1, keepdims=True))
        return join_heads(p @ v), join_heads(size @ np.abs(v) + p @ mv)


class Rotary(OpKind):
    """Rotary positions: pairs of a head's units turn by position times frequency (Su et al. 2021).

    What commutes with all turns is left of the head's matrix group: a complex factor for each pair of a frequency of its own,
    GL(m, C) for m pairs of one frequency, GL(r, R) for r units that are not turned.
    attrs: heads; frequencies (one a pair, radians a position); layout: "half" (unit i with unit i + n / 2 of the n that
    are turned, as Llama's weights from transformers have it) or "interleaved" (2 i with 2 i + 1, as Meta's own and GPT-J's);
    factor (1.0; multiplies what is turned).
    """

    kind = "rotary"
    holds_zero = True

    def pairs(self, op: Op) -> list[tuple[int, int]]:
        """The units that turn together, in the order of the frequencies."""
        n = len(op.attrs["frequencies"])
        if op.attrs["layout"] == "interleaved":
            return [(2 * i, 2 * i + 1) for i in range(n)]
        return [(i, i + n) for i in range(n)]

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        heads, turned = int(op.attrs["heads"]), 2 * len(op.attrs["frequencies"])
        expect(op, "number of axes", len(x), 2)
        if op.attrs["layout"] not in ("half", "interleaved"):
            raise ShapeConflict(op.name, f"layout {op.attrs['layout']!r} is neither half nor interleaved")
        if x[1] is None or x[1] % heads or turned > x[1] // heads:
            raise ShapeConflict(op.name, f"{turned} turned units a head, {heads} heads, and a width of {x[1]}")
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        time, axis = eq.inputs[0]
        eq.fix(time, f"positions that {op.name} counts")
        classes: dict[float, list[tuple[int, int]]] = {}
        for pair, frequency in zip(self.pairs(op), op.attrs["frequencies"], strict=True):
            classes.setdefault(float(frequency), []).append(pair)
        eq.turning(axis, (eq.out_shape[1] or 0) // int(op.attrs["heads"]), tuple(tuple(c) for c in classes.values()))
        eq.emit((time, axis))

    def _turned(self, op: Op, x: Array, cos: Array, sin: Array, minus: float) -> Array:
        heads = split_heads(x, int(op.attrs["heads"]))
        out = heads.copy()
        one, two = (list(i) for i in zip(*self.pairs(op), strict=True))
        a, b = heads[..., one], heads[..., two]
        out[..., one], out[..., two] = cos * a + minus * sin * b, sin * a + cos * b
        return join_heads(out)

    def _waves(self, op: Op, steps: int, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        angles = np.arange(steps)[:, None] * np.asarray(op.attrs["frequencies"], np.float64)
        factor = float(op.attrs.get("factor", 1.0))
        return (factor * np.cos(angles)).astype(dtype), (factor * np.sin(angles)).astype(dtype)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._turned(op, inputs[0], *self._waves(op, inputs[0].shape[1], inputs[0].dtype), -1.0)

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        cos, sin = self._waves(op, inputs[0].shape[1], inputs[0].dtype)
        return self._turned(op, inputs[0], np.abs(cos), np.abs(sin), 1.0)


class HeadNorm(OpKind):
    """RMS norm of each head's queries or keys: x / sqrt(mean of x^2 + eps) over the d units of a head, times gamma (d,).

    gamma is shared by all heads, and trained: what is left of the head's matrix group are signs, one a unit, or one a pair
    that rotary positions turn together. Left out: relabelling a head's units in all heads alike, and turns by which
    a gamma of equal entries would let through. attrs: heads, eps; offset (0.0; added to gamma, as Gemma has it: 1.0).
    Source: Henry et al. 2020; Dehghani et al. 2023.
    """

    kind = "head_norm"
    roles = ("gamma",)
    optional = ("gamma",)
    affine = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        heads = int(op.attrs["heads"])
        expect(op, "number of axes", len(x), 2)
        if x[1] is None or x[1] % heads:
            raise ShapeConflict(op.name, f"a width of {x[1]} does not split into {heads} heads")
        if "gamma" in params:
            expect(op, "shape of gamma", params["gamma"], (x[1] // heads,))
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        time, axis = eq.inputs[0]
        eq.turning(axis, (eq.out_shape[1] or 0) // int(op.attrs["heads"]), None)
        labels_only(eq, time)
        eq.emit((time, axis))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs[0], np.abs(inputs[0]), params)[0]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x = split_heads(inputs[0], int(op.attrs["heads"]))
        y = 2 * x / np.sqrt(float(op.attrs["eps"]) or 1.0)  # the divisor is only known not to be less than sqrt(eps)
        return join_heads(y * self._gamma(op, params))

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        return self._run(op, inputs[0], sizes[0], {r: np.asarray(p, inputs[0].dtype) for r, p in params.items()})

    def _gamma(self, op: Op, params: Mapping[str, Array]) -> Array:
        return np.asarray(params["gamma"] + float(op.attrs.get("offset", 0.0)) if "gamma" in params else 1.0)

    def _run(self, op: Op, x: Array, m: Array, params: Mapping[str, Array]) -> tuple[Array, Array]:
        heads = int(op.attrs["heads"])
        x, m = split_heads(x, heads), split_heads(m, heads)
        inverse = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + float(op.attrs["eps"]))
        z = x * inverse
        size = m * inverse + np.abs(z) * inverse * (np.abs(z) * m).mean(axis=-1, keepdims=True)
        gamma = self._gamma(op, params)
        return join_heads(z * gamma), join_heads(size * np.abs(gamma))


def split_heads(x: Array, heads: int) -> Array:
    """(batch, positions, heads * d) as (batch, heads, positions, d)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(x: Array) -> Array:
    """The inverse of `split_heads`."""
    return np.asarray(x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1))
