"""Runs a network on inputs: for checks, probes and activations. In float64 unless asked otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.errors import ShapeConflict, UnsupportedOp
from canon.network import Network
from canon.ops import kind_of
from canon.ops.base import Array, Op

UNKNOWN_SIZE = 16
"""The size that a probe takes along an axis whose size the file leaves open, unless the graph asks for more."""


def forward(network: Network, inputs: Mapping[str, Array], dtype: type = np.float64) -> dict[str, Array]:
    """Outputs by value name, each (batch, *shape). inputs: value name -> (batch, *shape).

    Raises UnsupportedOp where an op cannot be run (opaque, unknown activation) and ShapeConflict for inputs that do not fit.
    """
    outputs: dict[str, Array] = {}
    for name, value in steps(network, inputs, dtype):
        if name in network.outputs:
            outputs[name] = value
    return outputs


def steps(network: Network, inputs: Mapping[str, Array], dtype: type = np.float64) -> Iterator[tuple[str, Array]]:
    """All values in order of computation; each is let go after its last reader."""
    yield from _walk(network, _checked(network, inputs, dtype), dtype)


def bounded(
    network: Network, inputs: Mapping[str, Array], dtype: type = np.float64
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Outputs, and for each a bound on the size of everything summed into it: the run on absolute values (|W| m + |b|)."""
    values = _checked(network, inputs, dtype)
    sizes = {v: np.abs(x) for v, x in values.items()}
    last: dict[str, Op] = {v: op for op in network.ops for v in op.inputs}
    for op in network.ops:
        ins, bounds = [values[v] for v in op.inputs], [sizes[v] for v in op.inputs]
        values[op.output], sizes[op.output] = kind_of(op).both(op, ins, bounds, network.params(op))
        for v in set(op.inputs):
            if last[v] is op and v not in network.outputs:
                del values[v], sizes[v]
    return {v: values[v] for v in network.outputs}, {v: sizes[v] for v in network.outputs}


def affine_depth(network: Network) -> int:
    """The largest number of affine maps on a way from an input to an output."""
    depth = dict.fromkeys(network.inputs, 0)
    for op in network.ops:
        depth[op.output] = max((depth[v] for v in op.inputs), default=0) + int(kind_of(op).affine)
    return max(max(depth[v] for v in network.outputs), 1)


def _walk(network: Network, values: dict[str, Array], dtype: type) -> Iterator[tuple[str, Array]]:
    last: dict[str, Op] = {v: op for op in network.ops for v in op.inputs}
    yield from values.items()
    for op in network.ops:
        params: dict[str, Array] = {role: np.asarray(network.tensors[t], dtype) for role, t in op.params.items()}
        values[op.output] = kind_of(op).forward(op, [values[v] for v in op.inputs], params)
        yield op.output, values[op.output]
        for v in set(op.inputs):
            if last[v] is op:
                del values[v]


def _checked(network: Network, inputs: Mapping[str, Array], dtype: type) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for name, shape in network.inputs.items():
        if name not in inputs:
            raise ShapeConflict(name, "no values were given for this input")
        x: Array = np.asarray(inputs[name], dtype)
        if x.ndim != len(shape) + 1 or any(n is not None and n != m for n, m in zip(shape, x.shape[1:], strict=True)):
            raise ShapeConflict(name, f"values of shape {x.shape} do not fit an input of shape {('batch', *shape)}")
        out[name] = x
    return out


def probe_inputs(network: Network, rng: np.random.Generator, samples: int, scale: float) -> dict[str, Array]:
    """Seeded normal noise for every input, tokens where they are read.

    Open sizes are taken as UNKNOWN_SIZE, or the smallest multiple that runs.
    """
    for size in (UNKNOWN_SIZE, 32, 64, 128, 256):
        shapes = {v: tuple(size if n is None else n for n in shape) for v, shape in network.inputs.items()}
        if not any(None in shape for shape in network.inputs.values()) or _fits(network, shapes):
            found = {v: scale * rng.standard_normal((samples, *shape)) for v, shape in shapes.items()}
            return {**found, **_tokens(network, rng, found)}
    raise UnsupportedOp("", "no input size up to 256 runs through the network")


def _tokens(network: Network, rng: np.random.Generator, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Uniform whole numbers for the inputs that ops read as such, below the smallest of their bounds."""
    bounds: dict[str, int] = {}
    for op in network.ops:
        n = kind_of(op).tokens(op, {role: network.tensors[t].shape for role, t in op.params.items()})
        if n is not None:
            bounds.update({v: min(n, bounds.get(v, n)) for v in op.inputs if v in inputs})
    return {v: rng.integers(0, n, inputs[v].shape).astype(np.float64) for v, n in bounds.items()}


def _fits(network: Network, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    try:
        Network(network.tensors, network.ops, dict(shapes), network.outputs)
    except ShapeConflict:
        return False
    return True
