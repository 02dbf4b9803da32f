"""An ONNX graph as canon's operations, node by node in the order of the dataflow.

What is known is evaluated, the rest converted by tables, one function a type. A node that does not fit any operation of
canon's becomes opaque, and a note says so. Which axis is the batch is tried: the first, the second, none; the reading with
the fewest nodes left over counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile, GraphError, ShapeConflict, UnsupportedOp
from canon.formats.onnx_draft import Draft
from canon.formats.onnx_evaluate import evaluate
from canon.formats.onnx_file import OTHER_TYPES, array_of
from canon.formats.onnx_graph import Graph, Node, Port, captured, in_order, nodes_of
from canon.formats.onnx_known import Known, sizes_of
from canon.formats.onnx_size import Dim, Size, known, named, product, unknown
from canon.formats.onnx_value import Batch, Unfit, Value, within

BATCH = re.compile(r"(.*[^a-z])?(batch|bs|b|n)([^a-z].*)?|batch.*|.*batch", re.IGNORECASE)
"""Names of sizes that mean the batch."""
TRIPS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What nodes trip over that have not the inputs and attributes that their type asks for."""
MOST_INSIDE = 20
"""Graphs inside graphs that are taken apart."""

Convert = Callable[["Builder", Node], None]
Table = Mapping[str, Convert]
Inferred = Callable[[], Mapping[str, tuple[tuple[Dim, ...], bool] | None]]


@dataclass
class Builder:
    """table: how each type is converted; inferred: shapes that ONNX's own inference finds; guess: the batch's axis, where a
    name does not tell; folder: of the file; taken: what open sizes are taken as, the first one and two more for each further
    one (None: they stay open).
    """

    graph: Graph
    table: Table
    inferred: Inferred
    guess: int | None
    folder: Path
    taken: int | None = None
    draft: Draft = field(default_factory=Draft)
    values: dict[str, Value | Known] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Nodes that became opaque, and why."""
    batch_size: Dim = field(default_factory=lambda: named("batch"))
    settled: bool = False
    masks: dict[str, Known] = field(default_factory=dict)
    """What is added, zero or very little, by an opaque value that hides entries of its input."""

    def __post_init__(self) -> None:
        self._sizes: dict[Size, int] = {}
        self._read = {p.name for p in self.graph.outputs}
        for node in self.graph.nodes:
            self._read.update(node.inputs, captured(node))

    # the whole graph

    def run(self) -> Builder:
        """Convert everything."""
        for p in self.graph.inputs:
            self._input(p)
        for node in self.graph.nodes:
            self.convert(node)
        for p in self.graph.outputs:
            found = self.get(p.name)
            if isinstance(found, Value):
                self.draft.outputs.append(self._output(found))
        return self

    def _output(self, value: Value) -> str:
        """The value as an output of its own, which no other output is."""
        if value.name in self.draft.outputs:
            return self.draft.add("linear", [value.name], f"{value.name}/again")
        return value.name

    def _input(self, p: Port) -> None:
        if p.shape is None:
            raise UnsupportedOp(p.name, "an input whose number of axes the file does not say")
        shape, axis = list(p.shape), self._batch_axis(p.shape)
        if axis is not None:
            if not self.settled:
                self.batch_size, self.settled = shape[axis], True
            elif isinstance(shape[axis], Size) or isinstance(self.batch_size, Size):
                shape[axis] = self.batch_size
            elif shape[axis] != self.batch_size:
                axis = None
        for i, d in enumerate(shape):
            if i != axis and isinstance(d, Size) and self.taken is not None:
                shape[i] = self._sizes.setdefault(d, self.taken + 2 * len(self._sizes))
        value = Value(p.name, tuple(shape), None if axis is None else Batch(axis), p.integer)
        self.draft.inputs[p.name] = self.draft.shapes[p.name] = value.open
        self.values[p.name] = value

    def _batch_axis(self, shape: Sequence[Dim]) -> int | None:
        names = [d.names[0] if isinstance(d, Size) and len(d.names) == 1 else "" for d in shape]
        told = [i for i, name in enumerate(names) if name and BATCH.fullmatch(name)]
        if len(told) == 1 and self.guess is not None:
            return told[0]
        if len(shape) < 2 or self.guess is None:
            return None
        return min(self.guess, len(shape) - 2)

    # values

    def get(self, name: str) -> Value | Known:
        """What a name stands for. Raises CorruptFile."""
        if name in self.values:
            return self.values[name]
        stored = self.graph.stored.get(name)
        if stored is None:
            raise CorruptFile(name, "is read, and nothing computes it")
        array, precision = array_of(stored, self.folder)
        found = Known(array, name, (), precision)
        self.draft.held[name] = found
        self.values[name] = found
        return found

    def given(self, node: Node, i: int) -> bool:
        """Whether a node has an input i."""
        return i < len(node.inputs) and bool(node.inputs[i])

    def known(self, node: Node, i: int) -> Known | None:
        """Input i, if it is known."""
        if not self.given(node, i):
            return None
        found = self.get(node.inputs[i])
        return found if isinstance(found, Known) else None

    def need(self, node: Node, i: int) -> Known:
        """Input i, which has to be known, of floating point numbers or whole ones."""
        found = self.known(node, i)
        if found is None:
            raise Unfit(f"its input {i + 1} is not known before it runs")
        if found.open or found.array.dtype.kind not in "fiub":
            raise Unfit(f"its input {i + 1} holds no plain numbers")
        return found

    def value(self, node: Node, i: int = 0) -> Value:
        """Input i, which has to be computed by the network."""
        if not self.given(node, i):
            raise Unfit(f"it has no input {i + 1}")
        found = self.get(node.inputs[i])
        if isinstance(found, Known):
            raise Unfit(f"its input {i + 1} is a constant")
        return found

    def put(self, node: Node, found: Value | Known, at: int = 0) -> None:
        """What output `at` of a node is."""
        if at < len(node.outputs) and node.outputs[at]:
            self.values[node.outputs[at]] = found

    def unused(self, node: Node, first: int) -> None:
        """Raise Unfit if an output from `first` on is asked for."""
        asked = [v for v in node.outputs[first:] if v and self.is_read(v)]
        if asked:
            raise Unfit(f"its output {asked[0]!r} is read")

    def is_read(self, v: str) -> bool:
        """Whether anything reads a value of the graph."""
        return v in self._read

    # operations

    def op(
        self,
        node: Node,
        kind: str,
        inputs: Sequence[Value],
        params: Mapping[str, str] | None = None,
        *,
        batch: Batch | bool | None = True,
        dims: Sequence[Dim] | None = None,
        suffix: str = "",
        **attrs: Any,
    ) -> Value:
        """Add an operation. batch: where it is in what comes out (where it is in the first input); dims: sizes of what comes
        out, where they are better known than canon's shape tells; suffix: of the name, for all but the last of a node.
        """
        stem = next((v for v in node.outputs if v), node.label)
        name = self.draft.add(kind, [v.name for v in inputs], stem + suffix, node.label + suffix, params, **attrs)
        where = inputs[0].batch if isinstance(batch, bool) else batch
        found: Sequence[Dim] = [unknown() if n is None else n for n in self.draft.shapes[name]]
        if dims is not None:
            found = [d if known(f) is None else f for d, f in zip(dims, found, strict=True)]
        return Value(name, within(found, where, self.batch_size), where)

    def relay(self, node: Node, x: Value, shape: Sequence[Dim], batch: Batch | None, suffix: str = "") -> Value:
        """A value reshaped, row-major order kept; the same value where canon sees no difference."""
        made = Value(x.name, tuple(shape), batch, x.integer)
        if made.dims == x.dims:
            return made
        before = self.draft.writer(x.name, "reshape", "flatten")
        source = before.inputs[0] if before is not None else x.name
        there = self.draft.shapes[source]
        open_ = [i for i, n in enumerate(made.open) if n is None]
        if made.open == there and not open_:
            return replace(made, name=source)
        if len(open_) > 1 or (len(open_) == 1 and None not in x.open):
            raise Unfit("it reshapes sizes that are not known")
        if len(open_) == 1 and sum(n is None for n in there) > 1:
            source = x.name
        stem = next((v for v in node.outputs if v), node.label) + suffix
        if len(made.open) == 1 and len(self.draft.shapes[source]) > 1:
            name = self.draft.add("flatten", [source], stem, node.label + suffix)
        else:
            wanted = [-1 if n is None else n for n in made.open]
            name = self.draft.add("reshape", [source], stem, node.label + suffix, shape=wanted)
        return replace(made, name=name)

    def turned(self, node: Node, x: Value, perm: Sequence[int], suffix: str = "") -> Value:
        """A value transposed; the same value where only the batch moves."""
        shape = tuple(x.shape[p] for p in perm)
        batch = None if x.batch is None else replace(x.batch, axis=list(perm).index(x.batch.axis))
        axes = x.axes()
        order = [a for a in (axes[p] for p in perm) if a is not None]
        made = Value(x.name, shape, batch, x.integer)
        if order == sorted(order):
            return made
        before = self.draft.writer(x.name, "permute")
        source = x.name
        if before is not None:
            order = [int(before.attrs["dims"][a]) for a in order]
            source = before.inputs[0]
        if order == sorted(order):
            return replace(made, name=source)
        stem = next((v for v in node.outputs if v), node.label) + suffix
        return replace(made, name=self.draft.add("permute", [source], stem, node.label + suffix, dims=order))

    def tensor(self, node: Node, found: Known, role: str, factor: float = 1.0, power: int = 1) -> str:
        """A parameter."""
        if found.open or found.array.dtype.kind not in "fiub":
            raise Unfit(f"its {role} holds no plain numbers")
        if found.array.dtype.kind != "f":
            found = Known(found.array.astype("float32"))
        stem = next((v for v in node.outputs if v), node.label)
        return self.draft.tensor(found, f"{stem}/{role}", factor, power)

    # nodes

    def convert(self, node: Node, inside: int = 0) -> None:
        """What a node computes: known, canon's, or opaque. Raises CorruptFile for one that is none of ONNX's."""
        try:
            self._convert(node, inside)
        except TRIPS as e:
            said = f"a node {node.op} with inputs or attributes that it does not take ({type(e).__name__})"
            raise CorruptFile(node.label, said) from e

    def _convert(self, node: Node, inside: int) -> None:
        if node.op == "If" and self._branch(node, inside):
            return
        ins = [self.known(node, i) for i in range(len(node.inputs))]
        if node.op in ("Expand", "ConstantOfShape") and ins and ins[-1] is not None:
            ins[-1] = self._for_one(ins[-1])  # what is made for each sample is made for one
        whole = all(k is not None or not name for k, name in zip(ins, node.inputs, strict=True))
        if whole:
            made = evaluate(node, ins)
            if made is None and node.op == "Constant":
                made = [self._constant(node)]
            if made is not None:
                for i, k in enumerate(made):
                    self.put(node, k, i)
                return
        elif node.op in ("Shape", "Size"):
            self._shape(node)
            return
        how = self.table.get(node.op)
        why = "canon has no operation for it" if how is None else ""
        if node.op == "If":
            why = "its condition is not known before it runs"
        if how is not None:
            try:
                how(self, node)
            except Unfit as e:
                why = str(e)
            except UnsupportedOp as e:
                why = e.what
            except ShapeConflict as e:
                raise (e if e.where else e.at(node.label)) from None
        if why:
            self.opaque(node, why)

    def _for_one(self, sizes: Known) -> Known:
        """Sizes with one in the place of a batch whose size is open."""
        found = sizes.sizes()
        if not sizes.open or found is None or sizes.array.ndim != 1:
            return sizes
        return sizes_of([1 if d == self.batch_size else d for d in found])

    def _constant(self, node: Node) -> Known:
        value = node.attrs.get("value")
        if value is None:
            raise UnsupportedOp(node.label, "a constant that is sparse or a string, which canon does not read")
        if int(value.data_type) in OTHER_TYPES:
            raise UnsupportedOp(node.label, f"a constant of {OTHER_TYPES[int(value.data_type)]} values")
        array, precision = array_of(value, self.folder)
        path = next((v for v in node.outputs if v), "")
        found = self.draft.held[path] = Known(array, path, (), precision)
        return found

    def _shape(self, node: Node) -> None:
        shape = self.value(node).shape
        if node.op == "Shape":
            start, stop, _ = slice(node.attrs.get("start"), node.attrs.get("end")).indices(len(shape))
            self.put(node, sizes_of(shape[start:stop]))
            return
        self.put(node, Known(sizes_of([product(shape)]).array.reshape(())))

    def _branch(self, node: Node, inside: int) -> bool:
        """Follow an If whose condition is known; whether it was."""
        condition = self.known(node, 0)
        if condition is None or condition.number() is None:
            return False
        if inside == MOST_INSIDE:
            raise CorruptFile(node.label, f"graphs inside graphs, {MOST_INSIDE} deep")
        g = node.attrs.get("then_branch" if condition.number() else "else_branch")
        if g is None or len(g.output) < len(node.outputs):
            raise CorruptFile(node.label, "an If without one of its branches")
        rename = {v: f"{node.label}/{v}" for n in g.node for v in n.output if v in self.values}
        for t in g.initializer:
            array, precision = array_of(t, self.folder)
            if t.name in self.values:
                rename[t.name] = f"{node.label}/{t.name}"
            self.values[rename.get(t.name, t.name)] = Known(array, "", (), precision)
        inner = [
            replace(n, inputs=tuple(rename.get(v, v) for v in n.inputs), outputs=tuple(rename.get(v, v) for v in n.outputs))
            for n in nodes_of(g, self.graph.versions)
        ]
        there = {*self.values, *self.graph.stored}
        for n in in_order(inner, there, {rename.get(p.name, p.name) for p in g.output}):
            self.convert(n, inside + 1)
        for i, p in enumerate(g.output):
            self.put(node, self.get(rename.get(p.name, p.name)), i)
        return True

    def opaque(self, node: Node, why: str) -> None:
        """A node that canon knows nothing about. Raises UnsupportedOp where not even the number of its axes is known."""
        inferred = self.inferred()
        ins, params = [], {}
        for i, name in enumerate(dict.fromkeys((*node.inputs, *captured(node)))):
            found = self.get(name) if name else None
            if isinstance(found, Value):
                ins.append(found)
            elif found is not None and not found.open and found.array.dtype.kind == "f":
                params[f"input{i}"] = self.tensor(node, found, f"input{i}")
        done = False
        for i, output in enumerate(node.outputs):
            if not output or (done and not self.is_read(output)):
                continue
            shape = inferred.get(output)
            if shape is None:
                if done:
                    continue
                raise UnsupportedOp(node.label, f"a node {node.op} ({why}), and the shape of what it computes is not known")
            dims, integer = shape
            batch = self._batch_of(dims, ins)
            bare = Value("", dims, batch)
            name = self.draft.add(
                "opaque", [v.name for v in ins], output, node.label, params, class_name=node.op, shape=list(bare.open)
            )
            self.put(node, Value(name, dims, batch, integer), i)
            done = True
        self.left[node.label] = f"{node.op}: {why}"

    def _batch_of(self, dims: Sequence[Dim], ins: Sequence[Value]) -> Batch | None:
        """Where the batch is taken to be in a value that canon knows nothing about."""
        if self.guess is None or not self.settled:
            return None
        for i in (0, 1):
            if i < len(dims) and dims[i] == self.batch_size and (isinstance(dims[i], Size) or i == (self.guess or 0)):
                return Batch(i)
        nameless = bool(dims) and isinstance(dims[0], Size) and dims[0].names[0].startswith(("?", "unk__"))
        return Batch(0) if nameless and ins and ins[0].batch == Batch(0) else None


def build(graph: Graph, table: Table, inferred: Inferred, folder: Path, taken: int | None = None) -> Builder:
    """The graph in the reading that leaves the fewest nodes over. Raises what the first reading raised, if none can be."""
    best: Builder | None = None
    first: GraphError | None = None
    make = partial(Builder, graph, table, inferred, folder=folder, taken=taken)
    for guess in (0, 1, None):
        if guess == 1 and all(p.shape is None or len(p.shape) < 3 for p in graph.inputs):
            continue
        try:
            found = make(guess=guess).run()
        except (UnsupportedOp, ShapeConflict) as e:
            first = first or e
            continue
        if best is None or len(found.left) < len(best.left):
            best = found
        if not best.left:
            break
    if best is None:
        assert first is not None
        raise first
    return best
