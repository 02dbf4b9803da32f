"""What each op is as a Keras layer: class, options and arrays in Keras's layout. An op without an entry is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canon.errors import UnsupportedOp
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array

HINT = "Write it in canon's own format, which holds every network."
ACTIVATIONS = {
    **{kind: kind for kind in ("relu", "tanh", "sigmoid", "softsign", "selu", "softplus", "linear", "hard_sigmoid", "softmax",
                               "log_softmax", "gelu", "elu", "celu", "mish", "log_sigmoid", "hard_tanh", "silu")},
    "exp": "exponential",
    "hard_swish": "hard_silu",
}  # fmt: skip
"""Kinds that Keras knows by name as an activation, with attributes as its name implies."""
NO_RATE = "the rates of dropout and noise are not kept: they change nothing at inference"


@dataclass(frozen=True)
class Expressed:
    """A layer for an op. takes_activation: whether the class has that option; before: a padding layer it needs first."""

    cls: str
    cfg: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    takes_activation: bool = False
    before: Expressed | None = None
    notes: tuple[str, ...] = ()


Express = Callable[[Network, Op], Expressed]


def refuse(op: Op, what: str = "") -> UnsupportedOp:
    """The error for what Keras has no layer for."""
    kind = op.attrs.get("class_name", op.kind) if op.kind == "opaque" else op.kind
    return UnsupportedOp(op.name, f"Keras has no layer for {what or f'a {kind} operation'}", HINT)


def _data_format(op: Op) -> dict[str, Any]:
    return {"data_format": f"channels_{op.attrs.get('channels', 'last')}"}


def _arrays(network: Network, op: Op, **layouts: Callable[[Array], Array]) -> dict[str, Array]:
    """The op's parameters in Keras's layout, in the order of the keywords."""
    params = network.params(op)
    return {role: make(params[role]) for role, make in layouts.items() if role in params}


def _same(a: Array) -> Array:
    return a


def _dense(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, kernel=np.transpose, bias=_same)
    cfg = {"units": int(arrays["kernel"].shape[1]), "activation": "linear", "use_bias": "bias" in arrays}
    return Expressed("Dense", cfg, arrays, takes_activation=True)


def _to_last(a: Array) -> Array:
    """(out, in, *window) to (*window, in, out)."""
    return a.transpose(*range(2, a.ndim), 1, 0)


def _window(op: Op, rank: int, *, causal: bool = True) -> tuple[dict[str, Any], Expressed | None]:
    """Strides, dilation, padding and channels, and a layer that pads by hand where Keras has no word for it."""
    padding, before = op.attrs.get("padding", "valid"), None
    if not isinstance(padding, str):
        pairs = [[int(lo), int(hi)] for lo, hi in padding]
        if any(n for pair in pairs for n in pair):
            said: Any = pairs[0] if rank == 1 else pairs
            before = Expressed(f"ZeroPadding{rank}D", {"padding": said, **({} if rank == 1 else _data_format(op))})
            if rank == 1 and op.attrs.get("channels", "last") != "last":
                raise refuse(op, "padding of one axis with channels first")
        padding = "valid"
    if padding == "causal" and not causal:
        raise refuse(op, "this padding")
    cfg = {"strides": [int(n) for n in op.attrs.get("strides") or [1] * rank], "padding": padding, **_data_format(op)}
    return {**cfg, "dilation_rate": [int(n) for n in op.attrs.get("dilation") or [1] * rank]}, before


def _conv(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, kernel=_to_last, bias=_same)
    *window, _, out = arrays["kernel"].shape
    rank = len(window)
    cfg, before = _window(op, rank)
    size = {"filters": int(out), "kernel_size": [int(n) for n in window], "groups": int(op.attrs.get("groups", 1))}
    if rank not in (1, 2, 3):
        raise refuse(op, f"a convolution over {rank} axes")
    more = {"activation": "linear", "use_bias": "bias" in arrays}
    return Expressed(f"Conv{rank}D", {**size, **cfg, **more}, arrays, takes_activation=True, before=before)


def _depthwise(network: Network, op: Op) -> Expressed:
    shape = network.shapes[op.inputs[0]]
    inner = shape[0] if op.attrs.get("channels") == "first" else shape[-1]
    kernel = network.params(op)["kernel"]
    rank = kernel.ndim - 2
    multiplier = len(kernel) // int(inner or len(kernel))
    cfg, before = _window(op, rank, causal=rank == 1)
    if rank not in (1, 2):
        raise refuse(op, f"a depthwise convolution over {rank} axes")
    arrays = {"depthwise_kernel": kernel.transpose(*range(2, kernel.ndim), 0, 1)
              .reshape(*kernel.shape[2:], -1, multiplier)}  # fmt: skip
    arrays |= _arrays(network, op, bias=_same)
    size = {"kernel_size": [int(n) for n in kernel.shape[2:]], "depth_multiplier": multiplier}
    more = {"activation": "linear", "use_bias": "bias" in arrays}
    return Expressed(f"DepthwiseConv{rank}D", {**size, **cfg, **more}, arrays, takes_activation=True, before=before)


def _transposed(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, kernel=lambda a: a.transpose(*range(2, a.ndim), 0, 1), bias=_same)
    *window, out, _ = arrays["kernel"].shape
    cfg, before = _window(op, len(window), causal=False)
    if before is not None:
        raise refuse(op, "a transposed convolution that is cropped by hand")
    told = op.attrs.get("output_padding")
    size = {"filters": int(out), "kernel_size": [int(n) for n in window]}
    more = {"output_padding": told, "activation": "linear", "use_bias": "bias" in arrays}
    return Expressed(f"Conv{len(window)}DTranspose", {**size, **cfg, **more}, arrays, takes_activation=True)


def _locally(network: Network, op: Op) -> Expressed:
    params = network.params(op)
    kernel = params["kernel"]
    rank = (kernel.ndim - 2) // 2
    places, window = kernel.shape[2 : 2 + rank], kernel.shape[2 + rank :]
    if op.attrs.get("channels") == "first" and rank == 2:
        stored = kernel.transpose(2, 3, 1, 4, 5, 0)
    else:
        stored = kernel.transpose(*range(2, kernel.ndim), 1, 0)
    arrays = {"kernel": stored.reshape(int(np.prod(places)), -1, len(kernel))}
    if "bias" in params:
        arrays["bias"] = params["bias"].transpose(*range(1, params["bias"].ndim), 0)
    cfg = {"filters": len(kernel), "kernel_size": list(window), "strides": op.attrs["strides"], **_data_format(op),
           "padding": "valid", "implementation": 1, "activation": "linear", "use_bias": "bias" in params}  # fmt: skip
    note = "LocallyConnected layers are no longer in Keras 3: only Keras 2 loads them"
    return Expressed(f"LocallyConnected{rank}D", cfg, arrays, takes_activation=True, notes=(note,))


def _batch_axis(axis: int) -> int:
    return axis + 1 if axis >= 0 else axis


def _batch_norm(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, gamma=_same, beta=_same)
    arrays |= {f"moving_{role}": a for role, a in _arrays(network, op, mean=_same, variance=_same).items()}
    cfg = {"axis": _batch_axis(int(op.attrs.get("axis", -1))), "epsilon": float(op.attrs["eps"])}
    return Expressed("BatchNormalization", {**cfg, "center": "beta" in arrays, "scale": "gamma" in arrays}, arrays)


def _scale_shift(network: Network, op: Op) -> Expressed:
    """A batch norm that has nothing to take away: mean 0, variance 1, epsilon 0."""
    gamma, beta = network.params(op)["scale"], network.params(op)["shift"]
    arrays = {"gamma": gamma, "beta": beta, "moving_mean": np.zeros_like(beta), "moving_variance": np.ones_like(beta)}
    cfg = {"axis": _batch_axis(int(op.attrs.get("axis", -1))), "epsilon": 0.0, "center": True, "scale": True}
    return Expressed("BatchNormalization", cfg, arrays)


def _layer_norm(network: Network, op: Op) -> Expressed:
    axes = [_batch_axis(int(a)) for a in op.attrs["axes"]]
    eps = float(op.attrs["eps"])
    if op.kind == "rms_norm":
        gamma = network.params(op).get("gamma")
        if gamma is None:
            gamma = np.ones([network.shapes[op.inputs[0]][a] or 1 for a in op.attrs["axes"]], np.float32)
        return Expressed("RMSNormalization", {"axis": axes[0] if len(axes) == 1 else axes, "epsilon": eps}, {"scale": gamma})
    arrays = _arrays(network, op, gamma=_same, beta=_same)
    cfg = {"axis": axes[0] if len(axes) == 1 else axes, "epsilon": eps, "center": "beta" in arrays, "scale": "gamma" in arrays}
    return Expressed("LayerNormalization", cfg, arrays)


def _group_norm(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, gamma=_same, beta=_same)
    cfg = {"groups": int(op.attrs.get("groups", -1)), "axis": _batch_axis(int(op.attrs.get("axis", -1))),
           "epsilon": float(op.attrs["eps"]), "center": "beta" in arrays, "scale": "gamma" in arrays}  # fmt: skip
    return Expressed("GroupNormalization", cfg, arrays)


def _act(network: Network, op: Op) -> Expressed:
    if op.kind == "gelu" and op.attrs.get("approximate"):
        raise refuse(op, "an approximate gelu")
    if op.kind == "celu" and op.attrs.get("alpha", 1.0) != 1.0:
        raise refuse(op, "a celu of another alpha than 1")
    if op.kind == "elu":
        return Expressed("ELU", {"alpha": float(op.attrs.get("alpha", 1.0))})
    if op.kind == "softmax":
        return Expressed("Softmax", {"axis": _batch_axis(int(op.attrs.get("axis", -1)))})
    if op.kind == "log_softmax" and op.attrs.get("axis", -1) not in (-1, len(network.shapes[op.inputs[0]]) - 1):
        raise refuse(op, "a log_softmax over another axis than the last")
    return Expressed("Activation", {"activation": ACTIVATIONS[op.kind]})


def _relu(network: Network, op: Op) -> Expressed:
    a = op.attrs
    top = float(a.get("cap", 6.0)) if op.kind == "relu6" else a.get("max_value")
    threshold = float(a["theta"]) if op.kind == "thresholded_relu" else float(a.get("threshold", 0.0))
    return Expressed("ReLU", {"max_value": top, "negative_slope": float(a.get("negative_slope", 0.0)), "threshold": threshold})


def _prelu(network: Network, op: Op) -> Expressed:
    alpha = network.params(op)["alpha"]
    shape = network.shapes[op.inputs[0]]
    shared = [i + 1 for i, (n, m) in enumerate(zip(alpha.shape, shape, strict=True)) if n == 1 and m != 1]
    return Expressed("PReLU", {"shared_axes": shared or None}, {"alpha": alpha})


def _pool(network: Network, op: Op) -> Expressed:
    rank = len(op.attrs["pool"])
    if not isinstance(op.attrs.get("padding", "valid"), str):
        raise refuse(op, "pooling that pads by hand")
    name = f"{'Max' if op.kind == 'max_pool' else 'Average'}Pooling{rank}D"
    cfg = {"pool_size": list(op.attrs["pool"]), "strides": list(op.attrs["strides"]), "padding": op.attrs["padding"]}
    return Expressed(name, {**cfg, **_data_format(op)})


def _global_pool(network: Network, op: Op) -> Expressed:
    rank = len(network.shapes[op.inputs[0]]) - 1
    name = f"Global{'Max' if op.kind == 'global_max_pool' else 'Average'}Pooling{rank}D"
    return Expressed(name, {**_data_format(op), "keepdims": bool(op.attrs.get("keepdims"))})


def _spatial(cls: str, key: str, attr: str) -> Express:
    """A layer over spatial axes with one option."""

    def express(network: Network, op: Op) -> Expressed:
        rank = len(network.shapes[op.inputs[0]]) - 1
        said = [list(n) if isinstance(n, list | tuple) else n for n in op.attrs[attr]]
        cfg = {key: said[0] if rank == 1 else said, **_data_format(op)}
        if rank == 1:
            if op.attrs.get("channels", "last") != "last":
                raise refuse(op, f"{cls}1D with channels first")
            del cfg["data_format"]
        if op.attrs.get("interpolation", "nearest") != "nearest":
            if rank != 2 or not op.attrs.get("half_pixel", True):
                raise refuse(op, "this interpolation")
            cfg["interpolation"] = op.attrs["interpolation"]
        return Expressed(f"{cls}{rank}D", cfg)

    return express


def _embedding(network: Network, op: Op) -> Expressed:
    table = network.params(op)["table"]
    masks = any(r.kind == "step_mask" and r.attrs.get("tokens") for r in network.readers[op.inputs[0]])
    cfg = {"input_dim": len(table), "output_dim": int(table.shape[1]), "mask_zero": masks}
    return Expressed("Embedding", cfg, {"embeddings": table})


def _recurrent(network: Network, op: Op) -> Expressed:
    arrays = _arrays(network, op, kernel=np.transpose, recurrent_kernel=np.transpose, bias=_same)
    cfg: dict[str, Any] = {"units": int(arrays["recurrent_kernel"].shape[0])}
    for key in ("activation", "recurrent_activation"):
        if key == "activation" or op.kind != "simple_rnn":
            cfg[key] = _inner(op, op.attrs.get(key, "tanh" if key == "activation" else "sigmoid"))
    cfg |= {"use_bias": "bias" in arrays, "return_sequences": bool(op.attrs.get("return_sequences")),
            "go_backwards": bool(op.attrs.get("go_backwards"))}  # fmt: skip
    if op.attrs.get("zero_output_for_mask"):
        cfg["zero_output_for_mask"] = True
    if op.kind == "gru":
        cfg["reset_after"] = bool(op.attrs.get("reset_after"))
    return Expressed({"lstm": "LSTM", "gru": "GRU", "simple_rnn": "SimpleRNN"}[op.kind], cfg, arrays)


def _inner(op: Op, said: Any) -> str:
    kind = said if isinstance(said, str) else said["kind"]
    attrs = {} if isinstance(said, str) else {k: v for k, v in said.items() if k not in ("kind", "slope")}
    if kind not in ACTIVATIONS or any(v not in (1.0, False) for v in attrs.values()):
        raise refuse(op, f"a {op.kind} with {kind} inside")
    return ACTIVATIONS[kind]


def _timed(network: Network, op: Op) -> Expressed:
    inner = op.attrs["inner"]
    (shape,) = [network.shapes[v] for v in op.inputs]
    step = Op(inner["kind"], op.name, ("x",), "y", op.params, inner["attrs"])
    apart = Network(network.tensors, (step,), {"x": shape[1:]}, ("y",))
    if inner["kind"] not in EXPRESS:
        raise refuse(op)
    said = EXPRESS[inner["kind"]](apart, apart.ops[0])
    if said.before is not None:
        raise refuse(op, "padding by hand at every step")
    layer = {"class_name": said.cls, "config": {"name": "layer", "trainable": True, **said.cfg}}
    return Expressed("TimeDistributed", {"layer": layer}, said.arrays, notes=said.notes)


def _simple(cls: str, **options: Callable[[Op], Any]) -> Express:
    return lambda network, op: Expressed(cls, {key: get(op) for key, get in options.items()})


def _masking(network: Network, op: Op) -> Expressed:
    return Expressed("Masking", {"mask_value": float(op.attrs["mask_value"])})


def _dropout(network: Network, op: Op) -> Expressed:
    return Expressed("Dropout", {"rate": 0.0}, notes=(NO_RATE,))


EXPRESS: dict[str, Express] = {
    "dense": _dense,
    "conv": _conv,
    "grouped_conv": _conv,
    "depthwise_conv": _depthwise,
    "conv_transpose": _transposed,
    "locally_connected": _locally,
    "batch_norm": _batch_norm,
    "scale_shift": _scale_shift,
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("group_norm", "instance_norm"), _group_norm),
    **dict.fromkeys(ACTIVATIONS, _act),
    **dict.fromkeys(("relu6", "general_relu", "thresholded_relu"), _relu),
    "leaky_relu": _simple("LeakyReLU", alpha=lambda op: float(op.attrs["alpha"])),
    "prelu": _prelu,
    **dict.fromkeys(("max_pool", "avg_pool"), _pool),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), _global_pool),
    "masked_avg_pool": lambda network, op: Expressed("GlobalAveragePooling1D", {"data_format": "channels_last"}),
    "flatten": lambda network, op: Expressed("Flatten", _data_format(op)),
    "reshape": _simple("Reshape", target_shape=lambda op: [int(n) for n in op.attrs["shape"]]),
    "permute": _simple("Permute", dims=lambda op: [int(n) + 1 for n in op.attrs["dims"]]),
    "repeat_vector": _simple("RepeatVector", n=lambda op: int(op.attrs["n"])),
    "zero_padding": _spatial("ZeroPadding", "padding", "padding"),
    "cropping": _spatial("Cropping", "cropping", "cropping"),
    "upsampling": _spatial("UpSampling", "size", "size"),
    "add": _simple("Add"),
    "subtract": _simple("Subtract"),
    "multiply": _simple("Multiply"),
    "average": _simple("Average"),
    "maximum": _simple("Maximum"),
    "minimum": _simple("Minimum"),
    "concat": _simple("Concatenate", axis=lambda op: _batch_axis(int(op.attrs.get("axis", -1)))),
    "dot": _simple("Dot", axes=lambda op: [_batch_axis(int(a)) for a in op.attrs["axes"]],
                   normalize=lambda op: bool(op.attrs.get("normalize"))),
    "dropout": _dropout,
    "masking": _masking,
    "embedding": _embedding,
    **dict.fromkeys(("lstm", "gru", "simple_rnn"), _recurrent),
    "time_distributed": _timed,
}  # fmt: skip
