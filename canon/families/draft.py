"""A graph while it is being written down: ops one after the other, the shapes of their values, and which keys are used.

A step of a table adds ops to a `Draft`. Shapes are worked out at once, so that the first key that does not fit is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canon.errors import ShapeConflict
from canon.ops import Op, kind_of
from canon.ops.base import Shape

Shapes = Mapping[str, tuple[int, ...]]
"""Keys of a file with the shapes of their arrays."""


@dataclass(frozen=True)
class Source:
    """Where a tensor comes from: arrays of the file one after the other along an axis.

    keys: in order; cut: (axis, start, stop) of the stored array, where it is a stretch of it; axes: the permutation that
    follows (None: none); shape: the shape of each part after that (None: as it is); along: the axis on which parts follow.
    """

    keys: tuple[str, ...]
    cut: tuple[int, int, int] | None = None
    axes: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    along: int = 0


class Draft:
    """shapes: the keys of the file; told: what names and shapes cannot tell, by name.

    index: the number of the block that is being written (-1 outside of any); memory: values that steps hand on to others.
    """

    def __init__(self, shapes: Shapes, told: Mapping[str, Any]) -> None:
        self.shapes, self.told = shapes, told
        self.ops: list[Op] = []
        self.values: dict[str, Shape] = {}
        self.inputs: dict[str, Shape] = {}
        self.outputs: list[str] = []
        self.sources: dict[str, Source] = {}
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.used: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        self.unknown: list[str] = []
        self.notes: list[str] = []
        self.memory: dict[str, str] = {}
        self.index = -1
        self._names: set[str] = set()

    # keys

    def has(self, *keys: str) -> bool:
        """Whether the file holds all of these."""
        return all(key in self.shapes for key in keys)

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of an array of the file; ShapeConflict where it is not there."""
        if key not in self.shapes:
            raise ShapeConflict(key, "is not there")
        return self.shapes[key]

    def count(self, pattern: str, start: int = 0) -> int:
        """How many blocks there are of names such as "layers.{}.": numbers from `start` on, without a gap."""
        front, back = (re.escape(part) for part in pattern.split("{}"))
        found = {int(m[1]) for key in self.shapes if (m := re.match(f"{front}([0-9]{{1,6}}){back}", key))}
        n = start
        while n in found:
            n += 1
        return n - start

    # tensors

    def tensor(
        self,
        *keys: str,
        name: str = "",
        cut: tuple[int, int, int] | None = None,
        axes: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        along: int = 0,
    ) -> str:
        """The name of a tensor from one key (its name by default) or several; see Source. ShapeConflict where they differ."""
        name = name or keys[0]
        source = Source(keys, cut, axes, shape, along)
        if name in self.sources:
            if self.sources[name] != source:
                raise ShapeConflict(name, "is used in two ways")
            return name
        parts = [self._part(key, source) for key in keys]
        for key, part in zip(keys, parts, strict=True):
            if [n for i, n in enumerate(part) if i != along] != [n for i, n in enumerate(parts[0]) if i != along]:
                raise ShapeConflict(key, f"has shape {self.shapes[key]}, and {keys[0]} has {self.shapes[keys[0]]}")
            self.used[key] = name
        if len(keys) > 1:
            total = sum(part[along] for part in parts)
            parts[0] = (*parts[0][:along], total, *parts[0][along + 1 :])
        self.sources[name], self.sizes[name] = source, parts[0]
        return name

    def _part(self, key: str, source: Source) -> tuple[int, ...]:
        shape = self.shape(key)
        if source.cut is not None:
            axis, start, stop = source.cut
            if axis >= len(shape) or stop > shape[axis]:
                raise ShapeConflict(key, f"has shape {shape}")
            shape = (*shape[:axis], stop - start, *shape[axis + 1 :])
        if source.axes is not None:
            if len(source.axes) != len(shape):
                raise ShapeConflict(key, f"has shape {shape}, where {len(source.axes)} axes are expected")
            shape = tuple(shape[a] for a in source.axes)
        return shape if source.shape is None else source.shape

    # values

    def input(self, name: str, shape: Shape) -> str:
        """An input of the network."""
        if name not in self.inputs:
            self.inputs[name] = self.values[name] = shape
        return name

    def add(self, kind: str, name: str, inputs: Sequence[str], params: Mapping[str, str] | None = None, **attrs: Any) -> str:
        """An op, and the name of the value that it computes, which is its own; ShapeConflict where shapes do not fit."""
        stem, n = name or kind, 1
        name = stem
        while name in self._names or name in self.inputs:
            n += 1
            name = f"{stem}_{n}"
        op = Op(kind, name, tuple(inputs), name, dict(params or {}), attrs)
        sizes = {role: self.sizes[t] for role, t in op.params.items()}
        self.values[name] = kind_of(op).shape(op, [self.values[v] for v in op.inputs], sizes)
        self._names.add(name)
        self.ops.append(op)
        return name

    def output(self, value: str) -> None:
        """A value that the network gives out."""
        if value not in self.outputs:
            self.outputs.append(value)

    def width(self, value: str, axis: int = -1) -> int:
        """The size of a value along an axis; ShapeConflict where it is open."""
        n = self.values[value][axis]
        if n is None:
            raise ShapeConflict(value, "is of open size where its width is needed")
        return n

    def unfit(self, key: str, what: str) -> ShapeConflict:
        """The error of a key that does not fit, with its shape."""
        return ShapeConflict(key, f"of shape {self.shape(key)}: {what}")
