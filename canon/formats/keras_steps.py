"""TimeDistributed: ops wired for one step, taken over to all steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from canon.errors import UnsupportedOp
from canon.formats.keras_call import REFUSAL, Graph
from canon.ops import Op

STEPWISE = frozenset(
    ("dense", "relu", "tanh", "sigmoid", "softsign", "selu", "silu", "softplus", "linear", "dropout", "relu6", "leaky_relu",
     "elu", "gelu", "hard_sigmoid", "exp", "sin", "cos", "abs", "square", "hard_tanh", "hard_swish", "mish", "celu",
     "log_sigmoid", "thresholded_relu", "general_relu", "add", "subtract", "multiply", "average", "maximum", "minimum")
)  # fmt: skip
"""Kinds that do the same to every step of a sequence as to a value alone."""


def over_steps(steps: Graph, graph: Graph, inputs: Sequence[str], layer: str) -> None:
    """Add the ops of `steps`, wired on one step of the inputs, to the graph for all of their steps."""
    sequences = set(inputs)
    for op in steps.ops:
        if not sequences.issuperset(op.inputs):
            raise UnsupportedOp("", f"layer {layer!r} applies to every step what does not come from steps", REFUSAL)
        graph.add(_every_step(op, [len(steps.shapes[v]) for v in op.inputs], layer))
        sequences.add(op.output)


def _every_step(op: Op, ranks: Sequence[int], layer: str) -> Op:
    if op.kind in STEPWISE:
        return op
    if op.kind in ("concat", "softmax", "log_softmax", "batch_norm", "group_norm"):
        axis = int(op.attrs.get("axis", -1))
        if op.kind != "group_norm":
            return replace(op, attrs={**op.attrs, "axis": axis if axis < 0 else axis - ranks[0]})
    if op.kind in ("layer_norm", "rms_norm"):
        return replace(op, attrs={**op.attrs, "axes": [a if a < 0 else a - ranks[0] for a in op.attrs["axes"]]})
    if len(op.inputs) != 1:
        raise UnsupportedOp("", f"layer {layer!r} applies a {op.kind} of several values to every step", REFUSAL)
    if op.kind == "opaque":
        return replace(op, attrs={**op.attrs, "shape": [None, *op.attrs["shape"]]})
    return replace(op, kind="time_distributed", attrs={"inner": {"kind": op.kind, "attrs": dict(op.attrs)}})
