"""Batch norm at inference folds into the kernel in front of it; where none is, it becomes a scale and a shift.

a = gamma / sqrt(variance + eps): kernel a W, bias a b + beta - a mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from canon.errors import NumericError
from canon.fold.work import Step, Work
from canon.ops import Op
from canon.ops.base import Array
from canon.ops.norm import folded_gain

_TRIVIAL = 16 * np.finfo(np.float64).eps
"""A gain this near one is taken as one, so that what was folded once folds to itself."""


def drop_unread(work: Work) -> None:
    """What no output depends on is no part of the function."""
    for op in reversed(list(work.ops)):
        if op.output not in work.outputs and not work.readers(op.output):
            work.swap(op, None)


def drop_identities(work: Work) -> None:
    """Dropout and linear activations do nothing at inference."""
    for op in [op for op in work.ops if op.kind in ("linear", "dropout")]:
        work.bypass(next(o for o in work.ops if o.name == op.name), next(o for o in work.ops if o.name == op.name).inputs[0])


def fold_batch_norms(work: Work) -> None:
    """Fold every batch norm, shared ones together with the kernels they always follow."""
    done: set[str] = set()
    for op in [op for op in work.ops if op.kind == "batch_norm"]:
        if op.name in done:
            continue
        group = _always_together(work, op)
        if group:
            _into_kernel(work, group)
            done |= {bn.name for _, bn in group}
        else:
            _to_scale_shift(work, op)


def _always_together(work: Work, bn: Op) -> list[tuple[Op, Op]]:
    """(affine op, batch norm) for every use of the kernel, if each is followed by this batch norm and nothing else."""
    first = work.writer(bn.inputs[0])
    if first is None or first.kind not in ("dense", "conv", "depthwise_conv"):
        return []
    mine = set(first.params.values())
    uses = [op for op in work.ops if mine & set(op.params.values())]
    group: list[tuple[Op, Op]] = []
    for use in uses:
        reader = work.only_reader(use.output)
        rank = len(work.shapes[use.output])
        if (
            reader is None
            or reader.kind != "batch_norm"
            or dict(reader.params) != dict(bn.params)
            or dict(use.params) != dict(first.params)
            or int(reader.attrs.get("axis", -1)) % rank != work.channels(use)
        ):
            return []
        group.append((use, reader))
    same_norm = [op for op in work.ops if set(bn.params.values()) & set(op.params.values())]
    return group if len(same_norm) == len(group) else []


def _affine_of(work: Work, bn: Op) -> tuple[Array, Array, Array]:
    """Gain, shift, and the magnitude of the shift."""
    params = {r: np.asarray(work.tensors[t], np.float64) for r, t in bn.params.items()}
    if not (params["variance"] + float(bn.attrs["eps"]) > 0).all():
        raise NumericError(bn.params["variance"], "a running variance is negative", "The file holds no usable network.")
    gain, beta = folded_gain(bn, params)
    gain = np.where(np.abs(gain - 1.0) <= _TRIVIAL, 1.0, gain)
    moved = gain * params["mean"]
    return gain, beta - moved, np.abs(beta) + np.abs(moved)


def _into_kernel(work: Work, group: list[tuple[Op, Op]]) -> None:
    op, bn = group[0]
    gain, shift, size = _affine_of(work, bn)
    kernel = work.get(op, "kernel")
    bias = work.get(op, "bias")
    assert kernel is not None
    along = gain.reshape(-1, *[1] * (kernel[0].ndim - 1))
    if not (gain == 1.0).all():
        work.put(op, "kernel", kernel[0] * along, kernel[1] * np.abs(along))
    if bias is None:
        bias = (np.zeros_like(gain), np.zeros_like(gain))
    work.put(op, "bias", bias[0] * gain + shift, bias[1] * np.abs(gain) + size)
    name = op.params.get("bias") or f"{op.name}/bias"
    for use, norm in group:
        if norm is not bn:
            work.record.append(Step("batch norm", norm.name, f"into {use.name}", into=use.name))
        here = next(o for o in work.ops if o.name == use.name)
        work.swap(norm, None)
        work.swap(here, replace(here, output=norm.output, params={**here.params, "bias": name}))
    work.record.append(Step("batch norm", bn.name, f"into {op.name}", into=op.name))


def _to_scale_shift(work: Work, bn: Op) -> None:
    gain, shift, size = _affine_of(work, bn)
    names = {"scale": f"{bn.name}/scale", "shift": f"{bn.name}/shift"}
    work.tensors[names["scale"]], work.tensors[names["shift"]] = gain, shift
    work.magnitudes[names["shift"]] = size
    same = [op for op in work.ops if op.kind == "batch_norm" and dict(op.params) == dict(bn.params)]
    for op in same:  # a shared one stays shared
        work.swap(op, Op("scale_shift", op.name, op.inputs, op.output, names, {"axis": op.attrs.get("axis", -1)}))
    work.record.append(Step("batch norm", bn.name, "to a scale and a shift"))
