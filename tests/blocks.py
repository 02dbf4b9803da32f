"""Transformer blocks with random weights, for the tests of heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array

WIDTH, STEPS = 12, 5


def transformer(
    *, heads: int = 4, groups: int = 2, d: int = 6, dv: int = 4, layers: int = 1, rope: str = "", qk_norm: bool = False,
    norm: str = "layer_norm", gated: bool = False, bias: bool = True, fused: bool = False, vocabulary: int = 0,
    slopes: bool = False, post: bool = False, seed: int = 0,
) -> Network:  # fmt: skip
    """A stack of attention and feed-forward blocks on a stream of WIDTH units; tied embeddings with a vocabulary."""
    b = _Builder(np.random.default_rng(seed), bias, norm)
    inputs: dict[str, tuple[int, ...]] = {"x": (STEPS,) if vocabulary else (STEPS, WIDTH)}
    stream = "x"
    if vocabulary:
        stream = b.add("embedding", "wte", ("x",), {"table": b.tensor("wte", vocabulary, WIDTH)})
    for i in range(layers):
        p = f"{i}."
        q, k, v = _projections(b, p, stream if post else b.norm(p + "ln1", stream), (heads * d, groups * d, groups * dv), fused)
        if qk_norm:
            q, k = (
                b.add("head_norm", f"{x}n", (x,), {"gamma": b.tensor(f"{x}n.g", d)}, heads=n, eps=1e-6)
                for x, n in ((q, heads), (k, groups))
            )
        if rope:
            turns = {"frequencies": [100.0 ** (-2 * j / d) for j in range(d // 2)], "layout": rope}
            q, k = (b.add("rotary", f"{x}r", (x,), heads=n, **turns) for x, n in ((q, heads), (k, groups)))
        told = {"slopes": [2.0**-j for j in range(heads)]} if slopes else {}
        out = b.add("attention", p + "at", (q, k, v), heads=heads, kv_heads=groups, causal=True, **told)
        stream = b.add("add", p + "r1", (stream, b.dense(p + "o", out, WIDTH, heads * dv)))
        stream = b.norm(p + "ln1", stream) if post else stream
        x = stream if post else b.norm(p + "ln2", stream)
        hidden = b.dense(p + "up", x, 7, WIDTH)
        if gated:
            gate = b.add("silu", p + "act", (b.dense(p + "gate", x, 7, WIDTH),))
            hidden = b.add("multiply", p + "mul", (gate, hidden))
        else:
            hidden = b.add("gelu", p + "act", (hidden,), approximate=False)
        stream = b.add("add", p + "r2", (stream, b.dense(p + "down", hidden, WIDTH, 7)))
        stream = b.norm(p + "ln2", stream) if post else stream
    if vocabulary:
        stream = b.add("dense", "head", (b.norm("lnf", stream),), {"kernel": "wte"})
    return Network(b.tensors, tuple(b.ops), inputs, (stream,))


def _projections(b: _Builder, p: str, x: str, widths: tuple[int, int, int], fused: bool) -> list[str]:
    if not fused:
        return [b.dense(p + name, x, n, WIDTH) for name, n in zip("qkv", widths, strict=True)]
    whole = b.dense(p + "qkv", x, sum(widths), WIDTH)
    stops = np.cumsum(widths)
    return [
        b.add("slice", p + name, (whole,), axis=-1, start=int(stop - n), stop=int(stop))
        for name, n, stop in zip("qkv", widths, stops, strict=True)
    ]


class _Builder:
    def __init__(self, rng: np.random.Generator, bias: bool, kind: str) -> None:
        self.rng, self.bias, self.kind = rng, bias, kind
        self.tensors: dict[str, Array] = {}
        self.ops: list[Op] = []

    def tensor(self, name: str, *shape: int) -> str:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.5
        self.tensors[name] = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        return name

    def add(self, kind: str, name: str, inputs: tuple[str, ...], params: dict[str, str] | None = None, **attrs: Any) -> str:
        self.ops.append(Op(kind, name, inputs, name, params or {}, attrs))
        return name

    def dense(self, name: str, x: str, out: int, inner: int) -> str:
        params = {"kernel": self.tensor(f"{name}.w", out, inner)}
        if self.bias:
            params["bias"] = self.tensor(f"{name}.b", out)
        return self.add("dense", name, (x,), params)

    def norm(self, name: str, x: str) -> str:
        params = {"gamma": self.tensor(f"{name}.g", WIDTH)}
        if self.kind == "layer_norm":
            params["beta"] = self.tensor(f"{name}.beta", WIDTH)
        return self.add(self.kind, name, (x,), params, axes=[-1], eps=1e-5)
