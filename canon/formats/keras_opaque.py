"""Keras layers that canon does not know: held fast, never run, and read only where their output's shape can be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from canon.formats.common import is_real
from canon.formats.keras_call import Call
from canon.formats.keras_groups import Entry
from canon.formats.keras_layer import Layer
from canon.ops import Op
from canon.ops.base import Shape

TRAINING = ("initializer", "regularizer", "constraint", "dropout", "init", "_W", "_U", "_b", "_input_shape", "_config")
BOOKKEEPING = ("name", "trainable", "dtype", "input_dtype", "batch_input_shape", "input_shape", "consume_less",
               "implementation", "unroll")  # fmt: skip


def opaque(c: Call, shape: Shape) -> None:
    """Add the call as an opaque op of this output shape."""
    params = {role: c.tensor(role) for role, entry in c.weights.items() if is_real(entry.dataset.dtype)}
    attrs = {"class_name": c.cls, "shape": list(shape), "config": function(c.cfg), "output": c.name[len(c.layer) :]}
    c.graph.add(Op("opaque", c.name, c.inputs, c.name, params, {k: v for k, v in attrs.items() if v != ""}))
    c.graph.note(f"layer {c.layer!r} ({c.cls}) is opaque: its units are not moved")


def function(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what a layer computes: no names, nothing that only training uses."""
    return {k: v for k, v in sorted(cfg.items()) if k not in BOOKKEEPING and not k.endswith(TRAINING)}


def _lambda(c: Call) -> None:
    """A function of Python's, of which only the shape that comes out can be told."""
    told = c.cfg.get("output_shape")
    asked = c.demand()
    if isinstance(told, list) and told and all(n is None or isinstance(n, int) for n in told):
        opaque(c, tuple(told))
    elif asked is not None:
        opaque(c, asked)
    else:
        opaque(c, (None,) * len(c.graph.shapes[c.inputs[0]]))


def _custom(c: Call) -> None:
    """A layer of a class that is not Keras's: as its readers ask, or a merge of alike values without weights."""
    shapes = {c.graph.shapes[v] for v in c.inputs}
    asked = c.demand()
    if asked is not None:
        opaque(c, asked)
    elif len(shapes) == 1 and not c.weights and (len(c.inputs) > 1 or c.cls in ELEMENTWISE):
        opaque(c, next(iter(shapes)))
    else:
        raise c.refuse("is not supported: nothing tells what shape comes out of it")


def _same_shape(c: Call) -> None:
    opaque(c, c.graph.shapes[c.inputs[0]])


def _attention(c: Call) -> None:
    """Attention over values: a row for each query, as wide as the values (or as the options say)."""
    query, value = c.graph.shapes[c.inputs[0]], c.graph.shapes[c.inputs[min(1, len(c.inputs) - 1)]]
    if c.cls in ("Attention", "AdditiveAttention"):
        opaque(c, (*query[:-1], value[-1]))
    elif c.cfg.get("output_shape") is None:
        opaque(c, query)
    else:
        _custom(c)


def _named(wanted: Sequence[str], entries: Sequence[Entry]) -> Sequence[str]:
    """By their own roles, or their whole names where those repeat."""
    roles = [e.role for e in entries]
    if len(set(roles)) == len(roles):
        return roles
    return ["/".join(e.parts) for e in entries]


ELEMENTWISE = frozenset(
    (*(f"ops.{cls}" for cls in ("Add", "Subtract", "Multiply", "TrueDivide", "Divide", "Power", "Maximum", "Minimum")),
     *(f"tf.{at}.{word}" for at in ("math", "__operators__") for word in ("add", "subtract", "multiply", "truediv", "pow")))
)  # fmt: skip
"""Functions of a value and a number."""
SAME = ("Rescaling", "Normalization", "UnitNormalization")
ATTENTION = ("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention")

LAYERS: dict[str, Layer] = {
    "Lambda": Layer(_lambda),
    **dict.fromkeys(SAME, Layer(_same_shape, named=_named)),
    **dict.fromkeys(ATTENTION, Layer(_attention, named=_named)),
}
CUSTOM = Layer(_custom, named=_named)
"""Any class that is not in a table."""
