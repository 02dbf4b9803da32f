"""Keras layers that move values around: pooling, padding, cropping, resizing, reshaping, joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from canon.formats.keras_call import UNKNOWN_MASK, Call
from canon.formats.keras_layer import Layer, size, spatial
from canon.ops import Op


def _pool(c: Call) -> None:
    rank = spatial(c)
    pool = c.sizes("pool_size", rank, 2)
    padding = c.cfg.get("padding", "valid")
    if padding not in ("valid", "same"):
        raise c.refuse(f"with padding={padding!r} is not supported")
    c.op("max_pool" if c.cls.startswith("Max") else "avg_pool",
         pool=pool, strides=c.sizes("strides", rank, pool), padding=padding, channels=c.channels)  # fmt: skip


def _global_pool(c: Call) -> None:
    kind, keepdims = ("global_max_pool" if "Max" in c.cls else "global_avg_pool"), bool(c.cfg.get("keepdims", False))
    mask = c.graph.masks.get(c.inputs[0])
    if mask is None or c.cls != "GlobalAveragePooling1D":
        c.op(kind, channels=c.channels, keepdims=keepdims)
        return
    if mask == UNKNOWN_MASK or keepdims or c.channels != "last":
        raise c.refuse("on masked steps is not supported with these options")
    c.inputs = (*c.inputs, mask)
    c.op("masked_avg_pool")


def _pairs(c: Call, key: str) -> list[list[int]]:
    """[[low, high], ...] for every spatial axis, from any of Keras's ways to write it."""
    value, rank = c.cfg.get(key, 1), spatial(c)
    if isinstance(value, int):
        return [[value, value]] * rank
    if rank == 1 and len(value) == 2 and isinstance(value[0], int):
        return [[int(v) for v in value]]
    if rank == 2 and len(value) == 4:  # Keras 1: top, bottom, left, right
        return [[int(v) for v in value[:2]], [int(v) for v in value[2:]]]
    if len(value) != rank:
        raise c.refuse(f"with {key}={value!r} is not supported")
    return [[v, v] if isinstance(v, int) else [int(v[0]), int(v[1])] for v in value]


def _upsampling(c: Call) -> None:
    rank = spatial(c)
    how = c.cfg.get("interpolation") or "nearest"
    if how not in ("nearest", "bilinear"):
        raise c.refuse(f"with interpolation={how!r} is not supported")
    half: dict[str, Any] = {} if how == "nearest" else {"half_pixel": c.graph.era.half_pixel}
    c.op("upsampling", size=c.sizes("size", rank, 2), channels=c.channels, interpolation=how, **half)


def _permute(c: Call) -> None:
    dims = [int(n) - 1 for n in c.cfg["dims"]]
    if sorted(dims) != list(range(len(c.shape))):
        raise c.refuse(f"with dims={c.cfg['dims']} is not supported on a value of shape {c.shape}")
    c.op("permute", dims=dims)


def _dot(c: Call) -> None:
    shapes = [c.graph.shapes[v] for v in c.inputs]
    told = c.cfg.get("axes")
    told = [told, told] if isinstance(told, int) else told
    if told is None or len(shapes) != 2 or any(len(s) > 2 for s in shapes) or len(told) != 2:
        raise c.refuse("on these values is not supported")
    axes = [c.axis(a) % len(s) for a, s in zip(told, shapes, strict=True)]
    c.op("dot", axes=axes, normalize=bool(c.cfg.get("normalize", False)))


def _concat(c: Call) -> None:
    c.op("concat", axis=c.axis(c.cfg.get("axis")))


def _joining(kind: str, inputs: int = 0) -> Layer:
    """A layer that joins several values; inputs: how many there have to be."""

    def build(c: Call) -> None:
        if inputs and len(c.inputs) != inputs:
            raise c.refuse(f"on {len(c.inputs)} values is not supported")
        c.op(kind)

    return Layer(_meeting(build), keeps_mask=True)


def _meeting(build: Callable[[Call], None]) -> Callable[[Call], None]:
    """One input is handed on as it is: Keras allows it in a merge."""

    def one_or_more(c: Call) -> None:
        if len(c.inputs) == 1:
            c.graph.add(Op("linear", c.name, c.inputs, c.name))
        else:
            build(c)

    return one_or_more


LAYERS: dict[str, Layer] = {
    **{f"{which}Pooling{n}D": Layer(_pool) for which in ("Max", "Average") for n in (1, 2, 3)},
    **{f"Global{which}Pooling{n}D": Layer(_global_pool) for which in ("Max", "Average") for n in (1, 2, 3)},
    "Flatten": Layer(lambda c: c.op("flatten", channels=c.channels)),
    "Reshape": Layer(lambda c: c.op("reshape", shape=[int(n) for n in c.cfg["target_shape"]])),
    "Permute": Layer(_permute),
    "RepeatVector": Layer(lambda c: c.op("repeat_vector", n=size(c, "n"))),
    **{f"ZeroPadding{n}D": Layer(lambda c: c.op("zero_padding", padding=_pairs(c, "padding"), channels=c.channels))
       for n in (1, 2, 3)},
    **{f"Cropping{n}D": Layer(lambda c: c.op("cropping", cropping=_pairs(c, "cropping"), channels=c.channels))
       for n in (1, 2, 3)},
    **{f"UpSampling{n}D": Layer(_upsampling) for n in (1, 2, 3)},
    "Add": _joining("add"),
    "Multiply": _joining("multiply"),
    "Average": _joining("average"),
    "Maximum": _joining("maximum"),
    "Minimum": _joining("minimum"),
    "Subtract": _joining("subtract", 2),
    "Concatenate": Layer(_meeting(_concat), keeps_mask=True),
    "Dot": Layer(_dot),
}  # fmt: skip
