"""Which op of one network is which op of the other: by wiring, never by name.

Both graphs are walked together from the outputs. Inputs of operations that commute are put in the order of what feeds
them. What differs is listed in the order of the dataflow.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from canon.errors import MismatchError
from canon.network import Network
from canon.ops import Op, kind_of

_TRIVIAL = {"padding": "valid", "groups": 1, "channels": "last", "keepdims": False, "approximate": False}


@dataclass(frozen=True)
class Pairing:
    """ops, values, tensors: names in the second network -> names in the first."""

    ops: Mapping[str, str]
    values: Mapping[str, str]
    tensors: Mapping[str, str]


def attributes(op: Op, ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the op's attributes say, without what is said by default."""
    out: dict[str, Any] = {}
    for key, value in op.attrs.items():
        plain = json.loads(json.dumps(value, default=_jsonable))
        ones = (
            key in ("strides", "dilation")
            and op.kind not in ("max_pool", "avg_pool")
            and isinstance(plain, list)
            and set(plain) == {1}
        )
        if plain is None or ones or _TRIVIAL.get(key) == plain or key in ignore:
            continue
        out[key] = plain
    return out


def _jsonable(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else list(value) if isinstance(value, tuple) else str(value)


def signature(network: Network, op: Op, ignore: tuple[str, ...] = ()) -> str:
    """The op without names: kind, attributes, shapes of its parameters (a bias may be missing: it counts as zero)."""
    shapes = {role: network.tensors[t].shape for role, t in sorted(op.params.items()) if role != "bias"}
    said = _in_one_way(op, attributes(op, ignore), len(network.shapes[op.output]), shapes.get("kernel"))
    return json.dumps([op.kind, said, [[r, list(s)] for r, s in shapes.items()]], sort_keys=True)


_FROM_BEHIND = ("batch_norm", "softmax", "log_softmax", "slice", "group_norm", "instance_norm", "scale_shift", "concat")
"""Kinds whose axis is the last one where none is said."""
_WINDOWS = ("conv", "depthwise_conv", "grouped_conv")


def _in_one_way(op: Op, said: dict[str, Any], rank: int, kernel: tuple[int, ...] | None) -> dict[str, Any]:
    """What formats say in several ways, in one: axes counted from either end, padding by its name or by its numbers."""
    out = dict(said)
    if op.kind in _FROM_BEHIND and rank and isinstance(out.get("axis"), int) and out["axis"] % rank == rank - 1:
        del out["axis"]
    if (
        isinstance(out.get("axes"), list)
        and op.kind in ("layer_norm", "rms_norm")
        and [a % rank for a in out["axes"]] == [rank - 1]
    ):
        del out["axes"]
    if out.get("padding") == "same" and "strides" not in out and op.kind in _WINDOWS and kernel is not None:
        steps = out.get("dilation") or [1] * (len(kernel) - 2)
        reach = [(k - 1) * d for k, d in zip(kernel[2:], steps, strict=True)]
        out["padding"] = [[r // 2, r - r // 2] for r in reach]
    if (
        isinstance(out.get("padding"), list)
        and op.kind in (*_WINDOWS, "max_pool", "avg_pool")
        and not any(map(any, out["padding"]))
    ):
        del out["padding"]
    return out


def pair(a: Network, b: Network, ignore: tuple[str, ...] = ()) -> Pairing:
    """Pair two networks of one architecture; MismatchError names the first three differences."""
    if (
        len(a.outputs) != len(b.outputs)
        or len(a.inputs) != len(b.inputs)
        or [*map(len, a.inputs.values())] != [*map(len, b.inputs.values())]
    ):
        raise MismatchError("", "; ".join(differences(a, b, ignore)), _HINT)
    walk = _Walk(a, b, ignore)
    for va, vb in zip(a.outputs, b.outputs, strict=True):
        if not walk.value(va, vb):
            raise MismatchError("", "; ".join(differences(a, b, ignore)), _HINT)
    return Pairing(walk.ops, walk.values, walk.tensors)


_HINT = "Different architectures are compared over what they share with --partial."


class _Walk:
    def __init__(self, a: Network, b: Network, ignore: tuple[str, ...]) -> None:
        self.a, self.b, self.ignore = a, b, ignore
        self.ops: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.tensors: dict[str, str] = {}
        self.keys = tuple(value_keys(n, ignore) for n in (a, b))
        self.places = tuple({v: i for i, v in enumerate(n.inputs)} for n in (a, b))

    def value(self, va: str, vb: str) -> bool:
        stack = [(va, vb)]
        while stack:
            va, vb = stack.pop()
            if vb in self.values:
                if self.values[vb] != va:
                    return False
                continue
            oa, ob = self.a.writer.get(va), self.b.writer.get(vb)
            self.values[vb] = va
            if oa is None or ob is None:
                if oa is not ob or self.places[0][va] != self.places[1][vb]:
                    return False
                continue
            if signature(self.a, oa, self.ignore) != signature(self.b, ob, self.ignore) or len(oa.inputs) != len(ob.inputs):
                return False
            self.ops[ob.name] = oa.name
            for role, tb in ob.params.items():
                ta = oa.params.get(role, f"{oa.name}/{role}")
                if self.tensors.setdefault(tb, ta) != ta:
                    return False
            ins_a, ins_b = list(oa.inputs), list(ob.inputs)
            if kind_of(oa).commutes:
                ins_a.sort(key=self.keys[0].__getitem__)
                ins_b.sort(key=self.keys[1].__getitem__)
            stack += list(zip(ins_a, ins_b, strict=True))
        return True


def value_keys(network: Network, ignore: tuple[str, ...]) -> dict[str, str]:
    """For each value, a hash of all that it is computed from, names left out."""
    keys = {v: hashlib.sha256(f"input {i}".encode()).hexdigest() for i, v in enumerate(network.inputs)}
    for op in network.ops:
        ins = [keys[v] for v in op.inputs]
        said = signature(network, op, ignore) + "|".join(sorted(ins) if kind_of(op).commutes else ins)
        keys[op.output] = hashlib.sha256(said.encode()).hexdigest()
    return keys


def differences(a: Network, b: Network, ignore: tuple[str, ...] = (), most: int = 3) -> list[str]:
    """The first differences in the order of the dataflow, in words."""
    out: list[str] = []
    for what, left, right in (("inputs", list(a.inputs.values()), list(b.inputs.values())),):
        if [list(s) for s in left] != [list(s) for s in right]:
            out.append(f"{what} of shape {_shapes(left)} in a, {_shapes(right)} in b")
    sa, sb = ([signature(n, op, ignore) for op in n.ops] for n in (a, b))
    for tag, i, j, k, m in difflib.SequenceMatcher(None, sa, sb, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        both = min(j - i, m - k) if tag == "replace" else 0
        out += [_versus(a, a.ops[i + t], b, b.ops[k + t]) for t in range(both)]
        out += [f"{op.name}: {_said(a, op)} only in a" for op in a.ops[i + both : j]]
        out += [f"{op.name}: {_said(b, op)} only in b" for op in b.ops[k + both : m]]
    if not out:
        out.append("the same operations, wired differently")
    more = len(out) - most
    return [*out[:most], *([f"and {more} more"] if more > 0 else [])]


def _shapes(shapes: list[Any]) -> str:
    return " and ".join(str(tuple("any" if n is None else n for n in s)).replace("'", "") for s in shapes)


def _said(network: Network, op: Op) -> str:
    kernel = op.params.get("kernel")
    shape = f" {tuple(network.tensors[kernel].shape)}" if kernel else ""
    attrs = ", ".join(f"{k} {v}" for k, v in attributes(op, ("channels",)).items())
    return op.kind + shape + (f" ({attrs})" if attrs else "")


def _versus(a: Network, x: Op, b: Network, y: Op) -> str:
    name = x.name if x.name == y.name else f"{x.name} / {y.name}"
    return f"{name}: {_said(a, x)} in a, {_said(b, y)} in b"


def renamed(network: Network, to: Network, pairing: Pairing) -> Network:
    """The second network under the first one's names, with zero biases where only the first has them."""
    tensors = {pairing.tensors[t]: x for t, x in network.tensors.items() if t in pairing.tensors}
    ops = []
    own = {op.name: op for op in to.ops}
    for op in network.ops:
        name = pairing.ops[op.name]
        params = {r: pairing.tensors[t] for r, t in op.params.items()}
        if "bias" in own[name].params and "bias" not in params:
            params["bias"] = own[name].params["bias"]
            tensors.setdefault(params["bias"], np.zeros(to.tensors[params["bias"]].shape, np.float32))
        ops.append(
            replace(
                op,
                name=name,
                inputs=tuple(pairing.values[v] for v in op.inputs),
                output=pairing.values[op.output],
                params=params,
            )
        )
    # in the first network's order, and with its order of inputs
    ops = [
        replace(o, inputs=own[o.name].inputs, attrs=own[o.name].attrs)
        for o in sorted(ops, key=lambda o: list(own).index(o.name))
    ]
    inputs = {pairing.values.get(v, v): s for v, s in network.inputs.items()}
    return Network(tensors, tuple(ops), inputs, to.outputs)


def with_biases(network: Network, other: Network, pairing: Pairing) -> Network:
    """The first network with zero biases where only the second has them."""
    back = {a: b for b, a in pairing.ops.items()}
    theirs = {op.name: op for op in other.ops}
    tensors, ops = dict(network.tensors), []
    for op in network.ops:
        match = theirs.get(back.get(op.name, ""))
        if match is not None and "bias" in match.params and "bias" not in op.params:
            name = f"{op.name}/bias"
            tensors[name] = np.zeros(other.tensors[match.params["bias"]].shape, np.float32)
            op = replace(op, params={**op.params, "bias": name})
        ops.append(op)
    return Network(tensors, tuple(ops), network.inputs, network.outputs)
