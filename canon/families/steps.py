"""Steps of which a family's table is made: each takes a value and adds the ops that come next.

`at` is the front of the names inside a block ("layer1.0."). A name may be given in several spellings, "norm1|norm.1": the
first of which the file has a tensor is meant. Values of images are (channels, height, width), those of tokens (positions,
units), as in the torch modules that the tables describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from canon.errors import ShapeConflict
from canon.families.draft import Draft
from canon.families.functions import NAMED


class Step(Protocol):
    """A step: `run` returns the name of the value that comes out."""

    def run(self, d: Draft, x: str, at: str) -> str:
        """Add ops after the value x; at: the front of all names. Raises ShapeConflict naming the key that does not fit."""


Steps = tuple[Step, ...]


def follow(d: Draft, x: str, at: str, steps: Steps) -> str:
    """All steps one after the other."""
    for step in steps:
        x = step.run(d, x, at)
    return x


def spelled(d: Draft, at: str, names: str, ending: str = ".weight") -> str:
    """The spelling of a name that the file has, the first where it has none."""
    found = [at + name for name in names.split("|")]
    return next((name for name in found if d.has(name + ending)), found[0])


def label(at: str, word: str) -> str:
    """The name of an op without parameters: of its block, and what it does."""
    return f"{at.rstrip('.')}/{word}" if at else word


def number(d: Draft, told: float | str) -> float:
    """A number, or that of a setting."""
    return float(d.told[told]) if isinstance(told, str) else told


@dataclass(frozen=True)
class Image:
    """The input: an image with as many channels as a first kernel reads. size: its height and width (None: any);
    name: of the input.
    """

    first: str
    size: int | None = None
    name: str = "image"

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        shape = d.shape(spelled(d, at, self.first) + ".weight")
        if len(shape) < 3:
            raise d.unfit(spelled(d, at, self.first) + ".weight", "a convolution is expected")
        return d.input(self.name, (shape[1], *(self.size,) * (len(shape) - 2)))


@dataclass(frozen=True)
class Vector:
    """The input: as many numbers as a first kernel reads."""

    first: str
    name: str = "input"

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.input(self.name, d.shape(spelled(d, at, self.first) + ".weight")[1:])


@dataclass(frozen=True)
class Affine:
    """A dense layer or a convolution, by the rank of its kernel; depthwise or in groups where the kernel reads fewer channels.

    padding: cells on each side, "half" for half the kernel; window: the size of the kernel, where a family has it from its
    name alone (None: any); transposed: the file has (in, out), not (out, in); joint: what stands before "weight".
    """

    name: str
    stride: int = 1
    padding: int | str = "half"
    dilation: int = 1
    window: int | None = None
    transposed: bool = False
    joint: str = "."

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        name = spelled(d, at, self.name, f"{self.joint}weight")
        key = f"{name}{self.joint}weight"
        if len(d.shape(key)) < 2:
            raise d.unfit(key, "a kernel is expected")
        if self.window is not None and set(d.shape(key)[2:]) != {self.window}:
            raise d.unfit(key, f"a window of {self.window} is expected")
        params = {"kernel": d.tensor(key, axes=(1, 0) if self.transposed else None)}
        if d.has(f"{name}{self.joint}bias"):
            params["bias"] = d.tensor(f"{name}{self.joint}bias")
        return affine(d, name, x, params, self.stride, self.padding, self.dilation)


def affine(
    d: Draft, name: str, x: str, params: Mapping[str, str], stride: int = 1, padding: int | str = "half", dilation: int = 1
) -> str:
    """A dense layer or a convolution with tensors that are there already."""
    _, inner, *window = d.sizes[params["kernel"]]
    if not window:
        return d.add("dense", name, [x], params)
    channels = d.width(x, 0)
    lows = [dilation * (k - 1) // 2 if padding == "half" else int(padding) for k in window]
    attrs: dict[str, Any] = {
        "strides": [stride] * len(window), "padding": [[n, n] for n in lows], "dilation": [dilation] * len(window),
        "channels": "first",
    }  # fmt: skip
    if inner == channels:
        return d.add("conv", name, [x], params, **attrs)
    if inner == 1:
        return d.add("depthwise_conv", name, [x], params, **attrs)
    if channels % inner:
        raise ShapeConflict(params["kernel"], f"reads {inner} channels of {channels}")
    return d.add("grouped_conv", name, [x], params, groups=channels // inner, **attrs)


@dataclass(frozen=True)
class Norm:
    """A norm with the parameters that the file has. kind: "batch_norm", "layer_norm" or "rms_norm"; eps and offset, which is
    added to gamma: numbers, or names of settings; axis: of the units (None: the channels of an image, the last elsewhere).
    """

    name: str
    kind: str = "batch_norm"
    eps: float | str = 1e-5
    offset: float | str = 0.0
    axis: int | None = None

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        batch = self.kind == "batch_norm"
        name = spelled(d, at, self.name, ".running_mean" if batch else ".weight")
        params = {"mean": d.tensor(f"{name}.running_mean"), "variance": d.tensor(f"{name}.running_var")} if batch else {}
        for role, word in (("gamma", "weight"), ("beta", "bias")):
            if d.has(f"{name}.{word}"):
                params[role] = d.tensor(f"{name}.{word}")
        if not params:
            raise ShapeConflict(f"{name}.weight", "is not there")
        axis = self.axis if self.axis is not None else 0 if len(d.values[x]) > 2 else -1
        attrs: dict[str, Any] = {"axis": axis} if batch else {"axes": [axis]}
        if offset := number(d, self.offset):
            attrs["offset"] = offset
        return d.add(self.kind, name, [x], params, eps=number(d, self.eps), **attrs)


@dataclass(frozen=True)
class Act:
    """A nonlinearity: a name of functions.NAMED, or of a setting that holds one. One that is not known is noted."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        told = d.told.get(self.name, self.name)
        if told not in NAMED:
            if told and told not in d.unknown:
                d.unknown.append(told)
            return d.add("unknown_activation", f"{x}/activation", [x])
        for kind, attrs in NAMED[told]:
            x = d.add(kind, label(at, kind), [x], **attrs)
        return x


@dataclass(frozen=True)
class PRelu:
    """A ReLU with a slope below zero for each channel or unit."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        key = f"{at}{self.name}.weight"
        (n,) = d.shape(key) if len(d.shape(key)) == 1 else (0,)
        alpha = d.tensor(key, shape=(n, *(1,) * (len(d.values[x]) - 1)))
        return d.add("prelu", at + self.name, [x], {"alpha": alpha})


@dataclass(frozen=True)
class Pool:
    """A pooling. kind: "max_pool", "avg_pool"; ceil: windows that begin inside but end outside count as well."""

    kind: str
    size: int
    stride: int
    padding: int = 0
    ceil: bool = False

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        rank = len(d.values[x]) - 1
        padding: Any = "ceil" if self.ceil else [[self.padding] * 2] * rank
        attrs = {"pool": [self.size] * rank, "strides": [self.stride] * rank, "padding": padding, "channels": "first"}
        return d.add(self.kind, label(at, self.kind), [x], **attrs)


@dataclass(frozen=True)
class GlobalPool:
    """The mean over all positions of an image."""

    keepdims: bool = False

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.add("global_avg_pool", label(at, "pool"), [x], channels="first", keepdims=self.keepdims)


@dataclass(frozen=True)
class Plain:
    """An op without parameters. attrs: those of the op."""

    kind: str
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.add(self.kind, label(at, self.kind), [x], **self.attrs)


@dataclass(frozen=True)
class Scale:
    """A parameter for each channel or unit that multiplies it (layer scale)."""

    name: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        key = at + self.name
        rank = len(d.values[x])
        shape = (*(prod(d.shape(key)),), *(1,) * (rank - 1)) if rank > 2 else (*(1,) * (rank - 1), prod(d.shape(key)))
        return d.add("multiply_constant", key, [x], {"constant": d.tensor(key, shape=shape)})


@dataclass(frozen=True)
class Sum:
    """What the steps make of a value, added to it, or to what the steps of `skip` make of it."""

    steps: Steps
    skip: Steps = ()

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        skipped = follow(d, x, at, self.skip)
        return d.add("add", label(at, "add"), [follow(d, x, at, self.steps), skipped])


@dataclass(frozen=True)
class Gate:
    """A value times what the steps make of it."""

    steps: Steps

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        return d.add("multiply", label(at, "multiply"), [x, follow(d, x, at, self.steps)])


@dataclass(frozen=True)
class Concat:
    """What several rows of steps make of a value, one after the other along the channels."""

    branches: tuple[Steps, ...]

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        axis = 0 if len(d.values[x]) > 2 else -1
        return d.add("concat", label(at, "concat"), [follow(d, x, at, steps) for steps in self.branches], axis=axis)


@dataclass(frozen=True)
class Half:
    """The first or second half of the channels."""

    second: bool

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        n = d.width(x, 0)
        start, stop = (n // 2, n) if self.second else (0, n // 2)
        return d.add("slice", label(at, "half"), [x], axis=0, start=start, stop=stop)


@dataclass(frozen=True)
class If:
    """Some steps where the file has a key (or another spelling of it), others where it has not."""

    key: str
    then: Steps
    otherwise: Steps = ()

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        there = any(d.has(at + key) for key in self.key.split("|"))
        return follow(d, x, at, self.then if there else self.otherwise)


@dataclass(frozen=True)
class Residual:
    """Steps added to their input where the shape stays (and nothing is skipped where it does not)."""

    steps: Steps
    stride: int = 1

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        y = follow(d, x, at, self.steps)
        if self.stride != 1 or d.width(x, 0) != d.width(y, 0):
            return y
        return d.add("add", label(at, "add"), [y, x])


@dataclass(frozen=True)
class Repeat:
    """Steps for each block of names such as "layer1.{}.": the first, whose number is `start`, may have steps of its own."""

    pattern: str
    steps: Steps
    first: Steps | None = None
    start: int = 0

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        outer = d.index
        n = d.count(at + self.pattern, self.start)
        if not n:
            raise ShapeConflict(at + self.pattern.format(self.start), "is not there")
        for d.index in range(n):
            steps = self.first if self.first is not None and d.index == 0 else self.steps
            x = follow(d, x, at + self.pattern.format(self.start + d.index), steps)
        d.index = outer
        return x


@dataclass(frozen=True)
class Within:
    """Steps under one of several fronts of names: the first under which the file has the key."""

    fronts: tuple[str, ...]
    key: str
    steps: Steps

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        front = next((f for f in self.fronts if d.has(at + f + self.key)), self.fronts[0])
        return follow(d, x, at + front, self.steps)


@dataclass(frozen=True)
class Output:
    """Steps whose value the network gives out; what follows goes on from the value before them."""

    steps: Steps = ()

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        d.output(follow(d, x, at, self.steps))
        return x
