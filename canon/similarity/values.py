"""Which values of a network are its layers, where their units lie, and how activations of any rank become rows of units."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from math import prod
from typing import Literal

import numpy as np

from canon.errors import UsageError
from canon.network import Network
from canon.ops import kind_of
from canon.ops.activations import Elementwise
from canon.ops.base import Array, Op, Shape

Positions = Literal["samples", "units", "mean"]
"""What the places of an image or the steps of a sequence are: samples of their own, further units (flattened), or averaged
over.
"""
IN_WORDS = {
    "samples": "channels, each position a sample",
    "units": "flattened: each channel at each position a unit",
    "mean": "channels, averaged over positions",
}
_ENDS = ("batch_norm", "scale_shift", "layer_norm", "rms_norm", "group_norm", "instance_norm", "dropout", "linear", "head_norm")
"""Kinds that a layer ends with besides its activation: they write the units they read."""
_PASSING = ("softmax", "log_softmax")


def layers(network: Network) -> tuple[str, ...]:
    """The values that stand for layers: what each operation with a kernel, or sum, makes after its norm and activation;
    and the outputs.
    """
    found: dict[str, None] = {}
    for op in network.ops:
        if _begins(op, network):
            found[_end(op.output, network)] = None
    found |= dict.fromkeys(network.outputs)
    order = [v for op in network.ops for v in (op.output,) if v in found]
    return tuple(order)


def _begins(op: Op, network: Network) -> bool:
    if op.kind in _ENDS or isinstance(kind_of(op), Elementwise):
        return False
    return any(network.tensors[t].ndim > 1 for t in op.params.values()) or op.kind in ("add", "subtract")


def _end(value: str, network: Network) -> str:
    """The last value that the same units have before another operation mixes them."""
    while value not in network.outputs and len(network.readers[value]) == 1:
        op = network.readers[value][0]
        passes = op.kind in _ENDS or op.kind in _PASSING or (isinstance(kind_of(op), Elementwise) and len(op.inputs) == 1)
        if not passes or network.shapes[op.output] != network.shapes[value]:
            break
        value = op.output
    return value


def chosen(known: Sequence[str], usual: Sequence[str], patterns: Sequence[str], where: str) -> tuple[str, ...]:
    """The layers asked for: names or patterns with * and ?, "all" for every value; none given, the usual ones.

    Raises UsageError for a pattern that no value has.
    """
    if not patterns:
        return tuple(usual)
    found: dict[str, None] = {}
    for pattern in patterns:
        hits = list(known) if pattern == "all" else [v for v in known if v == pattern or fnmatch.fnmatchcase(v, pattern)]
        if not hits:
            raise UsageError(
                where, f"has no layer {pattern!r}", f"It has {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}."
            )
        found |= dict.fromkeys(hits)
    return tuple(v for v in known if v in found)


def unit_axes(network: Network) -> dict[str, int]:
    """The axis of units of every value, counted with the samples' axis: that of the channels where an operation names them,
    else that of the value before, else the last.
    """
    axes: dict[str, int] = {}
    for value, shape in network.inputs.items():
        told = [op.attrs["channels"] for op in network.readers[value] if "channels" in op.attrs]
        axes[value] = _axis(told[0] if told else "last", shape)
    for op in network.ops:
        shape = network.shapes[op.output]
        before = axes[op.inputs[0]] if op.inputs else len(shape)
        rank = len(network.shapes[op.inputs[0]]) if op.inputs else 0
        if "channels" in op.attrs:
            axes[op.output] = _axis(op.attrs["channels"], shape)
        elif rank == len(shape) and op.kind != "permute":
            axes[op.output] = before
        else:
            axes[op.output] = len(shape)
    return axes


def _axis(channels: object, shape: Shape) -> int:
    return 1 if channels == "first" else len(shape)


def size(shape: Sequence[int], axis: int | None, positions: Positions) -> tuple[int, int]:
    """(positions, units) that a value of this shape, samples first, becomes. axis: of units; None: there is but one axis,
    or all are flattened.
    """
    inner = tuple(shape[1:])
    whole = prod(inner)
    if len(inner) <= 1 or positions == "units" or axis is None:
        return 1, whole
    units = shape[axis]
    return (whole // units if positions == "samples" else 1), units


def arranged(values: Array, axis: int | None, positions: Positions) -> Array:
    """Values (samples, ...) as rows (samples x positions, units); positions in row-major order, channels last."""
    if values.ndim == 1:
        return values[:, None]
    if values.ndim == 2:
        return values
    moved = values if axis is None else np.moveaxis(values, axis, -1)
    if positions == "units" or axis is None:
        return moved.reshape(len(values), -1)
    if positions == "samples":
        return moved.reshape(-1, moved.shape[-1])
    return np.asarray(moved.reshape(len(values), -1, moved.shape[-1]).mean(axis=1, dtype=np.float64))
