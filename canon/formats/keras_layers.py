"""What each Keras layer is made of: its weights and the ops it becomes. A layer that is not in LAYERS is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from canon.formats.common import kernel_axes
from canon.formats.keras_call import Call, activation
from canon.formats.keras_one import OLD_KERNEL
from canon.ops import Op

STATISTICS = ("moving_mean", "moving_variance")
"""Roles that training does not touch: Keras lists them after all others."""


def _spatial(c: Call) -> int:
    return int(c.cls[-2])  # Conv2D, MaxPooling1D


def _flips(c: Call, axes: range) -> tuple[int, ...]:
    """Axes of a stored convolution kernel to flip; Keras converts Theano's kernels this way."""
    c.graph.flips_unknown |= c.graph.era.unknown_backend
    return tuple(axes) if c.graph.era.theano else ()


def _bias(c: Call, size: int | None) -> dict[str, str]:
    return {"bias": c.tensor("bias", (size,))} if "bias" in c.weights else {}


def _input_channels(c: Call) -> int | None:
    return c.shape[0] if c.channels == "first" else c.shape[-1]


def _size(c: Call, key: str) -> int:
    value = c.cfg[key]
    if not isinstance(value, int) or value < 1:
        raise c.refuse(f"with {key}={value!r} is not supported")
    return value


def _window(c: Call, rank: int) -> dict[str, Any]:
    padding = c.cfg.get("padding", "valid")
    if padding not in ("valid", "same") and not (padding == "causal" and rank == 1):
        raise c.refuse(f"with padding={padding!r} is not supported")
    return {
        "strides": c.sizes("strides", rank),
        "dilation": c.sizes("dilation_rate", rank),
        "padding": padding,
        "channels": c.channels,
    }


def _dense(c: Call) -> None:
    units = _size(c, "units")
    kernel = c.tensor("kernel", (c.shape[-1], units), ((1, 0),))
    c.op("dense", {"kernel": kernel, **_bias(c, units)}, activated=True)


def _conv(c: Call) -> None:
    c.only(groups=1)
    rank, filters = _spatial(c), _size(c, "filters")
    window, inner = c.sizes("kernel_size", rank), _input_channels(c)
    found = c.weights["kernel"].dataset.shape
    if OLD_KERNEL in c.cfg and rank == 1 and len(found) == 4:
        kernel = _old_conv1d(c, found, window[0], inner, filters)
    elif c.cfg.get(OLD_KERNEL) == "th":
        kernel = c.tensor("kernel", (filters, inner, *window), (None, None, _flips(c, range(2, 2 + rank))))
    else:
        kernel = c.tensor("kernel", (*window, inner, filters), (kernel_axes(rank + 2), None, _flips(c, range(rank))))
    c.op("conv", {"kernel": kernel, **_bias(c, filters)}, activated=True, **_window(c, rank))


def _old_conv1d(c: Call, found: tuple[int, ...], window: int, inner: int | None, filters: int) -> str:
    """Keras 1 stored (window, 1, in, out), and before 1.1 (out, in, window, 1)."""
    if found[1] == 1 and found[3] == filters:
        c.fits("kernel", found, (window, 1, inner, filters))
        return c.tensor("kernel", None, ((2, 1, 0), (found[0], *found[2:]), _flips(c, range(1))))
    c.fits("kernel", found, (filters, inner, window, 1))
    return c.tensor("kernel", None, (None, found[:3], _flips(c, range(2, 3))))


def _depthwise_kernel(c: Call, rank: int) -> tuple[str, int | None]:
    multiplier, inner = int(c.cfg.get("depth_multiplier", 1)), _input_channels(c)
    window = c.sizes("kernel_size", rank)
    found = c.weights["depthwise_kernel"].dataset.shape
    c.fits("depthwise_kernel", found, (*window, inner, multiplier))
    joined = (*found[:-2], found[-2] * found[-1], 1)  # output channel c * multiplier + m
    name = c.tensor("depthwise_kernel", None, ((rank, rank + 1, *range(rank)), joined))
    return name, found[-2] * found[-1]


def _depthwise(c: Call) -> None:
    if c.cfg.get(OLD_KERNEL) == "th":
        raise c.refuse("with Theano's kernel layout is not supported")
    rank = _spatial(c)
    kernel, out = _depthwise_kernel(c, rank)
    c.op("depthwise_conv", {"kernel": kernel, **_bias(c, out)}, activated=True, **_window(c, rank))


def _separable(c: Call) -> None:
    if c.cfg.get(OLD_KERNEL) == "th":
        raise c.refuse("with Theano's kernel layout is not supported")
    rank, filters = _spatial(c), _size(c, "filters")
    kernel, between = _depthwise_kernel(c, rank)
    inner = f"{c.layer}/depthwise" + c.name[len(c.layer) :]
    c.graph.add(Op("depthwise_conv", inner, c.inputs, inner, {"kernel": kernel}, _window(c, rank)))
    c.inputs = (inner,)
    mix = c.tensor("pointwise_kernel", ((1,) * rank + (between, filters)), (kernel_axes(rank + 2),))
    ones = [1] * rank
    c.op("conv", {"kernel": mix, **_bias(c, filters)}, activated=True,
         strides=ones, dilation=ones, padding="valid", channels=c.channels)  # fmt: skip


def _batch_norm(c: Call) -> None:
    c.only(renorm=False, virtual_batch_size=None)
    axis = c.axis(c.cfg.get("axis"))
    if not -len(c.shape) <= axis < len(c.shape):
        raise c.refuse(f"with axis={c.cfg.get('axis')!r} is not supported on a value of shape {c.shape}")
    roles = {"gamma": "gamma", "beta": "beta", "mean": "moving_mean", "variance": "moving_variance"}
    params = {role: c.tensor(stored, (c.shape[axis],)) for role, stored in roles.items() if stored in c.weights}
    c.op("batch_norm", params, axis=axis, eps=c.number("epsilon", default=1e-3))


def _act(c: Call) -> None:
    kind, attrs = activation(c, c.cfg["activation"]) or ("linear", {})
    c.op(kind, **attrs)


def _relu(c: Call) -> None:
    top, slope, threshold = (
        c.number(k, default=d) for k, d in (("max_value", -1.0), ("negative_slope", 0.0), ("threshold", 0.0))
    )
    if threshold or (top >= 0 and slope) or top == 0:
        raise c.refuse(f"with max_value={top:g}, negative_slope={slope:g}, threshold={threshold:g} is not supported")
    if top > 0:
        c.op("relu6", cap=top)
    elif slope:
        c.op("leaky_relu", alpha=slope)
    else:
        c.op("relu")


def _leaky(c: Call) -> None:
    alpha = c.number("negative_slope", "alpha", default=0.3)
    if alpha:
        c.op("leaky_relu", alpha=alpha)
    else:
        c.op("relu")


def _prelu(c: Call) -> None:
    shared = [c.axis(a) for a in c.cfg.get("shared_axes") or []]
    wanted = [1 if i in shared or i - len(c.shape) in shared else n for i, n in enumerate(c.shape)]
    c.op("prelu", {"alpha": c.tensor("alpha", wanted)})


def _pool(c: Call) -> None:
    rank = _spatial(c)
    window = c.sizes("pool_size", rank, 2)
    padding = c.cfg.get("padding", "valid")
    if padding not in ("valid", "same"):
        raise c.refuse(f"with padding={padding!r} is not supported")
    c.op("max_pool" if c.cls.startswith("Max") else "avg_pool",
         pool=window, strides=c.sizes("strides", rank, window), padding=padding, channels=c.channels)  # fmt: skip


def _global_pool(c: Call) -> None:
    kind = "global_max_pool" if c.cls.startswith("GlobalMax") else "global_avg_pool"
    c.op(kind, channels=c.channels, keepdims=bool(c.cfg.get("keepdims", False)))


def _zero_padding(c: Call) -> None:
    value = c.cfg.get("padding", 1)
    rank = _spatial(c)
    if isinstance(value, int):
        pairs = [[value, value]] * rank
    elif rank == 1:
        pairs = [[int(v) for v in value]]
    elif isinstance(value, list) and len(value) == 4:  # Keras 1: top, bottom, left, right
        pairs = [[int(v) for v in value[:2]], [int(v) for v in value[2:]]]
    else:
        pairs = [[v, v] if isinstance(v, int) else [int(v[0]), int(v[1])] for v in value]
    c.op("zero_padding", padding=pairs, channels=c.channels)


def _joining(kind: str) -> Callable[[Call], None]:
    """A layer that joins several values."""

    def build(c: Call) -> None:
        if kind == "concat":
            c.op(kind, axis=c.axis(c.cfg.get("axis")))
        else:
            c.op(kind)

    return build


def _opaque(c: Call) -> None:
    """A layer whose units canon does not move, and whose output shape its options tell."""
    if c.cls == "Embedding":
        shape = (*c.graph.shapes[c.inputs[0]], _size(c, "output_dim"))
    else:
        c.only(return_state=False, time_major=False)
        steps, *_ = c.graph.shapes[c.inputs[0]]
        shape = (steps, _size(c, "units")) if c.cfg.get("return_sequences") else (_size(c, "units"),)
    params = {role: c.tensor(role) for role in c.weights}
    c.op("opaque", params, class_name=c.cls, shape=list(shape), config=_function(c.cfg))
    c.graph.note(f"layer {c.layer!r} ({c.cls}) is opaque: its units are not moved")


def _function(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide what a layer computes: no names, nothing that only training uses."""
    training = (
        "initializer",
        "regularizer",
        "constraint",
        "dropout",
        "init",
        "_W",
        "_U",
        "_b",
        "_input_shape",
        "_config",
    )
    names = (
        "name",
        "trainable",
        "dtype",
        "input_dtype",
        "batch_input_shape",
        "input_shape",
        "consume_less",
        "implementation",
        "unroll",
    )
    return {k: v for k, v in sorted(cfg.items()) if k not in names and not k.endswith(training)}


def _noop(c: Call) -> None:
    c.op("dropout")


@dataclass(frozen=True)
class Layer:
    """build adds a call to the graph; weights says which roles the options ask for, in Keras's order."""

    build: Callable[[Call], None]
    weights: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda cfg: ()
    any_weights: bool = False
    """Whether what the file holds is taken instead (Keras 1 had a dozen for an LSTM)."""


def _with_bias(*roles: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    return lambda cfg: (*roles, "bias") if cfg.get("use_bias", True) else roles


def _norm(cfg: Mapping[str, Any]) -> tuple[str, ...]:
    scale, centre = ("gamma",) * bool(cfg.get("scale", True)), ("beta",) * bool(cfg.get("center", True))
    return scale + centre + STATISTICS


_RECURRENT = Layer(_opaque, _with_bias("kernel", "recurrent_kernel"), any_weights=True)
_NOOP = Layer(_noop)

LAYERS: dict[str, Layer] = {
    "Dense": Layer(_dense, _with_bias("kernel")),
    **{f"Conv{n}D": Layer(_conv, _with_bias("kernel")) for n in (1, 2)},
    **{f"DepthwiseConv{n}D": Layer(_depthwise, _with_bias("depthwise_kernel")) for n in (1, 2)},
    **{f"SeparableConv{n}D": Layer(_separable, _with_bias("depthwise_kernel", "pointwise_kernel")) for n in (1, 2)},
    **{f"BatchNormalization{v}": Layer(_batch_norm, _norm) for v in ("", "V1", "V2")},
    "Activation": Layer(_act),
    "ReLU": Layer(_relu),
    "LeakyReLU": Layer(_leaky),
    "PReLU": Layer(_prelu, lambda cfg: ("alpha",)),
    "ELU": Layer(lambda c: c.op("elu", alpha=c.number("alpha", default=1.0))),
    "Softmax": Layer(lambda c: c.op("softmax", axis=c.axis(c.cfg.get("axis")))),
    **{f"{which}Pooling{n}D": Layer(_pool) for which in ("Max", "Average") for n in (1, 2)},
    **{f"Global{which}Pooling{n}D": Layer(_global_pool) for which in ("Max", "Average") for n in (1, 2)},
    "Flatten": Layer(lambda c: c.op("flatten", channels=c.channels)),
    "Reshape": Layer(lambda c: c.op("reshape", shape=[int(n) for n in c.cfg["target_shape"]])),
    **{f"ZeroPadding{n}D": Layer(_zero_padding) for n in (1, 2)},
    "Add": Layer(_joining("add")),
    "Multiply": Layer(_joining("multiply")),
    "Concatenate": Layer(_joining("concat")),
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise",
                     "GaussianDropout", "AlphaDropout", "ActivityRegularization"), _NOOP),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _RECURRENT),
    "Embedding": Layer(_opaque, lambda cfg: ("embeddings",), any_weights=True),
}  # fmt: skip
