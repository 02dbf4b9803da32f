"""One call of a Keras layer, and the graph that calls add to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from canon.errors import CorruptFile, ShapeConflict, UnsupportedOp
from canon.formats.common import Place, load, to_memory
from canon.formats.keras_groups import Entry, Era
from canon.ops import Op, kind_of
from canon.ops.base import Array, Shape
from canon.run import Stored

REFUSAL = "canon does not guess which units a layer it does not know leaves free."
PLAIN = ("relu", "tanh", "sigmoid", "softsign", "selu", "softplus", "linear")


@dataclass
class Graph:
    """A network while it is read."""

    era: Era
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)
    layout: dict[str, Stored] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    inputs: dict[str, Shape] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """In the order of first mention, each once."""
    flips_unknown: bool = False

    def note(self, line: str) -> None:
        """Add a note, once."""
        if line not in self.notes:
            self.notes.append(line)

    def add(self, op: Op) -> None:
        """Add an op; its output's shape follows at once, so that every fault names the layer where it arises."""
        params = {role: self.tensors[t].shape for role, t in op.params.items()}
        self.shapes[op.output] = kind_of(op).shape(op, [self.shapes[v] for v in op.inputs], params)
        self.ops.append(op)


@dataclass
class Call:
    """A layer applied to values: `layer` its path, `name` that with @k on its k-th further call."""

    graph: Graph
    layer: str
    name: str
    cls: str
    cfg: Mapping[str, Any]
    inputs: tuple[str, ...]
    weights: Mapping[str, Entry]

    # configuration

    def refuse(self, what: str) -> UnsupportedOp:
        """The error for what canon cannot honour."""
        return UnsupportedOp("", f"layer {self.layer!r} of class {self.cls} {what}", REFUSAL)

    def only(self, **wanted: Any) -> None:
        """Raise UnsupportedOp where an option has another value than the one canon honours."""
        for key, value in wanted.items():
            if self.cfg.get(key, value) not in (value, None):
                raise self.refuse(f"with {key}={self.cfg[key]!r} is not supported")

    def number(self, *keys: str, default: float) -> float:
        """An option that is a number, however it was written."""
        for key in keys:
            value = self.cfg.get(key)
            if isinstance(value, Mapping):
                value = value.get("value")
            while isinstance(value, list) and len(value) == 1:
                value = value[0]
            if isinstance(value, int | float):
                return float(value)
            if value is not None:
                raise self.refuse(f"with {key}={self.cfg[key]!r} is not supported")
        return default

    def sizes(self, key: str, rank: int, default: Any = 1) -> list[int]:
        """An option with a number per spatial axis, given as one or as several."""
        value = self.cfg.get(key)
        value = default if value is None else value
        value = [value] * rank if isinstance(value, int) else [int(v) for v in value]
        if len(value) != rank:
            raise CorruptFile(f"layer {self.layer!r}", f"has {key} {value} for {rank} spatial axes")
        return value

    def axis(self, value: Any, default: int = -1) -> int:
        """An axis as ops count them: without the batch, which Keras counts as axis 0."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        value = default if value is None else value
        if not isinstance(value, int) or value == 0:
            raise self.refuse(f"with axis={value!r} is not supported")
        return value - 1 if value > 0 else value

    @property
    def channels(self) -> str:
        """Where the channels of its values are: "last" or "first"."""
        found = self.cfg.get("data_format") or "channels_last"
        if found not in ("channels_last", "channels_first"):
            raise self.refuse(f"with data_format={found!r} is not supported")
        return str(found)[9:]

    @property
    def shape(self) -> Shape:
        """Shape of its only input, without batch."""
        if len(self.inputs) != 1:
            raise CorruptFile(f"layer {self.layer!r}", f"of class {self.cls} has {len(self.inputs)} inputs")
        return self.graph.shapes[self.inputs[0]]

    # tensors

    def tensor(self, role: str, wanted: Sequence[int | None] | None = None, place: tuple[Any, ...] = ()) -> str:
        """Load a weight once, whatever the number of calls; its tensor's name.

        wanted: the stored shape that the configuration asks for, None where it leaves it open;
        place: axes, shape and flip of `Place`.
        """
        name = f"{self.layer}/{role}"
        entry = self.weights[role]
        if wanted is not None:
            self.fits(role, entry.dataset.shape, wanted)
        if name not in self.graph.tensors:
            here = Place(entry.path, *place)
            self.graph.layout[name] = here
            self.graph.tensors[name] = to_memory(load(entry.dataset), here)
        return name

    def fits(self, role: str, found: Sequence[int], wanted: Sequence[int | None]) -> None:
        """Raise ShapeConflict with both shapes."""
        if len(found) != len(wanted) or any(w not in (None, f) for f, w in zip(found, wanted, strict=True)):
            asked = ", ".join("any" if n is None else str(n) for n in wanted)
            raise ShapeConflict(
                f"layer {self.layer!r}", f"its {role} is stored as {tuple(found)}, the configuration asks for ({asked})"
            )

    # ops

    def op(self, kind: str, params: Mapping[str, str] | None = None, *, activated: bool = False, **attrs: Any) -> None:
        """Add the layer's op, and its `activation` after it where it has one."""
        act = activation(self, self.cfg.get("activation")) if activated else None
        value = self.name if act is None else f"{self.name}/pre"
        self.graph.add(Op(kind, self.name, self.inputs, value, params or {}, attrs))
        if act is not None:
            self.graph.add(Op(act[0], f"{self.name}/{act[0]}", (value,), self.name, {}, act[1]))


def activation(call: Call, found: Any) -> tuple[str, dict[str, Any]] | None:
    """Kind and attributes of a nonlinearity as Keras names it; None for the identity."""
    if isinstance(found, Mapping):  # Keras 3 and late Keras 2 write functions and layers as objects
        if found.get("class_name") == "function" and isinstance(found.get("config"), str):
            found = found["config"]
        elif found.get("class_name") in ("ReLU", "LeakyReLU", "ELU", "Softmax"):
            raise call.refuse(f"with a {found['class_name']} layer as its activation is not supported")
    if found is None or found == "linear":
        return None
    known: dict[str, tuple[str, dict[str, Any]]] = {
        **{kind: (kind, {}) for kind in PLAIN},
        "swish": ("silu", {}),
        "silu": ("silu", {}),
        "relu6": ("relu6", {"cap": 6.0}),
        "elu": ("elu", {"alpha": 1.0}),
        "gelu": ("gelu", {"approximate": False}),
        "leaky_relu": ("leaky_relu", {"alpha": 0.2}),
        "hard_sigmoid": ("hard_sigmoid", {"slope": call.graph.era.hard_sigmoid}),
        "softmax": ("softmax", {"axis": -1}),
    }
    if not isinstance(found, str) or found not in known:
        shown = found.get("class_name") if isinstance(found, Mapping) else found
        raise call.refuse(f"with activation {shown!r} is not supported")
    return known[found]


def called(layer: str, k: int) -> str:
    """The name of a layer's k-th call."""
    return f"{layer}@{k}" if k else layer


def plural(n: int, word: str) -> str:
    """'1 tensor', '2 tensors'."""
    return f"{n} {word}" + ("" if n == 1 or re.search("s$", word) else "s")
