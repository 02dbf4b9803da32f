"""ONNX nodes unit by unit, norms, and softmax."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from canon.errors import ReadError
from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_join import against, clipped, rescaled
from canon.formats.onnx_known import Known
from canon.formats.onnx_linear import sizes_of
from canon.formats.onnx_size import product
from canon.formats.onnx_value import Unfit

SELU = 1.67326319217681884765625, 1.05070102214813232421875
"""ONNX's alpha and gamma, in float32."""

# functions of single numbers


def _plain(b: Builder, node: Node, kind: str, **attrs: Any) -> None:
    x = b.value(node)
    b.put(node, b.op(node, kind, [x], dims=x.dims, **attrs))


def _with_alpha(b: Builder, node: Node, kind: str, alpha: float, name: str = "alpha") -> None:
    _plain(b, node, kind, **{name: round_off(float(node.attrs.get("alpha", alpha)))})


def round_off(number: float) -> float:
    """A number that was written in float32, as it was meant."""
    return float(np.format_float_positional(np.float32(number), unique=True)) if np.float32(number) == number else number


def _selu(b: Builder, node: Node) -> None:
    alpha, gamma = float(node.attrs.get("alpha", SELU[0])), float(node.attrs.get("gamma", SELU[1]))
    if abs(alpha - SELU[0]) < 1e-4 and abs(gamma - SELU[1]) < 1e-4:
        _plain(b, node, "selu")
        return
    x = b.value(node)
    inner = b.op(node, "elu", [x], dims=x.dims, suffix=":elu", alpha=round_off(alpha))
    b.put(node, rescaled(b, node, inner, round_off(gamma)))


def _hard_sigmoid(b: Builder, node: Node) -> None:
    alpha, beta = float(node.attrs.get("alpha", 0.2)), float(node.attrs.get("beta", 0.5))
    if beta == 0.5:
        _plain(b, node, "hard_sigmoid", slope=round_off(alpha))
        return
    inner = rescaled(b, node, b.value(node), round_off(alpha), round_off(beta), ":slope")
    b.put(node, clipped(b, node, inner, 0.0, 1.0))


def _gelu(b: Builder, node: Node) -> None:
    _plain(b, node, "gelu", approximate=str(node.attrs.get("approximate", "none")) == "tanh")


def _swish(b: Builder, node: Node) -> None:
    x, alpha = b.value(node), float(node.attrs.get("alpha", 1.0))
    if alpha == 1:
        _plain(b, node, "silu")
        return
    gate = b.op(node, "sigmoid", [rescaled(b, node, x, alpha, suffix=":slope")], dims=x.dims, suffix=":gate")
    b.put(node, b.op(node, "multiply", [x, gate], dims=x.dims))


# softmax


def _softmax(b: Builder, node: Node, kind: str) -> None:
    """Along one axis; before operator set 13, along all from that axis on as if they were one."""
    x = b.value(node)
    old = node.version < 13
    axis = int(node.attrs.get("axis", 1 if old else -1))
    axis = axis + x.rank if axis < 0 else axis
    if not 0 <= axis < x.rank:
        raise Unfit(f"axis {axis} of a value with {x.rank}")
    behind = [i for i in range(axis, x.rank) if x.shape[i] != 1]
    if not old or len(behind) <= 1:
        along = x.axis(behind[0] if old and behind else axis)
        n = len(x.dims)
        b.put(node, b.op(node, kind, [x], dims=x.dims, axis=-1 if along == n - 1 else along))
        return
    if any(x.batch is not None and i == x.batch.axis for i in range(axis, x.rank)):
        raise Unfit("it works along the batch")
    flat = b.relay(node, x, (*x.shape[:axis], product(x.shape[axis:])), x.batch, ":flat")
    y = b.op(node, kind, [flat], dims=flat.dims, suffix=":in one", axis=-1)
    b.put(node, b.relay(node, y, x.shape, x.batch))


# norms


def _vector(b: Builder, node: Node, i: int, role: str, n: int | None = None) -> dict[str, str]:
    if not b.given(node, i):
        return {}
    found = b.need(node, i)
    if found.array.ndim != 1 or (n is not None and found.array.size != n):
        raise Unfit(f"its {role} has shape {found.array.shape}")
    return {role: b.tensor(node, found, role)}


def _batch_norm(b: Builder, node: Node) -> None:
    x = b.value(node)
    if int(node.attrs.get("training_mode", 0)) or (node.version < 7 and not int(node.attrs.get("is_test", 0))):
        raise ReadError(node.label, "a batch norm in training mode, whose statistics are those of its batch",
                        "Export the model in evaluation mode.")  # fmt: skip
    b.unused(node, 1)
    if not int(node.attrs.get("spatial", 1)) and x.rank > 2:
        raise Unfit("a batch norm with statistics for each position")
    x.needs_batch(0)
    params: dict[str, str] = {}
    for i, role in enumerate(("gamma", "beta", "mean", "variance"), 1):
        params |= _vector(b, node, i, role)
    eps = round_off(float(node.attrs.get("epsilon", 1e-5)))
    b.put(node, b.op(node, "batch_norm", [x], params, dims=x.dims, axis=-1 if x.rank == 2 else 0, eps=eps))


def _instance_norm(b: Builder, node: Node) -> None:
    x = b.value(node)
    sizes_of(x)
    params = _vector(b, node, 1, "gamma") | _vector(b, node, 2, "beta")
    eps = round_off(float(node.attrs.get("epsilon", 1e-5)))
    b.put(node, b.op(node, "instance_norm", [x], params, dims=x.dims, axis=0, eps=eps))


def _layer_norm(b: Builder, node: Node, kind: str = "layer_norm") -> None:
    x, first = b.value(node), int(node.attrs.get("axis", -1))
    b.unused(node, 1)
    x.axis(first)
    axes = [x.axis(i) for i in range(first % x.rank, x.rank)]
    shape = tuple(x.shape[i] for i in range(first % x.rank, x.rank))
    params = {}
    for i, role in enumerate(("gamma", "beta")[: 2 if kind == "layer_norm" else 1], 1):
        if b.given(node, i):
            found = b.need(node, i)
            if found.array.shape != shape:
                raise Unfit(f"its {role} has shape {found.array.shape}")
            params[role] = b.tensor(node, found, role)
    n = len(x.dims)
    attrs: dict[str, Any] = {"eps": round_off(float(node.attrs.get("epsilon", 1e-5)))}
    if axes != [n - 1]:
        attrs["axes"] = axes
    b.put(node, b.op(node, kind, [x], params, dims=x.dims, **attrs))


def _group_norm(b: Builder, node: Node) -> None:
    x, groups = b.value(node), int(node.attrs["num_groups"])
    sizes_of(x)
    channels = x.shape[1]
    params = {}
    for i, role in ((1, "gamma"), (2, "beta")):
        found = b.need(node, i)
        if node.version < 21 and isinstance(channels, int) and groups != channels:  # one for each group, and no view of it
            found = Known(np.repeat(found.array, channels // groups))
        params[role] = b.tensor(node, found, role)
    eps = round_off(float(node.attrs.get("epsilon", 1e-5)))
    b.put(node, b.op(node, "group_norm", [x], params, dims=x.dims, axis=0, groups=groups, eps=eps))


def _lrn(b: Builder, node: Node) -> None:
    x = b.value(node)
    x.needs_batch(0)
    attrs: dict[str, Any] = {"size": int(node.attrs["size"])}
    for name, plain in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        attrs[name] = round_off(float(node.attrs.get(name, plain)))
    b.put(node, b.op(node, "local_response_norm", [x], dims=x.dims, channels="first", **attrs))


def _skip_layer_norm(b: Builder, node: Node) -> None:
    """onnxruntime's sum and layer norm in one."""
    b.unused(node, 1)
    x, y = b.value(node), b.value(node, 1)
    if (x.shape, x.batch) != (y.shape, y.batch):
        raise Unfit("its two values differ in shape")
    total = b.op(node, "add", [x, y], dims=x.dims, suffix=":sum")
    if b.given(node, 4):
        name = b.tensor(node, against(x, b.need(node, 4)), "bias")
        total = b.op(node, "add_constant", [total], {"constant": name}, dims=x.dims, suffix=":bias")
    params = _vector(b, node, 2, "gamma") | _vector(b, node, 3, "beta")
    eps = round_off(float(node.attrs.get("epsilon", 1e-12)))
    b.put(node, b.op(node, "layer_norm", [total], params, dims=x.dims, eps=eps))


TABLE: dict[str, Convert] = {
    **{
        op: partial(_plain, kind=kind)
        for op, kind in (
            ("Relu", "relu"), ("Sigmoid", "sigmoid"), ("Tanh", "tanh"), ("Softsign", "softsign"), ("Softplus", "softplus"),
            ("Exp", "exp"), ("Sin", "sin"), ("Cos", "cos"), ("Abs", "abs"), ("Erf", "erf"), ("Log", "log"), ("Sign", "sign"),
            ("HardSwish", "hard_swish"), ("Mish", "mish"),
        )
    },
    "Sqrt": partial(_plain, kind="power", exponent=0.5),
    "Reciprocal": partial(_plain, kind="power", exponent=-1.0),
    "Floor": partial(_plain, kind="round", how="floor"),
    "Ceil": partial(_plain, kind="round", how="ceil"),
    "Round": partial(_plain, kind="round", how="nearest"),
    "LeakyRelu": partial(_with_alpha, kind="leaky_relu", alpha=0.01),
    "Elu": partial(_with_alpha, kind="elu", alpha=1.0),
    "Celu": partial(_with_alpha, kind="celu", alpha=1.0),
    "ThresholdedRelu": partial(_with_alpha, kind="thresholded_relu", alpha=1.0, name="theta"),
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    "com.microsoft.Gelu": _gelu,
    "Swish": _swish,
    "Softmax": partial(_softmax, kind="softmax"),
    "LogSoftmax": partial(_softmax, kind="log_softmax"),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": partial(_layer_norm, kind="rms_norm"),
    "SimplifiedLayerNormalization": partial(_layer_norm, kind="rms_norm"),
    "com.microsoft.SkipLayerNormalization": _skip_layer_norm,
    "GroupNormalization": _group_norm,
    "LRN": _lrn,
}  # fmt: skip
