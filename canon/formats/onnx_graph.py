"""The graph of an ONNX model as plain data: nodes in the order of the dataflow, functions written out, names checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from canon.errors import CorruptFile, ReadError, UnsupportedOp
from canon.formats.onnx_size import Dim, named, unknown

OLDEST = 6
"""The first version of the operator set that is read: before it, broadcasting and batch norms meant other things."""
MOST_NODES, DEEPEST = 100_000, 50
"""Nodes of a graph with its functions written out, and functions inside functions."""


@dataclass(frozen=True)
class Node:
    """One node. op: its type, with the domain in front where it is not ONNX's own; version: of its domain's operator set;
    inputs: "" for those left out; attrs: plain values, tensors and graphs as the protocol buffer holds them.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    proto: Any = None

    @property
    def label(self) -> str:
        """A name for messages and for the operation that is made of it."""
        return self.name or next((v for v in self.outputs if v), self.op)


@dataclass(frozen=True)
class Port:
    """An input or output. shape: None where not even the number of axes is known; integer: whether it holds whole numbers."""

    name: str
    shape: tuple[Dim, ...] | None
    integer: bool


@dataclass(frozen=True)
class Graph:
    """nodes in the order of the dataflow; stored: initialisers by name; inputs without those."""

    nodes: tuple[Node, ...]
    stored: Mapping[str, Any]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    versions: Mapping[str, int]


def read_graph(model: Any) -> Graph:
    """The graph of a model. Raises CorruptFile, ReadError, UnsupportedOp."""
    versions = _versions(model)
    functions = {(_domain(f.domain), text(f.name)): f for f in model.functions}
    g = model.graph
    if g.sparse_initializer:
        raise UnsupportedOp(g.sparse_initializer[0].values.name, "is a sparse tensor, which canon does not read")
    stored: dict[str, Any] = {}
    for t in g.initializer:
        if text(t.name) in stored:
            raise CorruptFile(t.name, "two tensors of this name")
        stored[t.name] = t
    inputs = tuple(port(p) for p in g.input if p.name not in stored)
    _count(g.node, functions, {})
    nodes = list(_inlined(nodes_of(g, versions), functions))
    _check(nodes, {*stored, *(p.name for p in inputs)}, "two values of this name")
    ordered = in_order(nodes, {*stored, *(p.name for p in inputs)}, {p.name for p in g.output})
    return Graph(tuple(ordered), stored, inputs, tuple(port(p) for p in g.output), versions)


def _domain(domain: Any) -> str:
    return "" if text(domain) == "ai.onnx" else text(domain)


def _versions(model: Any) -> dict[str, int]:
    versions = {_domain(o.domain): int(o.version) for o in model.opset_import}
    own = versions.get("")
    if own is None and any(_domain(n.domain) == "" for n in model.graph.node):
        own = 1 if model.ir_version < 3 else None
        if own is None:
            raise CorruptFile("", "an ONNX file that does not say which operator set it uses")
    if own is not None and own < OLDEST:
        raise ReadError("", f"an ONNX file of operator set {own}, and canon reads {OLDEST} and later",
                        "Convert it with onnx.version_converter.")  # fmt: skip
    return versions


def port(proto: Any) -> Port:
    """An input or output as declared."""
    kind = proto.type.tensor_type
    integer = kind.elem_type not in (0, 1, 10, 11, 16)
    if not proto.type.HasField("tensor_type") or not kind.HasField("shape"):
        return Port(text(proto.name), None, integer)
    return Port(text(proto.name), tuple(_dim(d) for d in kind.shape.dim), integer)


def _dim(d: Any) -> Dim:
    if d.HasField("dim_value") and d.dim_value > 0:
        return int(d.dim_value)
    return named(text(d.dim_param)) if d.dim_param not in ("", "?", "None") else unknown()


def nodes_of(g: Any, versions: Mapping[str, int]) -> Iterator[Node]:
    """The nodes of a graph or of a function, as they stand."""
    for n in g.node:
        domain = _domain(n.domain)
        yield Node(
            text(f"{domain}.{n.op_type}" if domain else n.op_type),
            text(n.name),
            tuple(map(text, n.input)),
            tuple(map(text, n.output)),
            {text(a.name): _attribute(a) for a in n.attribute},
            versions.get(domain, 1),
            n,
        )


def text(name: Any) -> str:
    """A name, which the protocol buffer gives as bytes where it is no text."""
    if not isinstance(name, str):
        raise CorruptFile("", f"a damaged ONNX file: a name in it is no text ({bytes(name)[:20]!r})", "Fetch it again.")
    return name


@dataclass(frozen=True)
class Reference:
    """An attribute that a function takes from the node that calls it."""

    name: str


def _attribute(a: Any) -> Any:
    if a.ref_attr_name:
        return Reference(text(a.ref_attr_name))
    kinds = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 10: "graphs",
             11: "sparse_tensor", 12: "sparse_tensors", 13: "tp", 14: "type_protos"}  # fmt: skip
    kind = int(a.type)
    if kind == 0:  # before IR 3 the type was what is there
        kind = next((k for k, f in kinds.items() if k <= 5 and a.HasField(f)), 0) or next(
            (k for k, f in kinds.items() if 6 <= k <= 10 and len(getattr(a, f))), 7
        )
    if kind not in kinds:
        raise CorruptFile(a.name, f"an attribute of type {kind}, which is none")
    value = getattr(a, kinds[kind])
    if kind == 3:
        return bytes(value).decode("utf-8", "replace")
    if kind == 8:
        return [bytes(v).decode("utf-8", "replace") for v in value]
    if kind in (6, 7):
        return list(value)
    return value


# functions


def _count(nodes: Iterable[Any], functions: Mapping[tuple[str, str], Any], known: dict[tuple[str, str], int]) -> int:
    """How many nodes there are with all functions written out. Raises CorruptFile for one that calls itself."""
    total = 0
    for n in nodes:
        key = (_domain(n.domain), text(n.op_type))
        if key in functions and key not in known:
            known[key] = -1
            if len(known) > MOST_NODES or sum(k == -1 for k in known.values()) > DEEPEST:
                raise CorruptFile(text(n.name), f"functions inside functions, {DEEPEST} deep")
            known[key] = _count(functions[key].node, functions, known)
        if known.get(key) == -1:
            raise CorruptFile(text(n.name), f"a function that calls itself ({key[1]})")
        total += known.get(key, 1)
    if total > MOST_NODES:
        raise CorruptFile("", f"a graph of more than {MOST_NODES:,} nodes", "No network is written so.")
    return total


def _inlined(nodes: Iterable[Node], functions: Mapping[tuple[str, str], Any]) -> Iterator[Node]:
    """The nodes with calls of the model's own functions written out."""
    for node in nodes:
        domain, _, op = node.op.rpartition(".")
        function = functions.get((domain, op))
        if function is None:
            yield node
        else:
            yield from _inlined(_body(node, function), functions)


def _body(node: Node, function: Any) -> Iterator[Node]:
    """A function's nodes under names of their own."""
    if len(node.inputs) > len(function.input) or len(node.outputs) > len(function.output):
        raise CorruptFile(node.label, f"calls {node.op} with more values than it takes")
    names = dict.fromkeys(function.input, "")
    names |= dict(zip(function.input, node.inputs, strict=False))
    names |= {inner: outer for inner, outer in zip(function.output, node.outputs, strict=False) if outer}
    given = {a.name: _attribute(a) for a in function.attribute_proto} | dict(node.attrs)
    versions = {_domain(o.domain): int(o.version) for o in function.opset_import}

    def renamed(v: str) -> str:
        return names.setdefault(v, f"{node.label}/{v}") if v else ""

    for inner in nodes_of(function, versions):
        attrs = {}
        for key, value in inner.attrs.items():
            if isinstance(value, Reference):
                if value.name in given:
                    attrs[key] = given[value.name]
            else:
                attrs[key] = value
        if any(hasattr(value, "node") for value in attrs.values()):
            raise UnsupportedOp(node.label, f"a function ({node.op}) with graphs inside it")
        yield replace(
            inner,
            name=f"{node.label}/{inner.label}",
            inputs=tuple(map(renamed, inner.inputs)),
            outputs=tuple(map(renamed, inner.outputs)),
            attrs=attrs,
            proto=None,
        )


# order


def _check(nodes: Iterable[Node], there: set[str], why: str) -> None:
    seen = set(there)
    for node in nodes:
        for v in node.outputs:
            if v and v in seen:
                raise CorruptFile(v, why)
            seen.add(v)


def in_order(nodes: list[Node], there: set[str], wanted: set[str]) -> list[Node]:
    """The nodes in the order of the dataflow, ties in the order given; without those that nothing wanted hangs on.

    Raises CorruptFile for values that nothing computes and for cycles.
    """
    writer = {v: i for i, node in enumerate(nodes) for v in node.outputs if v}
    order: list[int] = []
    state: dict[int, int] = {}  # 1: being visited, 2: done
    for root in [writer[v] for v in wanted if v in writer]:
        stack = [root]
        while stack:
            i = stack[-1]
            if state.get(i) == 2:
                stack.pop()
                continue
            state[i] = 1
            open_ = []
            for v in (*nodes[i].inputs, *captured(nodes[i])):
                if not v or v in there:
                    continue
                if v not in writer:
                    raise CorruptFile(nodes[i].label, f"reads {v!r}, which nothing computes")
                if state.get(writer[v]) == 1:
                    raise CorruptFile(nodes[i].label, "its operations form a cycle")
                if writer[v] not in state:
                    open_.append(writer[v])
            if open_:
                stack += reversed(open_)
            else:
                state[i] = 2
                order.append(i)
                stack.pop()
    missing = [v for v in wanted if v not in writer and v not in there]
    if missing:
        raise CorruptFile(missing[0], "an output that nothing computes")
    kept = sorted(order)
    done = set(there)
    for i in kept:  # as the file has them, if that is an order
        if any(v and v not in done for v in (*nodes[i].inputs, *captured(nodes[i]))):
            return [nodes[k] for k in order]
        done.update(nodes[i].outputs)
    return [nodes[i] for i in kept]


def captured(node: Node) -> tuple[str, ...]:
    """Values from outside that graphs inside a node read."""
    found: dict[str, None] = {}
    for value in node.attrs.values():
        if hasattr(value, "node") and hasattr(value, "initializer"):
            found.update(dict.fromkeys(_captured_by(value, 0)))
    return tuple(found)


def _captured_by(g: Any, depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        raise CorruptFile("", f"graphs inside graphs, {DEEPEST} deep")
    inside = {t.name for t in g.initializer} | {p.name for p in g.input}
    for n in g.node:
        for v in n.input:
            if v and v not in inside:
                yield v
        for a in n.attribute:
            if a.HasField("g"):
                for v in _captured_by(a.g, depth + 1):
                    if v not in inside:
                        yield v
        inside.update(n.output)
