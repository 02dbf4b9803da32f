"""Keras layers with a kernel: dense, convolutions of all kinds, locally connected."""

from __future__ import annotations

from typing import Any

from canon.formats.common_layout import kernel_axes
from canon.formats.keras_call import Call
from canon.formats.keras_layer import Layer, bias, flips, input_channels, size, spatial, window, with_bias
from canon.formats.keras_one import OLD_KERNEL
from canon.ops import Op


def _dense(c: Call) -> None:
    units = size(c, "units")
    kernel = c.tensor("kernel", (c.shape[-1], units), ((1, 0),))
    c.op("dense", {"kernel": kernel, **bias(c, units)}, activated=True)


def _conv(c: Call) -> None:
    rank, filters, groups = spatial(c), size(c, "filters"), int(c.cfg.get("groups") or 1)
    shape, inner = c.sizes("kernel_size", rank), input_channels(c)
    if inner is not None:
        inner //= groups
    found = c.weights["kernel"].dataset.shape
    if OLD_KERNEL in c.cfg and rank == 1 and len(found) == 4:
        kernel = _old_conv1d(c, found, shape[0], inner, filters)
    elif c.cfg.get(OLD_KERNEL) == "th":
        kernel = c.tensor("kernel", (filters, inner, *shape), (None, None, flips(c, "kernel", range(2, 2 + rank))))
    else:
        kernel = c.tensor("kernel", (*shape, inner, filters), (kernel_axes(rank + 2), None, flips(c, "kernel", range(rank))))
    grouped: dict[str, Any] = {"groups": groups} if groups > 1 else {}
    kind = "grouped_conv" if grouped else "conv"
    c.op(kind, {"kernel": kernel, **bias(c, filters)}, activated=True, **window(c, rank), **grouped)


def _old_conv1d(c: Call, found: tuple[int, ...], length: int, inner: int | None, filters: int) -> str:
    """Keras 1 stored (window, 1, in, out), and before 1.1 (out, in, window, 1)."""
    if found[1] == 1 and found[3] == filters:
        c.fits("kernel", found, (length, 1, inner, filters))
        return c.tensor("kernel", None, ((2, 1, 0), (found[0], *found[2:]), flips(c, "kernel", range(1))))
    c.fits("kernel", found, (filters, inner, length, 1))
    return c.tensor("kernel", None, (None, found[:3], flips(c, "kernel", range(2, 3))))


def _transposed(c: Call) -> None:
    rank, filters = spatial(c), size(c, "filters")
    c.only(groups=1)
    if OLD_KERNEL in c.cfg:
        raise c.refuse("in Keras 1's layout is not supported")
    inner = input_channels(c)
    wanted = (*c.sizes("kernel_size", rank), filters, inner)
    kernel = c.tensor("kernel", wanted, ((rank, rank + 1, *range(rank)), None, flips(c, "kernel", range(rank))))
    told = c.cfg.get("output_padding")
    more = {} if told is None else {"output_padding": c.sizes("output_padding", rank)}
    c.op("conv_transpose", {"kernel": kernel, **bias(c, filters)}, activated=True, **window(c, rank), **more)


def _depthwise_kernel(c: Call, rank: int) -> tuple[str, int | None]:
    multiplier, inner = int(c.cfg.get("depth_multiplier", 1)), input_channels(c)
    shape = c.sizes("kernel_size", rank)
    found = c.weights["depthwise_kernel"].dataset.shape
    c.fits("depthwise_kernel", found, (*shape, inner, multiplier))
    joined = (*found[:-2], found[-2] * found[-1], 1)  # output channel c * multiplier + m
    name = c.tensor("depthwise_kernel", None, ((rank, rank + 1, *range(rank)), joined))
    return name, found[-2] * found[-1]


def _depthwise(c: Call) -> None:
    if c.cfg.get(OLD_KERNEL) == "th":
        raise c.refuse("with Theano's kernel layout is not supported")
    rank = spatial(c)
    kernel, out = _depthwise_kernel(c, rank)
    c.op("depthwise_conv", {"kernel": kernel, **bias(c, out)}, activated=True, **window(c, rank))


def _separable(c: Call) -> None:
    if c.cfg.get(OLD_KERNEL) == "th":
        raise c.refuse("with Theano's kernel layout is not supported")
    rank, filters = spatial(c), size(c, "filters")
    kernel, between = _depthwise_kernel(c, rank)
    inner = f"{c.layer}/depthwise" + c.name[len(c.layer) :]
    c.graph.add(Op("depthwise_conv", inner, c.inputs, inner, {"kernel": kernel}, window(c, rank)))
    c.inputs = (inner,)
    mix = c.tensor("pointwise_kernel", ((1,) * rank + (between, filters)), (kernel_axes(rank + 2),))
    ones = [1] * rank
    c.op("conv", {"kernel": mix, **bias(c, filters)}, activated=True,
         strides=ones, dilation=ones, padding="valid", channels=c.channels)  # fmt: skip


def _locally(c: Call) -> None:
    """Kernels of their own at every position, which Keras keeps as (positions, window and channels, filters)."""
    rank, filters = spatial(c), size(c, "filters")
    c.only(padding="valid")
    if (c.cfg.get("implementation") or 1) != 1:
        raise c.refuse(f"with implementation={c.cfg['implementation']} is not supported")
    inner, shape, strides = input_channels(c), c.sizes("kernel_size", rank), c.sizes("strides", rank)
    first = c.channels == "first"
    around = c.shape[1:] if first else c.shape[:-1]
    if inner is None or None in around:
        raise c.refuse("on a value of unknown size is not supported")
    places = [((n or 0) - k) // s + 1 for n, k, s in zip(around, shape, strides, strict=True)]
    total, patch = 1, inner
    for n, k in zip(places, shape, strict=True):
        total, patch = total * n, patch * k
    if first and rank == 2:  # the patch lists its channels first
        apart, out = (*places, inner, *shape, filters), (5, 2, 0, 1, 3, 4)
    else:
        apart = (*places, *shape, inner, filters)
        out = (2 * rank + 1, 2 * rank, *range(2 * rank))
    params = {"kernel": c.tensor("kernel", (total, patch, filters), (out, apart))}
    if "bias" in c.weights:
        params["bias"] = c.tensor("bias", (*places, filters), ((rank, *range(rank)),))
    c.op("locally_connected", params, activated=True, strides=strides, channels=c.channels)


LAYERS: dict[str, Layer] = {
    "Dense": Layer(_dense, with_bias("kernel"), keeps_mask=True),
    **{f"Conv{n}D": Layer(_conv, with_bias("kernel")) for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": Layer(_transposed, with_bias("kernel")) for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": Layer(_depthwise, with_bias("depthwise_kernel")) for n in (1, 2)},
    **{f"SeparableConv{n}D": Layer(_separable, with_bias("depthwise_kernel", "pointwise_kernel")) for n in (1, 2)},
    **{f"LocallyConnected{n}D": Layer(_locally, with_bias("kernel")) for n in (1, 2)},
}
