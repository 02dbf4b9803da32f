"""Hard sigmoids of Keras 1 and 2 in Keras 3's words.

Keras 3 knows clip(x / 6 + 1/2, 0, 1) alone, and clip(s x + 1/2, 0, 1) is that of 6 s x: the factor goes into what comes before.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Any

import numpy as np

from canon.errors import UnsupportedOp
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array

SLOPE = 1 / 6
GATES = {"lstm": (0, 1, 3), "gru": (0, 1)}
"""Which gates of a cell go through the recurrent activation, in Keras's order."""
BEFORE = ("dense", "conv", "grouped_conv", "depthwise_conv", "conv_transpose", "locally_connected")


def steeper(network: Network) -> tuple[Network, tuple[str, ...]]:
    """The same function with Keras 3's hard sigmoids alone, and a note where weights changed for it."""
    tensors, ops = dict(network.tensors), []
    changed: set[str] = set()
    for op in network.ops:
        said = op.attrs.get("recurrent_activation")
        factor, gates = 6 * _slope(said), GATES.get(op.kind, ())
        if gates and not isclose(factor, 1.0):
            for role, name in op.params.items():
                _alone(network, op, name)
                tensors[name] = _scaled(tensors[name], role, gates, factor)
                changed.add(name)
            op = replace(op, attrs={**op.attrs, "recurrent_activation": {"kind": "hard_sigmoid", "slope": SLOPE}})
        if not isclose(_slope(op.attrs.get("activation")), SLOPE):
            raise UnsupportedOp(op.name, "a cell whose activation is a hard sigmoid of another slope than Keras 3's")
        if op.kind == "hard_sigmoid" and not isclose(factor := 6 * float(op.attrs["slope"]), 1.0):
            layer = network.writer.get(op.inputs[0])
            if layer is None or layer.kind not in BEFORE or len(network.readers[layer.output]) > 1:
                raise UnsupportedOp(op.name, "a hard sigmoid of another slope than Keras 3's, and no layer before it to scale",
                                    "Write it as legacy HDF5, for Keras 2.")  # fmt: skip
            for name in layer.params.values():
                _alone(network, layer, name)
                tensors[name] = (tensors[name] * np.float64(factor)).astype(tensors[name].dtype)
                changed.add(name)
            op = replace(op, attrs={**op.attrs, "slope": SLOPE})
        ops.append(op)
    if not changed:
        return network, ()
    note = f"Keras 3's hard sigmoid has another slope: {len(changed)} tensors are scaled for it, and the function is the same"
    return Network(tensors, tuple(ops), network.inputs, network.outputs), (note,)


def _slope(said: Any) -> float:
    """The slope of a hard sigmoid inside a cell; Keras 3's for any other nonlinearity, which needs no change."""
    return float(said["slope"]) if isinstance(said, dict) and said.get("kind") == "hard_sigmoid" else SLOPE


def _alone(network: Network, op: Op, tensor: str) -> None:
    if len(network.uses[tensor]) > 1:
        raise UnsupportedOp(op.name, f"{tensor!r} is shared, and Keras 3's hard sigmoid asks for other weights")


def _scaled(tensor: Array, role: str, gates: tuple[int, ...], factor: float) -> Array:
    """The rows of some gates, times a factor; a bias of two rows has its gates along the second."""
    out = np.array(tensor)
    rows = np.moveaxis(out, -1, 0) if role == "bias" else out
    count = len(rows) // (4 if gates == GATES["lstm"] else 3)
    for gate in gates:
        part = rows[gate * count : (gate + 1) * count]
        part[...] = (part * np.float64(factor)).astype(part.dtype)
    return out
