"""One call of a Keras layer, and the graph that calls add to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from canon.errors import CorruptFile, ShapeConflict, UnsupportedOp
from canon.formats.common import load
from canon.formats.common_layout import Place, Stack, to_memory
from canon.formats.keras_groups import Entry, Era
from canon.ops import Op, kind_of
from canon.ops.base import Array, Shape
from canon.run import Stored

UNKNOWN_MASK = ""
MOST_OPS = 50_000
REFUSAL = "canon does not guess which units a layer it does not know leaves free."
PLAIN = ("relu", "tanh", "sigmoid", "softsign", "selu", "softplus", "linear", "silu", "exp", "hard_tanh", "hard_swish",
         "mish", "log_sigmoid")  # fmt: skip


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
    masks: dict[str, str] = field(default_factory=dict)
    """The step mask that travels beside a value; UNKNOWN_MASK where several met."""
    flips_unknown: list[str] = field(default_factory=list)
    """Tensors that Theano would have flipped, if it was Theano."""
    counted: list[None] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Add a note, once."""
        if line not in self.notes:
            self.notes.append(line)

    def count(self) -> None:
        """Count an op, or a model called: models that call models twice, and so on, would go on for ever."""
        self.counted.append(None)
        if len(self.counted) > MOST_OPS:
            raise CorruptFile("", f"a configuration that unfolds into more than {MOST_OPS:,} operations")

    def add(self, op: Op) -> None:
        """Add an op; its output's shape follows at once, so that every fault names the layer where it arises."""
        self.count()
        params = {role: self.tensors[t].shape for role, t in op.params.items()}
        self.shapes[op.output] = kind_of(op).shape(op, [self.shapes[v] for v in op.inputs], params)
        self.ops.append(op)

    def aside(self, inputs: Mapping[str, Shape]) -> Graph:
        """A graph that shares its tensors and notes, with other values: for what is wired apart first."""
        return replace(self, ops=[], shapes=dict(inputs), inputs=dict(inputs), masks={})


@dataclass
class Call:
    """A layer applied to values: `layer` its path, `name` that with @k on its k-th further call.

    demand: the shape its readers ask for, where one can be known.
    """

    graph: Graph
    layer: str
    name: str
    cls: str
    cfg: Mapping[str, Any]
    inputs: tuple[str, ...]
    weights: Mapping[str, Entry]
    demand: Callable[[], Shape | None] = lambda: None

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

    def stacked(self, role: str, parts: Sequence[str], wanted: Sequence[int | None], axes: tuple[int, ...]) -> str:
        """Like `tensor`, from several weights of one stored shape that follow each other along the tensor's axis 0."""
        name = f"{self.layer}/{role}"
        for part in parts:
            self.fits(part, self.weights[part].dataset.shape, wanted)
        if name not in self.graph.tensors:
            places = tuple(Place(self.weights[part].path, axes) for part in parts)
            self.graph.layout[name] = Stack(places[0].path, None, None, places)
            values = [to_memory(load(self.weights[part].dataset), at) for part, at in zip(parts, places, strict=True)]
            self.graph.tensors[name] = np.concatenate(values)
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
            self.activate(f"{self.name}/{act[0]}", value, act)

    def activate(self, name: str, value: str, act: tuple[str, Mapping[str, Any]]) -> None:
        """Add a nonlinearity that makes the layer's value; one that canon does not know is opaque and keeps the shape."""
        kind, attrs = act
        if kind == "opaque":
            attrs = {**attrs, "shape": list(self.graph.shapes[value])}
            self.graph.note(f"layer {self.layer!r} has the activation {attrs['class_name']!r}, which is opaque to canon")
        self.graph.add(Op(kind, name, (value,), self.name, {}, attrs))


def activation(call: Call, found: Any) -> tuple[str, dict[str, Any]] | None:
    """Kind and attributes of a nonlinearity as Keras names it; None for the identity.

    "opaque" with the name as class_name for one that canon does not know.
    """
    if isinstance(found, Mapping):  # Keras 3 and late Keras 2 write functions and layers as objects
        cls, cfg = found.get("class_name"), found.get("config")
        if cls == "function" and isinstance(cfg, str):
            found = cfg
        elif cls in NONLINEARITIES and isinstance(cfg, Mapping):
            return NONLINEARITIES[cls](replace(call, cfg=cfg))
        else:
            found = found.get("registered_name") or cls
    if found is None or found == "linear":
        return None
    known: dict[str, tuple[str, dict[str, Any]]] = {
        **{kind: (kind, {}) for kind in PLAIN},
        "swish": ("silu", {}),
        "exponential": ("exp", {}),
        "hard_silu": ("hard_swish", {}),
        "relu6": ("relu6", {"cap": 6.0}),
        "elu": ("elu", {"alpha": 1.0}),
        "celu": ("celu", {"alpha": 1.0}),
        "gelu": ("gelu", {"approximate": False}),
        "leaky_relu": ("leaky_relu", {"alpha": 0.2}),
        "hard_sigmoid": ("hard_sigmoid", {"slope": call.graph.era.hard_sigmoid}),
        "softmax": ("softmax", {"axis": -1}),
        "log_softmax": ("log_softmax", {"axis": -1}),
    }
    if not isinstance(found, str):
        raise call.refuse(f"has an activation that is no name ({str(found)[:40]})")
    return known.get(found, ("opaque", {"class_name": found}))


def _relu(c: Call) -> tuple[str, dict[str, Any]]:
    top, slope, threshold = (
        c.number(k, default=d) for k, d in (("max_value", float("inf")), ("negative_slope", 0.0), ("threshold", 0.0))
    )
    bounded = top < float("inf")
    if threshold or (bounded and slope) or top <= 0:
        given = {"negative_slope": slope, "threshold": threshold, "max_value": top if bounded else None}
        return "general_relu", given
    if bounded:
        return "relu6", {"cap": top}
    return ("leaky_relu", {"alpha": slope}) if slope else ("relu", {})


def _leaky(c: Call) -> tuple[str, dict[str, Any]]:
    alpha = c.number("negative_slope", "alpha", default=0.3)
    return ("leaky_relu", {"alpha": alpha}) if alpha else ("relu", {})


NONLINEARITIES: dict[str, Callable[[Call], tuple[str, dict[str, Any]]]] = {
    "ReLU": _relu,
    "LeakyReLU": _leaky,
    "ELU": lambda c: ("elu", {"alpha": c.number("alpha", default=1.0)}),
    "Softmax": lambda c: ("softmax", {"axis": c.axis(c.cfg.get("axis"))}),
    "ThresholdedReLU": lambda c: ("thresholded_relu", {"theta": c.number("theta", default=1.0)}),
}
"""Layers that are a nonlinearity without weights; other layers may have one as their activation."""


def called(layer: str, k: int) -> str:
    """The name of a layer's k-th call."""
    return f"{layer}@{k}" if k else layer


def plural(n: int, word: str) -> str:
    """'1 tensor', '2 tensors'."""
    return f"{n} {word}" + ("" if n == 1 or re.search("s$", word) else "s")
