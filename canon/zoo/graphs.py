"""From a graph to its path kernel: which step stands for which operation, and where the symmetry allows it.

The identity may stand for an operation only where what goes out carries the same scales as what came in; where a sign ends,
signed sums are left out. What matrices mix (linear spaces, the heads of attention) has no paths through single units.
"""

from __future__ import annotations

from math import prod

from canon.forward import affine_depth
from canon.network import Network
from canon.ops import Op, kind_of
from canon.ops.geometry import channel_axis
from canon.symmetry import Symmetry, Use, gauges_of, leaves
from canon.zoo.kernels import ALL, EVEN
from canon.zoo.paths import Paths
from canon.zoo.steps import (
    Affine,
    Along,
    Carried,
    Depthwise,
    Embedding,
    Identity,
    Joined,
    Pooled,
    Slopes,
    Start,
    Step,
)

_SLIDING = ("max_pool", "avg_pool", "global_max_pool", "global_avg_pool", "zero_padding", "cropping", "upsampling")
_SUMS = ("add", "subtract", "average", "maximum", "minimum", "multiply")
_MOVED = ("permute", "reverse", "repeat_vector")
_NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm")
_AFFINE = ("dense", "conv", "conv_transpose", "grouped_conv")


class NoPathsError(Exception):
    """The graph holds something through which no path is known to be invariant."""


def path_kernel(network: Network, symmetry: Symmetry, stored: bool = False) -> Paths:
    """The path kernel of a graph.

    stored: the network is as stored, not folded: batch norms are met together with the kernels in front of them, and
    softmax's shift is taken out on the way. Otherwise its tensors are those of Folded.centred.
    Raises NoPathsError.
    """
    if any(space.linear for space in symmetry.spaces.values()) or symmetry.blocks:
        raise NoPathsError("units that matrices mix")
    if stored and any(side.centre is not None for sides in symmetry.values.values() for side in sides):
        raise NoPathsError("flips about another point than zero")
    if stored and any(op.kind == "softmax" and network.readers[op.output] for op in network.ops):
        raise NoPathsError("values between 0 and 1, which folding looks at")
    return _Builder(network, symmetry, stored).paths()


class _Builder:
    def __init__(self, network: Network, symmetry: Symmetry, stored: bool) -> None:
        self.network, self.symmetry, self.stored = network, symmetry, stored
        self.shapes = network.shapes
        self.signed = True
        self.sums = False

    def paths(self) -> Paths:
        steps: list[tuple[str, Step]] = []
        last: dict[str, int] = {}
        for i, (value, shape) in enumerate(self.network.inputs.items()):
            steps.append((value, Start(tuple(n or 1 for n in shape), f"in {i}")))
        behind: set[str] = set()
        for op in self.network.ops:
            if op.name in behind:
                continue
            norm = self._norm_behind(op) if self.stored else None
            if norm is not None:
                behind.add(norm.name)
            last.update(dict.fromkeys(op.inputs, len(steps)))
            steps.append(((norm or op).output, self._step(op, norm)))
        kept = {v: i for v, i in last.items() if v not in self.network.outputs}
        keys = ALL if self.signed else EVEN
        return Paths(tuple(steps), self.network.outputs, affine_depth(self.network), keys, kept, self.sums)

    def _step(self, op: Op, norm: Op | None) -> Step:
        if op.kind in _AFFINE:
            kernel = self.network.tensors[op.params["kernel"]]
            if op.kind == "grouped_conv" and kernel.shape[1] != self.shapes[op.inputs[0]][channel_axis(op)]:
                raise NoPathsError(op.kind)
            centred = self.stored and any(kind_of(r).blind_axis(r) is not None for r in self._readers(norm or op))
            self.sums |= centred or norm is not None
            return Affine(op, self._averaged(op), norm, centred)
        if op.kind == "depthwise_conv":
            self.sums |= norm is not None
            return Depthwise(op, self._averaged(op), norm)
        if op.kind == "scale_shift":
            return Along(op, "scale", "shift", int(op.attrs.get("axis", -1)) % len(self.shapes[op.output]))
        if op.kind in _NORMS:
            return self._normed(op)
        if op.kind == "embedding":
            return Embedding(op)
        if op.kind == "prelu":
            return Slopes(op)
        if op.kind in _SUMS:
            return Joined(op)
        if op.kind in _SLIDING:
            self._same_gauges(op, channel_axis(op))
            return Pooled(op, self._averaged(op), len(self.shapes[op.output]) < len(self.shapes[op.inputs[0]]))
        if op.kind in ("flatten", "reshape"):
            return Carried(op, (self._full(op),))
        if op.kind in _MOVED:
            return Carried(op)
        if op.kind == "concat":
            return self._concat(op)
        if not op.params and len(op.inputs) == 1 and self._same_shape(op) and op.kind != "opaque":
            self._same_gauges(op)
            return Identity(op)
        raise NoPathsError(op.kind)

    def _readers(self, op: Op) -> tuple[Op, ...]:
        return self.network.readers[op.output]

    def _same_shape(self, op: Op) -> bool:
        return self.shapes[op.inputs[0]] == self.shapes[op.output]

    def _normed(self, op: Op) -> Step:
        """A norm is the identity, as no scale comes through it; then its gains and shifts."""
        if any(self._gauges(op.inputs[0], i, "positive") for i in range(len(self.shapes[op.inputs[0]]))):
            raise NoPathsError(op.kind)
        axes = op.attrs.get("axes", [op.attrs.get("axis", -1)])
        if len(axes) != 1:
            raise NoPathsError(op.kind)
        return Along(op, "gamma", "beta", int(axes[0]) % len(self.shapes[op.output]))

    def _concat(self, op: Op) -> Step:
        rank = len(self.shapes[op.output])
        own = int(op.attrs.get("axis", -1)) % rank
        held = [i for i in range(rank) if i != own and not any(self._moves(v, i) for v in op.inputs)]
        return Carried(op, (), tuple(held))

    def _full(self, op: Op) -> tuple[int, ...]:
        """The shape of what comes in, with at most one open size, which what goes out tells."""
        came, left = self.shapes[op.inputs[0]], self.shapes[op.output]
        known = prod(n for n in came if n is not None)
        if None in came and (came.count(None) > 1 or None in left or not known):
            raise NoPathsError(op.kind)
        return tuple(prod(m or 1 for m in left) // known if n is None else n for n in came)

    def _moves(self, value: str, axis: int) -> bool:
        return any(isinstance(leaf, Use) for leaf in leaves(self.symmetry.values[value][axis].axis))

    def _averaged(self, op: Op) -> tuple[int, ...]:
        """The axes of what comes in that paths are averaged over: those over which a window slides, or nothing moves."""
        rank = len(self.shapes[op.inputs[0]])
        own = rank - 1 if op.kind == "dense" else channel_axis(op) % rank
        others = [i for i in range(rank) if i != own]
        moving = [i for i in others if self._moves(op.inputs[0], i)]
        if moving and op.kind != "dense":
            raise NoPathsError(op.kind)
        return tuple(i for i in others if i not in moving)

    def _gauges(self, value: str, axis: int, kind: str) -> dict[str, int | float]:
        found = gauges_of(self.symmetry.values[value][axis].axis)
        return {g: e for g, e in found.items() if self.symmetry.gauges[g].kind == kind and e}

    def _same_gauges(self, op: Op, axis: int | None = None) -> None:
        """Raise where the identity would not be invariant; a sign that ends here ends all signed sums."""
        came, rank, left = op.inputs[0], len(self.shapes[op.inputs[0]]), len(self.shapes[op.output])
        pairs = [(i, i) for i in range(rank)] if axis is None else [(axis % rank, axis % rank if left == rank else -1)]
        for i, j in pairs:
            if self._gauges(came, i, "positive") != self._gauges(op.output, j, "positive"):
                raise NoPathsError(op.kind)
            if self._gauges(came, i, "sign") != self._gauges(op.output, j, "sign"):
                self.signed = False

    def _norm_behind(self, op: Op) -> Op | None:
        """The batch norm that alone reads an affine op."""
        readers = self._readers(op)
        if op.kind in ("dense", "conv", "depthwise_conv") and len(readers) == 1 and op.output not in self.network.outputs:
            rank = len(self.shapes[op.output])
            own = rank - 1 if op.kind == "dense" else channel_axis(op) % rank
            if readers[0].kind == "batch_norm" and int(readers[0].attrs.get("axis", -1)) % rank == own:
                return readers[0]
        if op.kind == "batch_norm":
            raise NoPathsError("a batch norm on its own")
        return None
