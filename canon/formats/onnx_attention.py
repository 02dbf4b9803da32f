"""Attention that a graph writes out: two matrix products with a softmax between them, and rotary positions before.

Queries, keys and values are recognised by the entries of the values that they are made of, not by the steps that lead there:
whatever reshapes and transposes split them into heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from canon.formats.onnx_draft import Draft
from canon.formats.onnx_join import HIDES
from canon.formats.onnx_known import Known
from canon.formats.onnx_layout import Way, sliced, stretch, way
from canon.formats.onnx_tidy import Rule, affine_numbers, near
from canon.ops import Op
from canon.ops.base import Array

_TABLE = 1e-4
"""How far sines and cosines of a table may be from those of its angles: tables are computed in float32."""


@dataclass(frozen=True)
class Heads:
    """A value split into heads. value: (positions, heads * width); heads: how many there are; width: of each; factor: what all
    is multiplied by; shared: how many of the heads asked for share each one.
    """

    value: str
    heads: int
    width: int
    factor: float
    shared: int = 1


def _heads(draft: Draft, found: Way, places: Array, name: str) -> Heads | None:
    """The heads of places (..., heads, positions, width)."""
    if places.ndim < 3:
        return None
    *lead, steps, width = places.shape
    heads = int(np.prod(lead))
    each = places.reshape(heads, steps, width)
    shared = next((g for g in range(heads, 0, -1) if heads % g == 0 and _repeated(each, g)), 1)
    each = each[::shared]
    flat = each.transpose(1, 0, 2).reshape(steps, len(each) * width)
    if len(found.shape) != 2 or flat.shape[0] != found.shape[0]:
        return None
    here = stretch(flat, found.shape)
    if here is None or (here[0] != 1 and here[1:] != (0, found.shape[0])):
        return None
    return Heads(sliced(draft, found.base, here, name), len(each), width, found.factor, shared)


def _repeated(each: Array, g: int) -> bool:
    groups = each.reshape(-1, g, *each.shape[1:])
    return bool((groups == groups[:, :1]).all())


# scores


@dataclass
class Scores:
    """What is between the product of queries and keys and the softmax."""

    value: str
    factor: float = 1.0
    hidden: Array | None = None
    bias: str = ""
    softcap: float = 0.0


def _scores(draft: Draft, value: str, masks: dict[str, Known]) -> Scores | None:
    """Back from the softmax to the product."""
    found = Scores(value)
    for _ in range(12):
        op = draft.writer(found.value)
        if op is None:
            return None
        if op.kind == "matmul":
            return found
        source = op.inputs[0]
        if op.kind in ("add_constant", "opaque"):
            known = masks.get(op.output)
            mask = draft.tensors[op.params["constant"]] if op.kind == "add_constant" else None if known is None else known.array
            if mask is None or not ((mask == 0) | (mask <= HIDES)).all() or found.factor <= 0:
                return None
            hides = np.broadcast_to(mask <= HIDES, np.broadcast_shapes(mask.shape, (1, 1)))
            found.hidden = hides if found.hidden is None else found.hidden | hides
        elif op.kind == "rescale" and affine_numbers(op)[1] == 0:
            found.factor *= affine_numbers(op)[0]
        elif op.kind == "tanh" and not found.softcap and not found.bias:
            found.softcap = found.factor  # c tanh(x): the score is c x
            if found.softcap <= 0:
                return None
        elif op.kind == "add" and len(op.inputs) == 2 and not found.bias and found.factor == 1:
            sides = [v for v in op.inputs if _leads_to_product(draft, v)]
            if (
                len(sides) != 1
                or len(draft.shapes[op.inputs[0]]) != 3
                or draft.shapes[op.inputs[0]] != draft.shapes[op.inputs[1]]
            ):
                return None
            source = sides[0]
            found.bias = next(v for v in op.inputs if v != source)
        elif op.kind in ("reshape", "flatten"):
            pass
        else:
            return None
        found.value = source
    return None


def _leads_to_product(draft: Draft, value: str) -> bool:
    for _ in range(6):
        op = draft.writer(value, "matmul", "rescale", "add_constant", "reshape")
        if op is None or op.kind == "matmul":
            return op is not None
        value = op.inputs[0]
    return False


def _masked(hidden: Array | None, steps: int, keys: int, heads: int) -> dict[str, Any] | None:
    """A mask in words: causal, and how far back a window reaches; None for one that has none."""
    if hidden is None or not hidden.any():
        return {}
    if hidden.shape[-2:] != (steps, keys) or (hidden.reshape(-1, steps, keys) != hidden.reshape(-1, steps, keys)[:1]).any():
        return None
    found = hidden.reshape(-1, steps, keys)[0]
    ahead = np.arange(keys) - np.arange(steps)[:, None]
    if np.array_equal(found, ahead > 0):
        return {"causal": True}
    reach = -int(ahead[~found].min()) + 1
    if np.array_equal(found, (ahead > 0) | (ahead <= -reach)):
        return {"causal": True, "window": reach}
    return {"window": reach} if np.array_equal(found, ahead <= -reach) else None


def attention(draft: Draft, op: Op, masks: dict[str, Known]) -> bool:
    """softmax(q k^T) v, as one operation on the layers' own values."""
    if op.kind != "matmul":
        return False
    weights = op.inputs[0]
    while (move := draft.writer(weights, "reshape")) is not None:
        weights = move.inputs[0]
    soft = draft.writer(weights, "softmax")
    if soft is None or int(soft.attrs.get("axis", -1)) % len(draft.shapes[soft.output]) != len(draft.shapes[soft.output]) - 1:
        return False
    scores = _scores(draft, soft.inputs[0], masks)
    product = draft.writer(scores.value, "matmul") if scores is not None else None
    if scores is None or product is None:
        return False
    ways = [way(draft, v, scaled=True) for v in (*product.inputs, op.inputs[1])]
    if any(w is None for w in ways):
        return False
    q, k, v = (w for w in ways if w is not None)
    names = [f"{op.name}/{x}" for x in "qkv"]
    found = [
        _heads(draft, q, q.places, names[0]),
        _heads(draft, k, k.places.swapaxes(-1, -2), names[1]),
        _heads(draft, v, v.places, names[2]),
    ]
    if any(h is None for h in found):
        return False
    queries, keys, values = (h for h in found if h is not None)
    heads = queries.heads * queries.shared
    if queries.shared != 1 or values.factor != 1 or (keys.heads, keys.shared) != (values.heads, values.shared):
        return False
    if keys.heads * keys.shared != heads or queries.width != keys.width:
        return False
    said = _masked(scores.hidden, q.places.shape[-2], k.places.shape[-1], heads)
    if said is None:
        return False
    scale = scores.factor * queries.factor * keys.factor
    attrs: dict[str, Any] = {"heads": heads}
    attrs |= {"kv_heads": keys.heads} if keys.heads != heads else {}
    attrs |= said
    attrs |= {} if near(scale, queries.width**-0.5) else {"scale": scale}
    attrs |= {"softcap": scores.softcap} if scores.softcap else {}
    ins = [queries.value, keys.value, values.value, *([scores.bias] if scores.bias else [])]
    y = draft.add("attention", ins, f"{op.output}:attention", f"{op.name}/attention", {}, **attrs)
    _split_again(draft, op, y, heads, values.width)
    return True


def _split_again(draft: Draft, op: Op, value: str, heads: int, width: int) -> None:
    """What the operation wrote, (..., heads, positions, width), from (positions, heads * width)."""
    shape = draft.shapes[op.output]
    steps = shape[-2]
    apart = draft.add(
        "reshape", [value], f"{op.output}:heads", f"{op.name}/heads", {}, shape=[-1 if steps is None else steps, heads, width]
    )
    turned = Op("permute", op.name, (apart,), op.output, {}, {"dims": [1, 0, 2]})
    if len(shape) == 3:
        draft.put(turned)
        return
    inner = draft.add("permute", [apart], f"{op.output}:turned", f"{op.name}/turned", {}, dims=[1, 0, 2])
    draft.put(Op("reshape", op.name, (inner,), op.output, {}, {"shape": [-1 if n is None else n for n in shape]}))


# rotary positions


def rotary(draft: Draft, op: Op) -> bool:
    """x cos + turned(x) sin, unit i turned with unit i + n / 2."""
    if op.kind != "add" or len(op.inputs) != 2:
        return False
    parts = [draft.writer(v, "multiply_constant") for v in op.inputs]
    if any(p is None for p in parts):
        return False
    for straight, crossed in (parts, parts[::-1]):
        assert straight is not None
        assert crossed is not None
        x = straight.inputs[0]
        if _turned_by_half(draft, crossed.inputs[0]) != x:
            continue
        tables = [draft.tensors[p.params["constant"]] for p in (straight, crossed)]
        turns = _frequencies(*tables)
        found = way(draft, x)
        if turns is None or found is None or len(draft.shapes[x]) != 3:
            continue
        shape = draft.shapes[x]
        first = tables[0].shape[0] != 1  # positions are the first axis, heads the second
        places = found.places.swapaxes(0, 1) if first else found.places
        heads = _heads(draft, found, places, f"{op.name}/x")
        if heads is None or heads.shared != 1:
            continue
        frequencies, factor = turns
        attrs: dict[str, Any] = {"heads": heads.heads, "frequencies": frequencies, "layout": "half"}
        attrs |= {} if factor == 1 else {"factor": factor}
        y = draft.add("rotary", [heads.value], f"{op.output}:rotary", f"{op.name}/rotary", {}, **attrs)
        steps = shape[0] if first else shape[1]
        wanted = [-1 if steps is None else steps, heads.heads, heads.width]
        if first:
            draft.put(Op("reshape", op.name, (y,), op.output, {}, {"shape": wanted}))
            return True
        apart = draft.add("reshape", [y], f"{op.output}:heads", f"{op.name}/heads", {}, shape=wanted)
        draft.put(Op("permute", op.name, (apart,), op.output, {}, {"dims": [1, 0, 2]}))
        return True
    return False


def _turned_by_half(draft: Draft, value: str) -> str | None:
    """x where a value is (-second half of x, first half of x) along the last axis."""
    op = draft.writer(value, "concat")
    if (
        op is None
        or len(op.inputs) != 2
        or int(op.attrs.get("axis", -1)) % len(draft.shapes[value]) != len(draft.shapes[value]) - 1
    ):
        return None
    minus = draft.writer(op.inputs[0], "rescale")
    if minus is None or affine_numbers(minus) != (-1.0, 0.0):
        return None
    second, first = draft.writer(minus.inputs[0], "slice"), draft.writer(op.inputs[1], "slice")
    n = draft.shapes[value][-1]
    if second is None or first is None or n is None or second.inputs != first.inputs:
        return None
    rank = len(draft.shapes[value])
    cuts = [(int(s.attrs.get("axis", -1)) % rank, s.attrs["start"], s.attrs["stop"]) for s in (first, second)]
    return first.inputs[0] if cuts == [(rank - 1, 0, n // 2), (rank - 1, n // 2, n)] else None


def _frequencies(cos: Array, sin: Array) -> tuple[list[float], float] | None:
    """The frequencies of tables of cosines and sines, (1, positions, n) or (positions, 1, n), and what multiplies both."""
    if cos.shape != sin.shape or cos.ndim != 3 or 1 not in cos.shape[:2]:
        return None
    c, s = (t.reshape(-1, t.shape[-1]).astype(np.float64) for t in (cos, sin))
    n = c.shape[1] // 2
    if len(c) < 2 or c.shape[1] % 2 or not np.array_equal(c[:, :n], c[:, n:]) or not np.array_equal(s[:, :n], s[:, n:]):
        return None
    factor = float(np.hypot(c[0, 0], s[0, 0]))
    angles = np.unwrap(np.arctan2(s[:, :n], c[:, :n]), axis=0)
    if factor == 0 or np.abs(angles[0]).max() > _TABLE:
        return None
    found = _steady(angles)
    steps = np.arange(len(c))[:, None] * found
    if max(np.abs(factor * np.cos(steps) - c[:, :n]).max(), np.abs(factor * np.sin(steps) - s[:, :n]).max()) > _TABLE * factor:
        return None
    return [float(f) for f in found], 1.0 if near(factor, 1.0) else factor


def _steady(angles: Array) -> Array:
    """Frequencies of the form base^(-2 i / n), if they are so for a whole base; else as the table has them."""
    n = angles.shape[1]
    found = angles[1]
    if n > 1 and near(float(found[0]), 1.0) and found[-1] > 0:
        base = float(found[-1]) ** (-n / (n - 1))
        for whole in (round(base), round(base, -1), round(base, -2), round(base, -3)):
            made = float(whole) ** (-np.arange(n) / n) if whole > 1 else found
            if np.abs(made - found).max() <= 1e-6 and np.allclose(made, found, rtol=1e-4, atol=0):
                return np.asarray(made)
    return np.asarray(found)


def rules(masks: dict[str, Known]) -> tuple[Rule, ...]:
    """The rules, with what opaque values hide."""
    return (rotary, lambda draft, op: attention(draft, op, masks))
