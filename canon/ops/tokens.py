"""What transformers do to tokens besides attending: positions added, tokens put in front, biases by distance, experts chosen.

Learned positions and tokens in front are rows of the stream: they have its labels, scales and signs. A table of relative
positions has a column a head, and is relabelled with them. Experts are relabelled as blocks, router rows with them.
Sources: Devlin et al. 2019; Dosovitskiy et al. 2021; Raffel et al. 2020; Shazeer et al. 2017; Jiang et al. 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from canon.errors import ShapeConflict
from canon.ops.base import Array, Equations, Op, OpKind, Shape, expect, labels_only, plain, writes


class AddPositions(OpKind):
    """Row number t of a table added to position t. table (positions, units). attrs: offset (0), the first row that is used."""

    kind = "add_positions"
    roles = ("table",)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        rows, units = params["table"]
        expect(op, "number of axes", len(x), 2)
        expect(op, "width of the table", units, x[1])
        first = int(op.attrs.get("offset", 0))
        if x[0] is not None and first + x[0] > rows:
            raise ShapeConflict(op.name, f"{x[0]} positions from row {first} on, and {rows} rows")
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        time, axis = eq.inputs[0]
        eq.fix(time, f"positions that {op.name} counts")
        rows, units = eq.param_shapes["table"]
        eq.centre(axis, 0.0)
        eq.param("table", plain(rows), writes(units, axis))
        eq.emit((time, axis))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        first = int(op.attrs.get("offset", 0))
        return x + params["table"][first : first + x.shape[1]]


class PrependTokens(OpKind):
    """Learned tokens in front of all positions (a class token). tokens (k, units)."""

    kind = "prepend_tokens"
    roles = ("tokens",)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        expect(op, "number of axes", len(x), 2)
        expect(op, "width of the tokens", params["tokens"][1:], x[1:])
        return (None if x[0] is None else x[0] + params["tokens"][0], x[1])

    def equations(self, op: Op, eq: Equations) -> None:
        time, axis = eq.inputs[0]
        eq.fix(time, f"positions that {op.name} moves on")
        count, units = eq.param_shapes["tokens"]
        eq.centre(axis, 0.0)
        eq.param("tokens", plain(count), writes(units, axis))
        eq.emit((eq.fixed(eq.out_shape[0], "positions"), axis))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        front = np.broadcast_to(params["tokens"], (len(x), *params["tokens"].shape))
        return np.concatenate([front, x], axis=1)


class RelativeBias(OpKind):
    """T5's bias of attention scores by distance, for as many positions as its input has: (heads, T, T).

    table (buckets, heads). attrs: bidirectional, max_distance. Buckets: half of them exact, the rest logarithmic up to
    max_distance (Raffel et al. 2020).
    """

    kind = "relative_bias"
    roles = ("table",)

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        (x,) = inputs
        return (params["table"][1], x[0], x[0])

    def equations(self, op: Op, eq: Equations) -> None:
        buckets, heads = eq.param_shapes["table"]
        out = eq.fresh(heads)
        labels_only(eq, out)
        eq.param("table", plain(buckets), writes(heads, out))
        n = eq.out_shape[1]
        eq.emit((out, eq.fixed(n, "positions"), eq.fixed(n, "positions")))

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        (x,) = inputs
        steps = np.arange(x.shape[1])
        found = params["table"][self.bucket(op, steps[None, :] - steps[:, None], len(params["table"]))]
        return np.broadcast_to(found.transpose(2, 0, 1), (len(x), found.shape[2], *found.shape[:2]))

    def bucket(self, op: Op, ahead: Array, buckets: int) -> Array:
        """The bucket of each distance key - query."""
        side: Array = np.zeros(ahead.shape, np.intp)
        if op.attrs["bidirectional"]:
            buckets //= 2
            side = (ahead > 0) * buckets
            distance = np.abs(ahead)
        else:
            distance = np.maximum(-ahead, 0)
        exact = buckets // 2
        span = np.log(float(op.attrs["max_distance"]) / exact)
        # in float32, as the network that was trained did it: a distance on the edge of two buckets falls as it fell then
        far = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(span)
        far = np.minimum(exact + (far * np.float32(buckets - exact)).astype(np.intp), buckets - 1)
        return np.asarray(side + np.where(distance < exact, distance, far))


class TopWeights(OpKind):
    """Router scores to weights of experts: softmax, and zero for all but the k largest. attrs: k; renormalize (False)."""

    kind = "top_weights"
    mixing = True

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        n = inputs[0][-1]
        if n is not None and int(op.attrs["k"]) > n:
            raise ShapeConflict(op.name, f"the {op.attrs['k']} largest of {n}")
        return inputs[0]

    def equations(self, op: Op, eq: Equations) -> None:
        labels_only(eq, *eq.inputs[0])
        eq.centre(eq.inputs[0][-1], 0.0)
        eq.emit(eq.inputs[0])

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return self._run(op, inputs[0], np.abs(inputs[0]))[0]

    def magnitude(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return np.asarray(1 + inputs[0])

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        return self._run(op, inputs[0], sizes[0])

    def _run(self, op: Op, x: Array, m: Array) -> tuple[Array, Array]:
        p = np.exp(x - x.max(axis=-1, keepdims=True))
        p = p / p.sum(axis=-1, keepdims=True)
        kth = np.sort(x, axis=-1)[..., -int(op.attrs["k"]), None]
        size = p * (1 + m + (p * m).sum(axis=-1, keepdims=True))
        chosen = x >= kth
        p, size = np.where(chosen, p, 0.0), np.where(chosen, size, 0.0)
        if op.attrs.get("renormalize", False):
            total = p.sum(axis=-1, keepdims=True)
            p, size = p / total, (size + p / total * size.sum(axis=-1, keepdims=True)) / total
        return p, size


class Route(OpKind):
    """The hidden units of each expert times the weight of the expert. inputs: units (..., experts * h), weights (..., experts).

    With all experts' first layers stacked in front and their last layers side by side behind it, this is a mixture of
    experts: sum of w_e V_e h_e. Experts are relabelled as blocks, hidden units inside each; scales and signs of units go
    through.
    """

    kind = "route"

    def shape(self, op: Op, inputs: Sequence[Shape], params: Mapping[str, tuple[int, ...]]) -> Shape:
        x, weights = inputs
        expect(op, "positions of the weights", weights[:-1], x[:-1])
        if x[-1] is None or weights[-1] is None or x[-1] % weights[-1]:
            raise ShapeConflict(op.name, f"{x[-1]} units do not split among {weights[-1]} experts")
        return x

    def equations(self, op: Op, eq: Equations) -> None:
        *lead, axis = eq.inputs[0]
        *others, experts = eq.inputs[1]
        for a, b in zip(lead, others, strict=True):
            eq.same(a, b)
        labels_only(eq, *lead, experts)
        n = eq.in_shapes[1][-1] or 1
        each = eq.over((eq.in_shapes[0][-1] or 0) // n, experts)
        eq.units(axis)
        eq.same_labels(axis, eq.product((experts, each)))
        eq.centre(axis, 0.0)
        eq.emit((*lead, axis))

    def _spread(self, weights: Array, x: Array) -> Array:
        return np.repeat(weights, x.shape[-1] // weights.shape[-1], axis=-1)

    def forward(self, op: Op, inputs: Sequence[Array], params: Mapping[str, Array]) -> Array:
        x, weights = inputs
        return np.asarray(x * self._spread(weights, x))

    def both(self, op: Op, inputs: Sequence[Array], sizes: Sequence[Array], params: Mapping[str, Array]) -> tuple[Array, Array]:
        (x, w), (m, n) = inputs, sizes
        return self.forward(op, inputs, params), m * self._spread(np.abs(w), x) + np.abs(x) * self._spread(n, x)
