"""Network: tensors and the dataflow between them, checked when made.

A network is a list of ops in topological order (networkx orders them), named values between them, and named tensors
as parameters. One tensor may serve several ops: a shared layer is one tensor with several uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from canon.errors import GraphError, NotFinite
from canon.ops import Op, kind_of
from canon.ops.base import Array, Shape

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Network:
    """tensors: name -> array (weights as (out, in, *kernel), stored dtype, never modified in place);
    ops: any order, kept in topological order; inputs: value name -> shape without batch (None: any size);
    outputs: value names; precision: tensor -> name of the type it is stored in, where numpy has no such type and its array
    holds the same values in a wider one (bfloat16 in float32).

    Raises GraphError (cycle, missing value or tensor, name used twice) and ShapeConflict.
    """

    tensors: Mapping[str, Array]
    ops: tuple[Op, ...]
    inputs: Mapping[str, Shape]
    outputs: tuple[str, ...]
    precision: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(init=False, repr=False, compare=False)
    """Shape of every value, batch excluded."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", _ordered(self.ops, self.inputs, self.outputs))
        shapes: dict[str, Shape] = dict(self.inputs)
        for op in self.ops:
            kind = kind_of(op)
            missing = [r for r in kind.roles if r not in op.params and r not in kind.optional]
            if missing:
                raise GraphError(op.name, f"a {op.kind} without its {missing[0]}")
            for tensor in op.params.values():
                if tensor not in self.tensors:
                    raise GraphError(op.name, f"tensor {tensor!r} is not there")
            params = {role: self.tensors[t].shape for role, t in op.params.items()}
            shapes[op.output] = kind.shape(op, [shapes[v] for v in op.inputs], params)
        object.__setattr__(self, "shapes", shapes)

    @cached_property
    def writer(self) -> dict[str, Op]:
        """The op that computes each value (inputs have none)."""
        return {op.output: op for op in self.ops}

    @cached_property
    def readers(self) -> dict[str, tuple[Op, ...]]:
        """The ops that read each value, an op once for each time it reads it."""
        found: dict[str, list[Op]] = {v: [] for v in (*self.inputs, *(op.output for op in self.ops))}
        for op in self.ops:
            for v in op.inputs:
                found[v].append(op)
        return {v: tuple(r) for v, r in found.items()}

    @cached_property
    def uses(self) -> dict[str, tuple[tuple[Op, str], ...]]:
        """(op, role) for every use of each tensor."""
        found: dict[str, list[tuple[Op, str]]] = {}
        for op in self.ops:
            for role, tensor in op.params.items():
                found.setdefault(tensor, []).append((op, role))
        return {t: tuple(u) for t, u in found.items()}

    @property
    def graph(self) -> nx.DiGraph:
        """The dataflow as a directed graph of value names; edges carry the op's name."""
        return _digraph(self.ops, self.inputs)

    @property
    def parameters(self) -> int:
        """Number of stored parameters."""
        return sum(int(t.size) for t in self.tensors.values())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that most parameters are stored in (float32 for a network without any)."""
        sizes: Counter[np.dtype[Any]] = Counter()
        for t in self.tensors.values():
            sizes[t.dtype.newbyteorder("=")] += t.size
        return sizes.most_common(1)[0][0] if sizes else np.dtype(np.float32)

    def stored_type(self, tensor: str) -> str:
        """The name of the type that a tensor is stored in."""
        return self.precision.get(tensor) or str(self.tensors[tensor].dtype.newbyteorder("="))

    @property
    def main_type(self) -> str:
        """The name of the type that most parameters are stored in (float32 for a network without any)."""
        sizes: Counter[str] = Counter()
        for name, t in self.tensors.items():
            sizes[self.stored_type(name)] += t.size
        return sizes.most_common(1)[0][0] if sizes else "float32"

    def params(self, op: Op) -> dict[str, Array]:
        """The op's tensors by role."""
        return {role: self.tensors[t] for role, t in op.params.items()}

    def with_tensors(self, tensors: Mapping[str, Array]) -> Network:
        """The same graph with some tensors replaced."""
        return replace(self, tensors={**self.tensors, **tensors})

    def check_finite(self) -> None:
        """Raise NotFinite naming the first tensor with NaN or infinity, how many, and the first index."""
        for name, t in self.tensors.items():
            if t.dtype.kind != "f":
                continue
            with np.errstate(all="ignore"):
                total = t.sum()
            if not np.isfinite(total):  # an entry is not finite, or the sum overflowed: only then look at each
                bad = ~np.isfinite(t)
                if not bad.any():
                    continue
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                raise NotFinite(
                    name,
                    f"{int(bad.sum())} of {t.size} values are NaN or infinite, the first at {first}",
                    "The file holds no usable network; look for a checkpoint from before training diverged.",
                )


def _digraph(ops: Iterable[Op], inputs: Iterable[str]) -> nx.DiGraph:
    import networkx as nx

    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(inputs)
    for op in ops:
        graph.add_node(op.output)
        graph.add_edges_from(((v, op.output) for v in op.inputs), op=op.name)
    return graph


def _ordered(ops: tuple[Op, ...], inputs: Mapping[str, Shape], outputs: tuple[str, ...]) -> tuple[Op, ...]:
    """The ops in topological order, ties in the order given; every fault in the wiring is a GraphError."""
    import networkx as nx

    for what, names in (("operation", [op.name for op in ops]), ("value", [*inputs, *(op.output for op in ops)])):
        twice = [n for n, c in Counter(names).items() if c > 1]
        if twice:
            raise GraphError(twice[0], f"two {what}s of this name")
    by_output = {op.output: op for op in ops}
    for op in ops:
        for v in op.inputs:
            if v not in by_output and v not in inputs:
                raise GraphError(op.name, f"reads {v!r}, which nothing computes")
    for v in outputs:
        if v not in by_output and v not in inputs:
            raise GraphError(v, "an output that nothing computes")
    if not outputs:
        raise GraphError("", "a network without outputs")
    place = {op.output: i for i, op in enumerate(ops)}
    try:
        order = list(nx.lexicographical_topological_sort(_digraph(ops, inputs), key=lambda v: place.get(v, -1)))
    except nx.NetworkXUnfeasible:
        raise GraphError("", "the operations form a cycle") from None
    return tuple(by_output[v] for v in order if v in by_output)
