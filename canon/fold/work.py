"""A network while it is being folded: mutable, with the questions that every fold asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array, Shape
from canon.ops.geometry import channel_axis, pads_zero, spatial

AFFINE = ("dense", "conv", "depthwise_conv", "scale_shift")


@dataclass(frozen=True)
class Step:
    """One thing that was folded: what ("batch norm", "linear", "softmax shift", "bias", "dead", "constant"), where, how."""

    what: str
    where: str
    detail: str = ""
    units: tuple[int, ...] = ()
    into: str = ""
    """The op that holds it now, where there is one."""


@dataclass
class Work:
    """ops, tensors and outputs that folds rewrite in place; magnitudes: for tensors into which something was summed, the
    sum of absolute values (other tensors: their own); record: what was done.
    """

    ops: list[Op]
    tensors: dict[str, Array]
    inputs: Mapping[str, Shape]
    outputs: list[str]
    shapes: dict[str, Shape]
    magnitudes: dict[str, Array] = field(default_factory=dict)
    record: list[Step] = field(default_factory=list)

    @classmethod
    def of(cls, network: Network) -> Work:
        """Work on a network, whose own tensors are never changed."""
        return cls(list(network.ops), dict(network.tensors), network.inputs, list(network.outputs), dict(network.shapes))

    def network(self) -> Network:
        """The network as it stands."""
        used = {t for op in self.ops for t in op.params.values()}
        return Network({n: t for n, t in self.tensors.items() if n in used}, tuple(self.ops), self.inputs, tuple(self.outputs))

    def writer(self, value: str) -> Op | None:
        """The op that computes a value."""
        return next((op for op in self.ops if op.output == value), None)

    def readers(self, value: str) -> list[Op]:
        """The ops that read a value."""
        return [op for op in self.ops if value in op.inputs]

    def only_reader(self, value: str) -> Op | None:
        """The one op that reads a value that is no output, once."""
        found = self.readers(value)
        one = len(found) == 1 and found[0].inputs.count(value) == 1 and value not in self.outputs
        return found[0] if one else None

    def unshared(self, op: Op) -> bool:
        """Whether no other op uses this op's tensors."""
        mine = set(op.params.values())
        return not any(other.name != op.name and mine & set(other.params.values()) for other in self.ops)

    def swap(self, old: Op, new: Op | None) -> None:
        """Put one op in the place of another, or nothing."""
        at = next(i for i, op in enumerate(self.ops) if op.name == old.name)
        self.ops[at : at + 1] = [] if new is None else [new]
        if new is not None:
            self.shapes[new.output] = self.shapes.get(new.output, self.shapes[old.output])

    def bypass(self, op: Op, source: str) -> None:
        """Remove an op; whoever read its output reads `source`."""
        self.swap(op, None)
        for other in list(self.ops):
            if op.output in other.inputs:
                self.swap(other, replace(other, inputs=tuple(source if v == op.output else v for v in other.inputs)))
        self.outputs = [source if v == op.output else v for v in self.outputs]

    def get(self, op: Op, role: str) -> tuple[Array, Array] | None:
        """A parameter in float64 with its magnitude."""
        name = op.params.get(role)
        if name is None:
            return None
        t = np.asarray(self.tensors[name], np.float64)
        return t, self.magnitudes.get(name, np.abs(t))

    def put(self, op: Op, role: str, value: Array, magnitude: Array) -> Op:
        """Set a parameter (a new one where there was none) and its magnitude; returns the op that now stands there."""
        name = op.params.get(role) or f"{op.name}/{role}"
        self.tensors[name], self.magnitudes[name] = value, magnitude
        if role in op.params:
            return op
        new = replace(op, params={**op.params, role: name})
        self.swap(op, new)
        return new

    def channels(self, op: Op) -> int:
        """Index, in the op's output, of the axis that its bias runs along."""
        rank = len(self.shapes[op.output])
        if op.kind == "dense":
            return rank - 1
        if op.kind == "scale_shift":
            return int(op.attrs.get("axis", -1)) % rank
        return channel_axis(op) % rank

    def takes_constants(self, op: Op) -> bool:
        """Whether a constant added to the input can be moved into this affine op's bias: no zeros padded in."""
        if op.kind not in AFFINE or not self.unshared(op):
            return False
        if op.kind in ("dense", "scale_shift"):
            return True
        return not pads_zero(op, spatial(op, self.shapes[op.inputs[0]]), self.tensors[op.params["kernel"]].shape[2:])
