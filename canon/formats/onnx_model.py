"""ONNX models: read with their own graph, and copied with their tensors replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile, GraphError, ReadError
from canon.formats import (
    onnx_einsum,
    onnx_join,
    onnx_layout,
    onnx_linear,
    onnx_patterns,
    onnx_positions,
    onnx_recurrent,
    onnx_shape,
    onnx_units,
)
from canon.formats.common import Request
from canon.formats.onnx_attention import rules
from canon.formats.onnx_build import Inferred, Table, build
from canon.formats.onnx_draft import Draft
from canon.formats.onnx_file import onnx, parse
from canon.formats.onnx_graph import Graph, port, read_graph
from canon.formats.onnx_size import Dim, Size
from canon.formats.onnx_tidy import LAST, PARAMETERS, flat_inputs, settle, tie, untie
from canon.formats.onnx_value import Value
from canon.formats.onnx_write import write
from canon.network import Network
from canon.run import Run

__all__ = ["NAME", "read", "write"]

NAME = "onnx"
TABLE: Table = {
    **onnx_einsum.TABLE,
    **onnx_join.TABLE,
    **onnx_linear.TABLE,
    **onnx_positions.TABLE,
    **onnx_recurrent.TABLE,
    **onnx_shape.TABLE,
    **onnx_units.TABLE,
}
MOST_NAMED = 5
SIZES = ((6, 11), (32, 59), (224, 331))
"""What open sizes are taken as."""
SMALL = 1024
"""Entries of a tensor that shape inference gets to see."""


def read(f: Any, path: Path, request: Request) -> Run:
    """The run. Raises ReadError, GraphError, MissingExtra."""
    model = parse(path)
    try:
        graph = read_graph(model)
        make = partial(_made, graph, _inferred(model, graph), path.parent)
        draft, notes = _best(graph, make)
        network = draft.network()
    except RecursionError as e:
        raise CorruptFile("", "an ONNX graph nested too deep") from e
    except MemoryError as e:
        raise ReadError("", "needs more memory than there is") from e
    return Run(
        path=str(path),
        format=NAME,
        network=network,
        layout={t: draft.layout[t] for t in network.tensors if t in draft.layout},
        graph="stored",
        notes=(*notes, *_opaque(network)),
    )


_Made = tuple[Draft, list[str]]


def _made(graph: Graph, inferred: Inferred, folder: Path, taken: int | None = None) -> _Made:
    """The graph as operations; what it spells out, written as what it means; and what there is to tell of it."""
    made = build(graph, TABLE, inferred, folder, taken)
    draft, notes = made.draft, []
    behind = [v for v, found in made.values.items() if v in draft.inputs and isinstance(found, Value) and _late(found)]
    draft.prune()
    settle(draft, (*PARAMETERS, *onnx_patterns.RULES, *onnx_layout.RULES))
    settle(draft, (*onnx_layout.RULES, *rules(made.masks), *PARAMETERS, *LAST))
    flat, tied = flat_inputs(draft), tie(draft)
    untie(draft)
    draft.prune()
    if tied:
        notes.append(f"equal to the table of an embedding, and taken as tied to it: {', '.join(tied)}")
    if behind:
        notes.append(f"the batch is the second axis of {', '.join(map(repr, behind))}")
    if flat:
        notes.append(f"of {', '.join(map(repr, flat))} the axes of size one are left out, which are flattened away")
    return draft, notes


def _late(value: Value) -> bool:
    return value.batch is not None and value.batch.axis > 0


def _best(graph: Graph, make: Callable[..., _Made]) -> _Made:
    """The graph with its open sizes; where these leave something over, as it is at two sizes, if it is the same at both.

    A graph that computes with its own shapes may be no network that canon knows until they are numbers.
    """
    first: GraphError | None = None
    found: _Made | None = None
    try:
        found = make()
        if not _left(found[0]):
            return found
    except GraphError as e:
        first = e
    if any(isinstance(d, Size) for p in graph.inputs for d in p.shape or ()):
        for sizes in SIZES:
            again = _at(make, sizes, graph)
            if again is not None and (found is None or _left(again[0]) < _left(found[0])):
                return again
    if found is None:
        assert first is not None
        raise first
    return found


def _left(draft: Draft) -> int:
    return sum(op.kind == "opaque" for op in draft.ops.values())


def _at(make: Callable[..., _Made], sizes: tuple[int, int], graph: Graph) -> _Made | None:
    """The graph at two sizes, open again, if both are one network."""
    try:
        (one, notes), (other, _) = (make(taken=n) for n in sizes)
        shapes = [{t: x.shape for t, x in d.tensors.items()} for d in (one, other)]
        if list(one.ops.values()) != list(other.ops.values()) or shapes[0] != shapes[1] or one.outputs != other.outputs:
            return None
        for v, shape in one.inputs.items():
            one.inputs[v] = tuple(n if n == m else None for n, m in zip(shape, other.inputs[v], strict=True))
        one.network()
    except GraphError:
        return None
    return one, [*notes, f"read at sizes {sizes[0]} and {sizes[1]} of its open axes: it is the same at both"]


def _opaque(network: Network) -> list[str]:
    """A line on what is opaque."""
    found = [f"{op.name} ({op.attrs['class_name']})" for op in network.ops if op.kind == "opaque"]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [f"opaque, nothing moves through: {', '.join(found[:MOST_NAMED])}{more}"] if found else []


def _inferred(model: Any, graph: Graph) -> Inferred:
    """Shapes by ONNX's own inference, found when first asked for, over a copy of the graph without weights."""

    @cache
    def found() -> Mapping[str, tuple[tuple[Dim, ...], bool] | None]:
        package = onnx()
        bare = package.ModelProto()
        bare.ir_version = model.ir_version
        bare.opset_import.extend(model.opset_import)
        g = bare.graph
        g.name = "bare"
        g.output.extend(model.graph.output)
        g.input.extend(p for p in model.graph.input if p.name not in graph.stored)
        for name, t in graph.stored.items():
            size = 1
            for n in t.dims:
                size *= int(n)
            if size <= SMALL and not t.external_data:
                g.initializer.append(t)
            else:
                g.input.append(package.helper.make_tensor_value_info(name, t.data_type, list(t.dims)))
        for node in graph.nodes:
            domain, _, op = node.op.rpartition(".")
            made = package.helper.make_node
            again = made(op, node.inputs, node.outputs, node.name, domain=domain, **node.attrs) if node.proto is None else None
            g.node.append(node.proto if again is None else again)
        for n in g.node:
            for a in n.attribute:
                if a.HasField("t") and len(a.t.raw_data) > 16 * SMALL:
                    a.t.raw_data = b""
        try:
            inference: Callable[..., Any] = package.shape_inference.infer_shapes
            done = inference(bare)
        except Exception:  # whatever it trips over, it says nothing about shapes
            return {}
        out: dict[str, tuple[tuple[Dim, ...], bool] | None] = {}
        for p in (*done.graph.value_info, *done.graph.output, *model.graph.value_info, *model.graph.output):
            said = port(p)
            if said.shape is not None:
                out.setdefault(p.name, (said.shape, said.integer))
        return out

    return found
