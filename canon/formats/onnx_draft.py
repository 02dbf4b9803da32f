"""A network while it is being put together from an ONNX graph: operations that are added, looked at, and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from canon.errors import GraphError
from canon.formats.onnx_known import Known, simplified
from canon.formats.onnx_spot import Spot, spot_of
from canon.network import Network
from canon.ops import Op, kind_of
from canon.ops.base import Array, Shape

_EXACT = (1.0, -1.0)


@dataclass
class Draft:
    """ops by what they write; shapes: of every value, batch excluded; layout: where tensors lie in the file."""

    inputs: dict[str, Shape] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    ops: dict[str, Op] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    layout: dict[str, Spot] = field(default_factory=dict)
    precision: dict[str, str] = field(default_factory=dict)
    held: dict[str, Known] = field(default_factory=dict)
    """The file's tensors that were looked at."""
    reading: dict[str, dict[str, None]] = field(default_factory=dict)
    """For each value, the outputs of the ops that read it."""
    _names: set[str] = field(default_factory=set)
    _spots: dict[Spot, str] = field(default_factory=dict)

    # adding

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        output: str,
        name: str = "",
        params: Mapping[str, str] | None = None,
        **attrs: Any,
    ) -> str:
        """Add an operation; returns the value that it writes: `output`, or another name where that is taken."""
        output = self._unused(output)
        op = Op(kind, self._named(name or output), tuple(inputs), output, dict(params or {}), attrs)
        self.put(op)
        return output

    def put(self, op: Op) -> None:
        """Put an operation where its output is, in place of the one that wrote it before. Raises ShapeConflict."""
        params = {role: self.tensors[t].shape for role, t in op.params.items()}
        shape = kind_of(op).shape(op, [self.shapes[v] for v in op.inputs], params)
        if op.output in self.ops:
            self.drop(op.output)
        self.ops[op.output] = op
        self.shapes[op.output] = shape
        for v in op.inputs:
            self.reading.setdefault(v, {})[op.output] = None

    def drop(self, output: str) -> None:
        """Take an operation out; what reads its output has to be seen to."""
        op = self.ops.pop(output)
        for v in op.inputs:
            self.reading.get(v, {}).pop(output, None)

    def _unused(self, value: str) -> str:
        k, name = 1, value
        while name in self.shapes:
            name, k = f"{value}:{k}", k + 1
        return name

    def _named(self, name: str) -> str:
        """A name for an operation that no other has, and that can be the name of a dataset."""
        name = plain(name)
        k, found = 1, name
        while found in self._names:
            found, k = f"{name}_{k}", k + 1
        self._names.add(found)
        return found

    def tensor(self, known: Known, hint: str, factor: float = 1.0, power: int = 1, like: Spot | None = None) -> str:
        """The name of a parameter made of what is known; the same for the same view of a stored tensor."""
        spot = like or spot_of(known, factor, power)
        if spot is not None and spot in self._spots:
            return self._spots[spot]
        array = known.array if like is not None else Spot("", factor=factor, power=power).values(known.array)
        stem = plain(spot.path if spot is not None else hint)
        k, name = 1, stem
        while name in self.tensors:
            name, k = f"{stem}.{k}", k + 1
        self.tensors[name] = np.asarray(array)
        if spot is not None:
            self.layout[name] = spot
            self._spots[spot] = name
        if known.precision and (factor in _EXACT and power == 1):
            self.precision[name] = known.precision
        return name

    def laid(self, tensor: str, shape: Sequence[int]) -> str:
        """A parameter in another shape: the same name where only one operation uses it, else a new one."""
        array = self.tensors[tensor]
        if array.shape == tuple(shape):
            return tensor
        spot = self.layout.get(tensor)
        if spot is not None:
            spot = self._laid(spot, tuple(shape))
            if spot in self._spots:
                return self._spots[spot]
        uses = sum(t == tensor for op in self.ops.values() for t in op.params.values())
        k, name = 1, tensor
        while uses > 1 and name in self.tensors:
            name, k = f"{tensor}.{k}", k + 1
        self.tensors[name] = array.reshape(shape)
        if spot is not None:
            self._spots.pop(self.layout[tensor], None) if name == tensor else None
            self.layout[name] = spot
            self._spots[spot] = name
        if tensor in self.precision:
            self.precision[name] = self.precision[tensor]
        return name

    def copy(self, tensor: str, name: str) -> str:
        """The same parameter under a name of its own."""
        k, found = 1, name
        while found in self.tensors:
            found, k = f"{name}.{k}", k + 1
        for held in self._held():
            if tensor in held:
                held[found] = held[tensor]
        return found

    def _held(self) -> tuple[dict[str, Any], ...]:
        return self.tensors, self.layout, self.precision

    def _laid(self, spot: Spot, shape: tuple[int, ...]) -> Spot:
        steps = simplified((*spot.steps, ("reshape", shape)))
        if spot.plus is not None:
            return replace(spot, steps=steps, plus=simplified((*spot.plus, ("reshape", shape))))
        if steps == (("reshape", self.held[spot.path].array.shape),):
            steps = ()
        return replace(spot, steps=steps, shape=(-1,) if steps else None)

    # looking

    def writer(self, value: str, *kinds: str) -> Op | None:
        """The operation that writes a value, if it is of one of these kinds (of any where none is named)."""
        op = self.ops.get(value)
        return op if op is not None and (not kinds or op.kind in kinds) else None

    def readers(self, value: str) -> list[Op]:
        """The operations that read a value."""
        return [self.ops[v] for v in self.reading.get(value, ())]

    def alone(self, value: str) -> bool:
        """Whether one operation reads a value, and it is no output."""
        return len(self.reading.get(value, ())) == 1 and value not in self.outputs

    def only(self, value: str, *kinds: str) -> Op | None:
        """Its writer, of these kinds, where nothing but one operation reads the value."""
        return self.writer(value, *kinds) if self.alone(value) else None

    # replacing

    def redirect(self, old: str, new: str) -> None:
        """Whoever read `old` reads `new`."""
        for op in self.readers(old):
            self.put(replace(op, inputs=tuple(new if v == old else v for v in op.inputs)))
        self.outputs = [new if v == old else v for v in self.outputs]

    def prune(self) -> None:
        """Take out what no output hangs on, and tensors that nothing uses."""
        kept: dict[str, None] = {}
        stack = list(self.outputs)
        while stack:
            v = stack.pop()
            if v in kept or v not in self.ops:
                continue
            kept[v] = None
            stack += self.ops[v].inputs
        for output in [v for v in self.ops if v not in kept]:
            self.drop(output)
        used = {t for op in self.ops.values() for t in op.params.values()}
        for held in (self.tensors, self.layout, self.precision):
            for name in [t for t in held if t not in used]:
                del held[name]

    def _plainly_named(self) -> None:
        """Give parameters the names of what they are stored as, where no other has it any more."""
        for name, spot in list(self.layout.items()):
            stem = plain(spot.path)
            if name == stem or stem in self.tensors:
                continue
            for held in self._held():
                if name in held:
                    held[stem] = held.pop(name)
            for op in [op for op in self.ops.values() if name in op.params.values()]:
                self.put(replace(op, params={r: stem if t == name else t for r, t in op.params.items()}))

    def network(self) -> Network:
        """The network. Raises GraphError, ShapeConflict."""
        self.prune()
        self._plainly_named()
        if not self.outputs:
            raise GraphError("", "no output hangs on anything that is computed")
        ops = tuple(self.ops.values())
        order = dict.fromkeys(
            t for op in Network(self.tensors, ops, self.inputs, tuple(self.outputs)).ops for t in op.params.values()
        )
        return Network({t: self.tensors[t] for t in order}, ops, self.inputs, tuple(self.outputs), dict(self.precision))


def plain(name: str) -> str:
    """A name that any format can keep: no empty parts between slashes, none that leads elsewhere."""
    parts = [p for p in name.replace("\0", "").split("/") if p not in ("", ".", "..")]
    return "/".join(parts) or "unnamed"


def walk(ops: Iterable[Op]) -> list[Op]:
    """A list to go through while the draft changes."""
    return list(ops)
