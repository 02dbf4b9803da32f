"""ONNX nodes on positions: padding, resizing, depth to space and back."""

from __future__ import annotations

from typing import Any

from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_known import axes_of
from canon.formats.onnx_linear import sizes_of
from canon.formats.onnx_size import Dim, times
from canon.formats.onnx_value import Batch, Unfit


def _pad(b: Builder, node: Node) -> None:
    x = b.value(node)
    mode = str(node.attrs.get("mode", "constant"))
    given: Any = node.attrs.get("pads") or node.attrs.get("paddings")
    if given is None:
        found = b.known(node, 1)
        given = None if found is None else found.sizes()
    if given is None or not all(isinstance(p, int) for p in given):
        raise Unfit("its padding is not known before it runs")
    axes = axes_of(node, [None, None, None, b.known(node, 3)], 3, x.rank) if b.given(node, 3) else list(range(x.rank))
    if axes is None or len(given) != 2 * len(axes):
        raise Unfit("its padding is for other axes")
    pads = [[0, 0] for _ in x.dims]
    for i, axis in enumerate(axes):
        lo, hi = int(given[i]), int(given[len(axes) + i])
        if (lo, hi) == (0, 0):
            continue
        if lo < 0 or hi < 0:
            raise Unfit("it cuts by padding")
        pads[x.axis(axis)] = [lo, hi]
    if not any(map(any, pads)):
        b.put(node, x)
        return
    dims = [d if not any(p) else d + sum(p) for d, p in zip(x.dims, pads, strict=True)]
    if mode in ("reflect", "edge"):
        b.put(node, b.op(node, "mirror_padding", [x], dims=dims, how=mode, padding=pads))
        return
    filled = b.need(node, 2).number() if b.given(node, 2) else node.attrs.get("value", 0.0)
    if mode != "constant" or filled != 0:
        raise Unfit("it pads with something else than zeros")
    if any(pads[0]):
        if any(map(any, pads[1:])) or len(pads) < 2:
            raise Unfit("it pads units")
        b.put(node, b.op(node, "zero_padding", [x], dims=dims, padding=pads[:-1], channels="last"))
        return
    b.put(node, b.op(node, "zero_padding", [x], dims=dims, padding=pads[1:], channels="first"))


def _resize(b: Builder, node: Node) -> None:
    x = b.value(node)
    sizes = sizes_of(x)
    where = {"Upsample": 1}.get(node.op, 1 if node.version < 11 else 2)
    scales: Any = node.attrs.get("scales")
    if scales is None and b.given(node, where):
        found = b.known(node, where)
        scales = None if found is None or found.open else [float(s) for s in found.array.reshape(-1)]
    if not scales and b.given(node, 3):
        wanted = b.known(node, 3)
        new = None if wanted is None else wanted.sizes()
        if new is None or len(new) != x.rank:
            raise Unfit("its sizes are not known before it runs")
        scales = [1.0, 1.0, *(_whole(a) / _whole(n) for a, n in zip(new[2:], sizes, strict=True))]
    if not scales or len(scales) != x.rank or scales[0] != 1 or scales[1] != 1 or "axes" in node.attrs:
        raise Unfit("its scales are not known before it runs")
    factors = [round(s) for s in scales[2:]]
    if any(abs(s - f) > 1e-6 or f < 1 for s, f in zip(scales[2:], factors, strict=True)):
        raise Unfit("it resizes by no whole number")
    mode = str(node.attrs.get("mode", "nearest"))
    old = node.op == "Upsample" or node.version < 11
    how = str(node.attrs.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel"))
    attrs: dict[str, Any] = {"size": factors, "channels": "first"}
    if mode == "nearest":
        rounding = str(node.attrs.get("nearest_mode", "floor" if old else "round_prefer_floor"))
        exact = (how, rounding) == ("asymmetric", "floor") or (
            how in ("half_pixel", "pytorch_half_pixel") and rounding in ("round_prefer_floor", "round_prefer_ceil")
        )
        if not exact:
            raise Unfit(f"nearest by {how} and {rounding}")
    elif mode in ("linear", "bilinear") and how in ("asymmetric", "half_pixel", "pytorch_half_pixel"):
        attrs |= {"interpolation": "bilinear", "half_pixel": how != "asymmetric"}
    else:
        raise Unfit(f"interpolation {mode} by {how}")
    dims = (x.dims[0], *(times(n, f) for n, f in zip(sizes, factors, strict=True)))
    b.put(node, b.op(node, "upsampling", [x], dims=dims, **attrs))


def _whole(d: Dim) -> int:
    if not isinstance(d, int):
        raise Unfit("its sizes are not known before it runs")
    return d


def _depth_to_space(b: Builder, node: Node) -> None:
    """By reshaping and transposing: of a depth of k k c, c first (CRD) or last (DCR)."""
    x, k = b.value(node), int(node.attrs["blocksize"])
    x.needs_batch(0)
    if x.rank != 4 or k < 1:
        raise Unfit("it takes apart a value with other axes than height and width")
    n, (c, h, w) = x.shape[0], map(_whole, x.shape[1:])
    if node.op == "DepthToSpace":
        last = str(node.attrs.get("mode", "DCR")) == "CRD"
        deep = c // (k * k)
        shape = (n, deep, k, k, h, w) if last else (n, k, k, deep, h, w)
        perm = (0, 1, 4, 2, 5, 3) if last else (0, 3, 4, 1, 5, 2)
        out: tuple[Dim, ...] = (n, deep, h * k, w * k)
    else:
        shape, perm = (n, c, h // k, k, w // k, k), (0, 3, 5, 1, 2, 4)
        out = (n, c * k * k, h // k, w // k)
    apart = b.relay(node, x, shape, Batch(0), ":apart")
    b.put(node, b.relay(node, b.turned(node, apart, perm, ":turned"), out, Batch(0)))


TABLE: dict[str, Convert] = {
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _depth_to_space,
}
