"""A folded network written back into the architecture that was read: what was folded away gets its plainest value.

A batch norm becomes mean 0, variance 1 - eps, gamma and beta; a pair of linear maps becomes the balanced singular value
decomposition of its product. The result is one and the same for every member of an orbit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from canon.compare.comparing import rounding
from canon.fold import Folded
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array


class CannotEmbedError(Exception):
    """The architecture has no place for something that folding moved there; says what."""


def embed(folded: Folded, moved: Network) -> Network:
    """The original architecture computing what `moved` computes.

    folded: how the original folds; moved: its folded network under some action. Raises CannotEmbedError.
    """
    source = folded.source
    tensors: dict[str, Array] = {}
    new = {op.name: op for op in moved.ops}
    norm_of = {s.where: s.into for s in folded.record if s.what == "batch norm"}
    kernel_of = {k: bn for bn, k in norm_of.items() if k}
    chains = _chains(folded)
    in_chain = {name for chain in chains for name in chain}
    constants = {s.where for s in folded.record if s.what == "constant factor"}
    for op in source.ops:
        if op.name in constants:
            tensors.update(_neutral(source, op))
            continue
        if not op.params or all(t in tensors for t in op.params.values()):
            continue
        if op.name in in_chain:
            continue
        if op.kind == "batch_norm":
            if norm_of.get(op.name):
                continue  # written with its kernel
            _norm(source, op, moved, new[op.name], tensors)
        elif op.name in kernel_of:
            _with_norm(source, op, next(o for o in source.ops if o.name == kernel_of[op.name]), moved, new[op.name], tensors)
        else:
            _plain(folded, op, moved, new[op.name], tensors)
    for chain in chains:
        _linear(source, chain, moved, new, kernel_of, tensors)
    return source.with_tensors(tensors)


def _neutral(source: Network, op: Op) -> dict[str, Array]:
    """What a constant is that was folded into a kernel: it adds nothing, and multiplies by one."""
    if not op.params:
        raise CannotEmbedError(f"the numbers of {op.name} are no tensors")
    shape = source.tensors[op.params["constant"]].shape
    return {op.params["constant"]: np.zeros(shape) if op.kind == "add_constant" else np.ones(shape)}


def _value(moved: Network, op: Op, role: str) -> Array | None:
    return np.asarray(moved.tensors[op.params[role]], np.float64) if role in op.params else None


def _plain(folded: Folded, op: Op, moved: Network, here: Op, tensors: dict[str, Array]) -> None:
    for role, t in op.params.items():
        value, shape = _value(moved, here, role), folded.source.tensors[t].shape
        tensors[t] = np.zeros(shape) if value is None else folded.source_symmetry.stored(t, value).reshape(shape)
    bias = _value(moved, here, "bias")
    if "bias" not in op.params and bias is not None and bias.any():
        raise CannotEmbedError(f"{op.name} has no bias to take what was folded into it")


def _with_norm(source: Network, op: Op, bn: Op, moved: Network, here: Op, tensors: dict[str, Array]) -> None:
    kernel, bias = _value(moved, here, "kernel"), _value(moved, here, "bias")
    assert kernel is not None
    tensors[op.params["kernel"]] = kernel.reshape(source.tensors[op.params["kernel"]].shape)
    if "bias" in op.params:
        tensors[op.params["bias"]] = np.zeros(len(kernel))
    _write_norm(bn, np.ones(len(kernel)), np.zeros(len(kernel)) if bias is None else bias, tensors)


def _norm(source: Network, bn: Op, moved: Network, here: Op, tensors: dict[str, Array]) -> None:
    scale, shift = _value(moved, here, "scale"), _value(moved, here, "shift")
    assert scale is not None
    assert shift is not None
    _write_norm(bn, scale, shift, tensors)


def _write_norm(bn: Op, scale: Array, shift: Array, tensors: dict[str, Array]) -> None:
    """gamma = scale, beta = shift, mean 0, variance 1 - eps; what is missing is made up by the others."""
    eps = float(bn.attrs["eps"])
    variance = np.full(len(scale), 1.0 - eps)
    if "gamma" in bn.params:
        tensors[bn.params["gamma"]] = scale
    elif not (scale == 1).all():
        variance = 1.0 / scale**2 - eps
        if (scale <= 0).any() or (variance < 0).any():
            raise CannotEmbedError(f"{bn.name} has no gamma, and no variance gives its scale")
    mean = np.zeros(len(scale))
    if "beta" in bn.params:
        tensors[bn.params["beta"]] = shift
    elif shift.any():
        if (scale == 0).any():
            raise CannotEmbedError(f"{bn.name} has no beta, and a zero scale")
        mean = -shift / scale
    tensors[bn.params["mean"]], tensors[bn.params["variance"]] = mean, variance


def _chains(folded: Folded) -> list[list[str]]:
    """Linear maps that were composed, in order, each list ending with the one that holds the product."""
    into = {s.where: s.into for s in folded.record if s.what == "linear"}
    count: dict[str, int] = {}
    for target in into.values():
        count[target] = count.get(target, 0) + 1
    chains: list[list[str]] = []
    for start in into:
        if start in into.values():
            continue
        chain = [start]
        while chain[-1] in into:
            chain.append(into[chain[-1]])
        chains.append(chain)
    if any("," in name for chain in chains for name in chain) or any(c > 1 for c in count.values()):
        raise CannotEmbedError("a linear map is composed into several others")
    return chains


def _linear(
    source: Network,
    chain: list[str],
    moved: Network,
    new: Mapping[str, Op],
    kernel_of: Mapping[str, str],
    tensors: dict[str, Array],
) -> None:
    """Factor the product W = U S V^T with S spread evenly over the maps, the bias at the last one."""
    ops = [next(o for o in source.ops if o.name == name) for name in chain]
    if any(op.kind not in ("dense", "conv") for op in ops) or len(chain) > 2 or any(name in kernel_of for name in chain):
        raise CannotEmbedError(f"{chain[0]} is composed in a way that has no plain factors")
    first, last = ops
    here = new[last.name]
    product = _value(moved, here, "kernel")
    assert product is not None
    a, b = (source.tensors[op.params["kernel"]].shape for op in (first, last))
    if prod(a[2:]) == 1:  # (out, in, *window): everything but the input is on the left
        wide = np.moveaxis(product, 1, -1)
        matrix = wide.reshape(-1, product.shape[1])
    elif prod(b[2:]) == 1:
        matrix = product.reshape(len(product), -1)
    else:
        raise CannotEmbedError(f"{first.name} and {last.name} both have windows")
    k = a[0]
    first_kernel, last_kernel = (np.asarray(source.tensors[op.params["kernel"]], np.float64) for op in ops)
    if _is_canonical(first_kernel, last_kernel, matrix, prod(a[2:]) == 1, rounding(source)):
        # what was written once is not factored again: singular vectors of a rounded product would drift
        tensors[first.params["kernel"]], tensors[last.params["kernel"]] = first_kernel, last_kernel
        _biases(first, last, here, moved, k, tensors)
        return
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    u, s, vt = (np.pad(t, p)[cut] for t, p, cut in (
        (u, ((0, 0), (0, max(0, k - len(s)))), (slice(None), slice(0, k))),
        (s, ((0, max(0, k - len(s))),), (slice(0, k),)),
        (vt, ((0, max(0, k - len(s))), (0, 0)), (slice(0, k),)),
    ))  # fmt: skip
    peak = vt[np.arange(k), np.abs(vt).argmax(axis=1)]
    sign = np.where(peak < 0, -1.0, 1.0)
    left, right = u * (np.sqrt(s) * sign), (np.sqrt(s) * sign)[:, None] * vt
    if prod(a[2:]) == 1:
        tensors[first.params["kernel"]] = right.reshape(a)
        tensors[last.params["kernel"]] = np.moveaxis(left.reshape(len(product), *b[2:], k), -1, 1).reshape(b)
    else:
        tensors[first.params["kernel"]] = right.reshape(a)
        tensors[last.params["kernel"]] = left.reshape(b)
    _biases(first, last, here, moved, k, tensors)


def _biases(first: Op, last: Op, here: Op, moved: Network, k: int, tensors: dict[str, Array]) -> None:
    if "bias" in first.params:
        tensors[first.params["bias"]] = np.zeros(k)
    bias = _value(moved, here, "bias")
    if "bias" in last.params:
        tensors[last.params["bias"]] = np.zeros(moved.tensors[here.params["kernel"]].shape[0]) if bias is None else bias
    elif bias is not None and bias.any():
        raise CannotEmbedError(f"{last.name} has no bias to take what was folded into it")


def _is_canonical(first: Array, last: Array, matrix: Array, pointwise: bool, unit: float) -> bool:
    """Whether the stored factors have this product and are balanced, L^T L = R R^T diagonal and sorted, up to rounding."""
    right = first.reshape(len(first), -1)
    left = np.moveaxis(last, 1, -1).reshape(-1, len(first)) if pointwise else last.reshape(len(last), -1)
    size = np.abs(left) @ np.abs(right)
    if left.shape[0] != matrix.shape[0] or (np.abs(left @ right - matrix) > 16 * unit * size).any():
        return False
    grams = left.T @ left, right @ right.T
    top = float(np.abs(grams[0]).max(initial=0.0))
    near = 16 * unit * top * np.sqrt(max(matrix.shape))
    sorted_ = (np.diff(np.diag(grams[1])) <= near).all()
    peaks = right[np.arange(len(right)), np.abs(right).argmax(axis=1)]
    return bool(sorted_ and (peaks >= 0).all() and all((np.abs(g - np.diag(np.diag(grams[1]))) <= near).all() for g in grams))
