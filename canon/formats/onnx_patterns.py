"""Functions and norms that graphs write out in steps: GELU, SiLU, hard swish, Mish, softplus; layer, RMS and group norms."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from canon.formats.onnx_draft import Draft
from canon.formats.onnx_tidy import Rule, affine_numbers, near, rescaling
from canon.ops import Op

_DEEPEST = 12
_TANH = {1: sqrt(2 / pi), 3: 0.044715 * sqrt(2 / pi)}
"""The polynomial in GELU's approximation by tanh."""
Polynomial = dict[int, float]


def polynomial(draft: Draft, value: str, x: str, depth: int = 0) -> Polynomial | None:
    """A value as a polynomial of another, power by power; None where it is none."""
    if value == x:
        return {1: 1.0}
    op = draft.writer(value, "rescale", "add", "subtract", "multiply", "square", "power")
    if op is None or depth == _DEEPEST:
        return None
    parts = [polynomial(draft, v, x, depth + 1) for v in op.inputs]
    if any(p is None for p in parts):
        return None
    found = [p for p in parts if p is not None]
    if op.kind == "rescale":
        factor, offset = affine_numbers(op)
        out = {k: factor * c for k, c in found[0].items()}
        out[0] = out.get(0, 0.0) + offset
        return out
    if op.kind in ("add", "subtract"):
        sign = -1.0 if op.kind == "subtract" else 1.0
        return (
            {k: found[0].get(k, 0.0) + sign * found[1].get(k, 0.0) for k in {*found[0], *found[1]}} if len(found) == 2 else None
        )
    if op.kind == "power":
        times = float(op.attrs["exponent"])
        if times not in (2.0, 3.0, 4.0):
            return None
        found = found * int(times)
    elif op.kind == "square":
        found = found * 2
    total: Polynomial = {0: 1.0}
    for p in found:
        product: Polynomial = {}
        for i, a in total.items():
            for j, c in p.items():
                product[i + j] = product.get(i + j, 0.0) + a * c
        if max(product) > 6:
            return None
        total = product
    return total


def _is(found: Polynomial | None, wanted: Polynomial) -> bool:
    if found is None:
        return False
    size = max(abs(c) for c in wanted.values())
    return all(abs(found.get(k, 0.0) - wanted.get(k, 0.0)) <= 1e-5 * size for k in {*found, *wanted})


# products


def _factors(draft: Draft, value: str, top: bool = True) -> tuple[float, list[str]]:
    """A product taken apart: the numbers in it together, and the values."""
    op = draft.writer(value, "multiply", "rescale") if top else draft.only(value, "multiply", "rescale")
    if op is None or (op.kind == "rescale" and affine_numbers(op)[1] != 0):
        return 1.0, [value]
    if op.kind == "rescale":
        number, values = _factors(draft, op.inputs[0], False)
        return affine_numbers(op)[0] * number, values
    parts = [_factors(draft, v, False) for v in op.inputs]
    return float(np.prod([n for n, _ in parts])), [v for _, values in parts for v in values]


def gated(draft: Draft, op: Op) -> bool:
    """x times a function of x, under the name that the product has."""
    if op.kind != "multiply":
        return False
    number, values = _factors(draft, op.output)
    if len(values) != 2:
        return False
    for x, gate in (values, values[::-1]):
        found = _gate(draft, x, gate)
        if found is None:
            continue
        kind, attrs, size = found
        if near(number * size, 1.0):
            draft.put(Op(kind, op.name, (x,), op.output, {}, attrs))
        else:
            inner = draft.add(kind, [x], f"{op.output}:{kind}", f"{op.name}/{kind}", {}, **attrs)
            draft.put(Op("rescale", op.name, (inner,), op.output, {}, rescaling(number * size)))
        return True
    return False


def _gate(draft: Draft, x: str, gate: str) -> tuple[str, dict[str, Any], float] | None:
    """(kind, attributes, s) where x times the gate is s times a function of that kind."""
    op = draft.writer(gate)
    factor, offset = 1.0, 0.0
    if op is not None and op.kind == "rescale":
        factor, offset = affine_numbers(op)
        op = draft.writer(op.inputs[0])
    if op is None or len(op.inputs) != 1:
        return None
    plain = (factor, offset) == (1.0, 0.0)
    arg = op.inputs[0]
    if op.kind == "erf" and near(factor, offset) and _is(polynomial(draft, arg, x), {1: sqrt(0.5)}):
        return "gelu", {"approximate": False}, 2 * factor
    if op.kind == "tanh" and near(factor, offset) and _is(polynomial(draft, arg, x), _TANH):
        return "gelu", {"approximate": True}, 2 * factor
    if not plain and offset != 0:
        return None
    if op.kind == "sigmoid" and arg == x:
        return "silu", {}, factor
    if op.kind == "relu6" and near(float(op.attrs.get("cap", 6.0)), 6.0) and _is(polynomial(draft, arg, x), {0: 3.0, 1: 1.0}):
        return "hard_swish", {}, 6 * factor
    if op.kind == "hard_sigmoid" and arg == x and near(float(op.attrs["slope"]), 1 / 6):
        return "hard_swish", {}, factor
    if op.kind == "tanh":
        inner = draft.writer(arg, "softplus")
        if inner is not None and inner.inputs[0] == x:
            return "mish", {}, factor
    return None


# other functions


def functions(draft: Draft, op: Op) -> bool:
    """Hard sigmoid, softsign, softplus, log-sigmoid, log-softmax, leaky ReLU."""
    found = _function(draft, op)
    if found is None:
        return False
    kind, x, attrs = found
    draft.put(Op(kind, op.name, (x,), op.output, {}, attrs))
    return True


def _function(draft: Draft, op: Op) -> tuple[str, str, dict[str, Any]] | None:
    if op.kind == "rescale":
        cut = draft.only(op.inputs[0], "relu6")
        before = draft.only(cut.inputs[0], "rescale") if cut is not None else None
        if cut is not None and before is not None and affine_numbers(op)[1] == 0:
            factor, (slope, offset) = affine_numbers(op)[0], affine_numbers(before)
            if near(factor * float(cut.attrs.get("cap", 6.0)), 1.0) and near(factor * offset, 0.5):
                return "hard_sigmoid", before.inputs[0], {"slope": _tidy(factor * slope)}
    if op.kind == "relu6" and near(float(op.attrs.get("cap", 6.0)), 1.0):
        before = draft.only(op.inputs[0], "rescale")
        if before is not None and near(affine_numbers(before)[1], 0.5):
            return "hard_sigmoid", before.inputs[0], {"slope": affine_numbers(before)[0]}
    if op.kind == "divide":
        bottom = draft.only(op.inputs[1], "rescale")
        size = draft.only(bottom.inputs[0], "abs") if bottom is not None and affine_numbers(bottom) == (1.0, 1.0) else None
        if size is not None and size.inputs[0] == op.inputs[0]:
            return "softsign", op.inputs[0], {}
    if op.kind == "log":
        gate = draft.only(op.inputs[0], "sigmoid")
        if gate is not None:
            return "log_sigmoid", gate.inputs[0], {}
        soft = draft.only(op.inputs[0], "softmax")
        if soft is not None:
            return "log_softmax", soft.inputs[0], dict(soft.attrs)
        more = draft.only(op.inputs[0], "rescale")
        power = draft.only(more.inputs[0], "exp") if more is not None and affine_numbers(more) == (1.0, 1.0) else None
        if power is not None:
            return "softplus", power.inputs[0], {}
    if op.kind == "maximum" and len(op.inputs) == 2:
        for x, other in (op.inputs, op.inputs[::-1]):
            part = draft.only(other, "rescale")
            if part is not None and part.inputs[0] == x and affine_numbers(part)[1] == 0 and 0 < affine_numbers(part)[0] < 1:
                return "leaky_relu", x, {"alpha": affine_numbers(part)[0]}
    return None


def _tidy(number: float) -> float:
    """One sixth, where a number of float32 was meant to be that."""
    return 1 / 6 if near(number, 1 / 6) else number


# norms


def _root(draft: Draft, value: str) -> tuple[str, float] | None:
    """(m, p) where a value is m to the p, p one half or minus one half."""
    op = draft.writer(value, "power")
    if op is None:
        return None
    p = float(op.attrs["exponent"])
    if p in (0.5, -0.5):
        return op.inputs[0], p
    if p == -1:
        inner = draft.writer(op.inputs[0], "power")
        if inner is not None and float(inner.attrs["exponent"]) == 0.5:
            return inner.inputs[0], -0.5
    return None


def _mean(draft: Draft, value: str) -> tuple[str, list[int]] | None:
    """What a value is the mean of, and along which axes, kept with size one."""
    op = draft.writer(value, "reduce", "global_avg_pool")
    if op is None or not op.attrs.get("keepdims") or (op.kind == "reduce" and op.attrs["how"] != "mean"):
        return None
    rank = len(draft.shapes[op.inputs[0]])
    if op.kind == "reduce":
        return op.inputs[0], [int(a) % rank for a in op.attrs["axes"]]
    first = op.attrs.get("channels", "last") == "first"
    return op.inputs[0], list(range(1, rank)) if first else list(range(rank - 1))


def _centred(draft: Draft, value: str) -> tuple[str, list[int]] | None:
    """x and axes where a value is x less its mean."""
    op = draft.writer(value, "subtract")
    found = _mean(draft, op.inputs[1]) if op is not None else None
    return None if op is None or found is None or found[0] != op.inputs[0] else found


def spelled_norm(draft: Draft, op: Op) -> bool:
    """x over the root of the mean of its squares, x less its mean or not."""
    if op.kind not in ("multiply", "divide"):
        return False
    ways = [op.inputs] if op.kind == "divide" or len(op.inputs) != 2 else [op.inputs, op.inputs[::-1]]
    for top, bottom in ways:
        root = _root(draft, bottom)
        if root is None or root[1] != (0.5 if op.kind == "divide" else -0.5):
            continue
        inside, eps = root[0], 0.0
        shift = draft.writer(inside, "rescale")
        if shift is not None and affine_numbers(shift)[0] == 1:
            inside, eps = shift.inputs[0], affine_numbers(shift)[1]
        mean = _mean(draft, inside)
        square = draft.writer(mean[0], "square") if mean is not None else None
        if mean is None or square is None:
            continue
        centred, other = _centred(draft, top), _centred(draft, square.inputs[0])
        same = square.inputs[0] == top or (centred is not None and centred == other)
        if not same or eps < 0:
            continue
        rank = len(draft.shapes[top])
        attrs: dict[str, Any] = {"eps": _written(eps)}
        if mean[1] != [rank - 1]:
            attrs["axes"] = mean[1]
        if centred is not None and sorted(centred[1]) == sorted(mean[1]):
            draft.put(Op("layer_norm", op.name, (centred[0],), op.output, {}, attrs))
        else:
            draft.put(Op("rms_norm", op.name, (top,), op.output, {}, attrs))
        return True
    return False


def _written(number: float) -> float:
    """A number of float32 as it was meant: 1e-05, not 9.999999747378752e-06."""
    return float(f"{number:.6g}")


def group_norm(draft: Draft, op: Op) -> bool:
    """An instance norm of groups of channels that are laid out as one position after the other."""
    if op.kind != "reshape":
        return False
    norm = draft.only(op.inputs[0], "instance_norm")
    apart = draft.only(norm.inputs[0], "reshape") if norm is not None else None
    if norm is None or apart is None:
        return False
    x = apart.inputs[0]
    groups = draft.shapes[norm.output][0]
    plain = all(r not in norm.params or (draft.tensors[norm.params[r]] == v).all() for r, v in (("gamma", 1), ("beta", 0)))
    if draft.shapes[x] != draft.shapes[op.output] or int(norm.attrs.get("axis", -1)) != 0 or not plain or groups is None:
        return False
    channels = draft.shapes[x][0]
    if channels is None or channels % groups:
        return False
    draft.put(Op("group_norm", op.name, (x,), op.output, {}, {"axis": 0, "groups": groups, "eps": norm.attrs["eps"]}))
    return True


RULES: tuple[Rule, ...] = (gated, functions, spelled_norm, group_norm)
