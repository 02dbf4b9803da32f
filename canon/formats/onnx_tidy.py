"""What graphs spell out, written as the operations that it means: biases, gains of norms, activations, tables of positions.

Each rule looks at one operation and at what leads to it, and puts one operation in the place of several, where nothing else
reads what is between. Rules are tried until none changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from canon.formats.onnx_draft import Draft, walk
from canon.formats.onnx_known import simplified
from canon.ops import Op
from canon.ops.geometry import channel_axis

Rule = Callable[[Draft, Op], bool]

AFFINE = ("dense", "conv", "conv_transpose", "depthwise_conv", "grouped_conv")
NEAR = 1e-5
"""Relative: numbers of a formula that were rounded to float32."""


def settle(draft: Draft, rules: tuple[Rule, ...]) -> None:
    """Apply rules until none changes anything."""
    for _ in range(100):
        changed = False
        for op in walk(draft.ops.values()):
            if draft.ops.get(op.output) is op:
                changed = any(rule(draft, op) for rule in rules) or changed
        if not changed:
            return


def near(a: float, b: float) -> bool:
    """Whether two numbers of formulas are meant to be one."""
    return abs(a - b) <= NEAR * max(abs(a), abs(b))


def affine_numbers(op: Op) -> tuple[float, float]:
    """Factor and offset of a rescale."""
    return float(op.attrs.get("factor", 1.0)), float(op.attrs.get("offset", 0.0))


def rescaling(factor: float, offset: float = 0.0) -> dict[str, float]:
    """Attributes of a rescale, those that say something."""
    return {k: v for k, v, plain in (("factor", factor, 1.0), ("offset", offset, 0.0)) if v != plain}


def units_axis(draft: Draft, op: Op) -> int:
    """The axis of the units in what an affine operation writes."""
    rank = len(draft.shapes[op.output])
    return rank - 1 if op.kind == "dense" else channel_axis(op) % rank


# one number for another


def merge_rescales(draft: Draft, op: Op) -> bool:
    """Two in a row are one, and one that is nothing goes."""
    if op.kind != "rescale":
        return False
    factor, offset = affine_numbers(op)
    if near(factor, 1.0) and offset == 0:
        draft.redirect(op.output, op.inputs[0])
        draft.drop(op.output)
        return True
    before = draft.only(op.inputs[0], "rescale")
    if before is None:
        return False
    f, o = affine_numbers(before)
    draft.put(replace(op, inputs=before.inputs, attrs=rescaling(factor * f, factor * o + offset)))
    draft.drop(before.output)
    return True


# parameters


def bias(draft: Draft, op: Op) -> bool:
    """A constant a unit behind a kernel without a bias is its bias."""
    if op.kind != "add_constant":
        return False
    before = draft.only(op.inputs[0], *AFFINE)
    shape = draft.tensors[op.params["constant"]].shape
    if before is None or "bias" in before.params:
        return False
    at = units_axis(draft, before)
    n = draft.shapes[before.output][at]
    if shape[at] != n or any(k != 1 for i, k in enumerate(shape) if i != at):
        return False
    draft.drop(before.output)
    draft.put(
        replace(before, output=op.output, params={**before.params, "bias": draft.laid(op.params["constant"], (shape[at],))})
    )
    return True


_NORMS = ("layer_norm", "rms_norm", "instance_norm", "group_norm")


def norm_parameters(draft: Draft, op: Op) -> bool:
    """A gain and a shift behind a norm that has none of its own."""
    role = {"multiply_constant": "gamma", "add_constant": "beta"}.get(op.kind)
    before = draft.only(op.inputs[0], *_NORMS) if role else None
    if role is None or before is None or role in before.params or (role == "gamma" and "beta" in before.params):
        return False
    if role == "beta" and before.kind == "rms_norm":
        return False
    rank = len(draft.shapes[op.output])
    axes = before.attrs.get("axes", [-1]) if before.kind in ("layer_norm", "rms_norm") else [before.attrs.get("axis", -1)]
    at = [int(a) % rank for a in axes]
    shape, value = draft.tensors[op.params["constant"]].shape, draft.shapes[op.output]
    if at != sorted(at) or any(k != (value[i] if i in at else 1) for i, k in enumerate(shape)):
        return False
    name = draft.laid(op.params["constant"], tuple(shape[i] for i in at))
    draft.drop(before.output)
    draft.put(replace(before, output=op.output, params={**before.params, role: name}))
    return True


def positions(draft: Draft, op: Op) -> bool:
    """A table added to all positions of a sequence: the whole of it is kept, of which some rows are used."""
    if op.kind != "add_constant":
        return False
    tensor, shape = op.params["constant"], draft.shapes[op.output]
    table = draft.tensors[tensor]
    if len(shape) != 2 or table.shape != shape or 1 in table.shape:
        return False
    spot, offset = draft.layout.get(tensor), 0
    if spot is not None and spot.factor == 1 and spot.power == 1:
        stored = draft.held[spot.path].array.shape
        cuts = [s for s in spot.steps if s[0] == "cut"]
        rest = simplified([s for s in spot.steps if s[0] not in ("cut", "reshape")])
        if len(cuts) == 1 and not rest and len(stored) == 2 and cuts[0][1] == 0 and stored[1] == shape[1]:
            tensor, offset = draft.tensor(draft.held[spot.path], spot.path), int(cuts[0][2])
    attrs = {"offset": offset} if offset else {}
    draft.put(Op("add_positions", op.name, op.inputs, op.output, {"table": tensor}, attrs))
    return True


def laid_out_last(draft: Draft, op: Op) -> bool:
    """A flatten behind a transpose that takes the channels last."""
    before = draft.only(op.inputs[0], "permute") if op.kind == "flatten" and not op.attrs else None
    if before is None:
        return False
    dims = [int(d) for d in before.attrs["dims"]]
    if len(dims) < 2 or dims != [*range(1, len(dims)), 0]:
        return False
    draft.put(replace(op, inputs=before.inputs, attrs={"channels": "first"}))
    draft.drop(before.output)
    return True


PARAMETERS: tuple[Rule, ...] = (merge_rescales, bias, norm_parameters, laid_out_last)
LAST: tuple[Rule, ...] = (positions,)


def untie(draft: Draft) -> None:
    """Vectors of one number (ones, zeros) that several layers share were merged by what wrote the graph: each has its own."""
    uses: dict[str, list[tuple[str, str]]] = {}
    for op in draft.ops.values():
        for role, t in op.params.items():
            uses.setdefault(t, []).append((op.output, role))
    for tensor, found in uses.items():
        values = draft.tensors[tensor]
        if len(found) < 2 or values.ndim != 1 or not (values == values[:1]).all():
            continue
        for output, role in found[1:]:
            op = draft.ops[output]
            draft.put(replace(op, params={**op.params, role: draft.copy(tensor, f"{op.name}/{role}")}))


def tie(draft: Draft) -> list[str]:
    """A dense layer back to the tokens whose kernel is the table of their embedding: one tensor with two uses.

    Graphs keep such a kernel a second time, transposed. Returns the names of the copies that go.
    """
    tables = {op.params["table"] for op in draft.ops.values() if op.kind == "embedding"}
    gone = []
    for op in [op for op in draft.ops.values() if op.kind == "dense"]:
        kernel = op.params["kernel"]
        for table in tables - {kernel}:
            one, other = draft.tensors[table], draft.tensors[kernel]
            if one.shape != other.shape or one.dtype != other.dtype or not np.array_equal(one, other):
                continue
            spots = draft.layout.get(table), draft.layout.get(kernel)
            if spots[0] is None or spots[1] is None:
                continue
            draft.layout[table] = replace(spots[0], copies=(*spots[0].copies, spots[1]))
            draft.put(replace(op, params={**op.params, "kernel": table}))
            gone.append(kernel)
            break
    return gone


# inputs


def flat_inputs(draft: Draft) -> list[str]:
    """Leave out of an input the axes of size one that are flattened away: (1, 1, 5) is five numbers. Returns the inputs."""
    return [v for v in list(draft.inputs) if _flatten_input(draft, v)]


_KEEP = ("rescale", "add_constant", "multiply_constant", "clamp", "relu", "tanh", "clip", "relu6")


def _flatten_input(draft: Draft, value: str) -> bool:
    shape = draft.shapes[value]
    if len(shape) < 2 or None in shape or sum(n != 1 for n in shape) > 1 or value in draft.outputs:
        return False
    n = max(k or 1 for k in shape)
    inner: list[Op] = []
    ends: list[Op] = []
    stack = [value]
    while stack:
        v = stack.pop()
        for op in draft.readers(v):
            if op.output in draft.outputs or len(op.inputs) != 1:
                return False
            if op.kind in _KEEP:
                inner.append(op)
                stack.append(op.output)
            elif op.kind in ("flatten", "reshape") and draft.shapes[op.output] == (n,):
                ends.append(op)
            else:
                return False
    if not ends:
        return False
    draft.inputs[value] = draft.shapes[value] = (n,)
    for op in inner:
        params = {r: draft.laid(t, (n,) if draft.tensors[t].size == n else (1,)) for r, t in op.params.items()}
        draft.put(replace(op, params=params))
    for op in ends:
        draft.redirect(op.output, op.inputs[0])
        draft.drop(op.output)
    return True
