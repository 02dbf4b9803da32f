"""Nets handed to canon as runs, and what it says of a pair, as stored and disguised."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from nets import outputs

from canon.compare import compare
from canon.compare.comparing import make_pair
from canon.matching import stored
from canon.network import Network
from canon.ops import Op
from canon.run import Run
from disguise import disguise
from train import EPS, Net


@dataclass(frozen=True)
class Said:
    """word; z of stored order; score of standing out (None where it was not needed), its threshold, units and view;
    seconds it took.
    """

    word: str
    z: float
    score: float | None
    threshold: float | None
    units: int | None
    view: str
    seconds: float


def run(net: Net, name: str) -> Run:
    """A net as canon sees it after reading a file."""
    tensors: dict[str, np.ndarray] = {}
    ops: list[Op] = []
    value = "input"
    for layer in net:
        axes = {"Dense": (1, 0), "Conv2D": (3, 2, 0, 1)}.get(layer.kind)
        params = {}
        for role, w in layer.weights.items():
            params[role.removeprefix("moving_")] = f"{layer.name}/{role}"
            tensors[f"{layer.name}/{role}"] = w.transpose(axes) if role == "kernel" else w
        kind, attrs = _KINDS[layer.kind]
        linear = layer.activation == "linear"
        ops.append(Op(kind, layer.name, (value,), layer.name if linear else f"{layer.name}/pre", params, attrs))
        if not linear:
            attrs = {"approximate": True} if layer.activation == "gelu" else {}
            ops.append(Op(layer.activation, f"{layer.name}/{layer.activation}", (ops[-1].output,), layer.name, {}, attrs))
        value = layer.name
    n_in = net[0].weights["kernel"].shape[-2]
    inputs = {"input": (n_in,) if net[0].kind == "Dense" else (8, 8, n_in)}
    return Run(name, "numpy", Network(tensors, tuple(ops), inputs, (value,)))


_SAME = {"strides": [1, 1], "dilation": [1, 1], "padding": "same", "channels": "last", "groups": 1}
_KINDS = {
    "Dense": ("dense", {}),
    "Conv2D": ("conv", _SAME),
    "BatchNormalization": ("batch_norm", {"axis": -1, "eps": EPS}),
    "ReLU": ("relu", {}),
    "MaxPooling2D": ("max_pool", {"pool": [2, 2], "strides": [2, 2], "padding": "valid", "channels": "last"}),
    "GlobalAveragePooling2D": ("global_avg_pool", {"channels": "last", "keepdims": False}),
}


def disguised(net: Net, rng: np.random.Generator) -> Net:
    """Relabelled, and rescaled or sign-flipped where the activation allows it; proved by running both."""
    hidden = {layer.activation for layer in net[:-1] if layer.kind == "Dense"}
    moved = disguise(net, rng, spread=0.0 if "gelu" in hidden else 1.0)
    first = net[0].weights["kernel"]
    shape = (16, first.shape[-2]) if net[0].kind == "Dense" else (4, 8, 8, first.shape[-2])
    x = rng.normal(size=shape).astype(np.float32)
    a, b = outputs(net, x), outputs(moved, x)
    if np.abs(a - b).max() > 1e-4 * np.abs(a).max():
        raise RuntimeError(f"the disguise changes the function by {np.abs(a - b).max() / np.abs(a).max():.2g}")
    return moved


def weigh(a: Run, b: Run) -> Said:
    """What canon says of a pair."""
    begin = time.perf_counter()
    said = compare(a, b)
    seconds = time.perf_counter() - begin
    order, out = (said.evidence or {}).get("stored_order"), (said.evidence or {}).get("standing_out")
    z = order["z"] if order else np.inf
    if out is None:
        return Said(said.verdict, z, None, None, None, "", seconds)
    return Said(said.verdict, z, out["score"], out["threshold"], out["units"], out["view"], seconds)


def cosine(a: Run, b: Run) -> float:
    """Of two nets as stored, whole, in the balanced gauge: how far relatives have moved apart, their labels known."""
    problem = make_pair(a.network, b.network)[0].balanced
    state = stored(problem)
    ab = aa = bb = 0.0
    for block in map(problem.block, problem.pieces):
        ab += np.vdot(block.a, problem.moved(block, state))
        aa += np.vdot(block.a, block.a)
        bb += np.vdot(block.b, block.b)
    return float(ab / np.sqrt(aa * bb))
