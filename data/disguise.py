"""A random relabelled and rescaled copy of a network, written by hand for these few kinds of layers, without canon.

Done in float64 and rounded once, so that the copy computes what the original computes, to the rounding of float32.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np

from train import EPS, Net


def disguise(net: Net, rng: np.random.Generator, spread: float = 2.0) -> Net:
    """Shuffle the units of every hidden layer and scale each by exp(N(0, spread)); signs alone under tanh.

    The units of a convolution with a batch norm have two scales: that of the convolution, undone by the statistics
    of the norm, and that of the norm, undone by the next layer.
    """
    moved = copy.deepcopy(net)
    for layer in moved:
        layer.weights = {n: w.astype(np.float64) for n, w in layer.weights.items()}
    writers = [i for i, layer in enumerate(moved) if layer.kind in ("Dense", "Conv2D")]
    for here, after in pairwise(writers):
        writer, reader = moved[here].weights, moved[after].weights
        norm = moved[here + 1].weights if moved[here + 1].kind == "BatchNormalization" else None
        units = writer["kernel"].shape[-1]
        order = rng.permutation(units)
        scale = np.exp(rng.normal(0, spread, units))
        if moved[here].activation == "tanh":
            scale = rng.choice([-1.0, 1.0], units)
        if norm is None:
            _move(writer, ("kernel", "bias"), order, scale)
        else:
            # The norm divides by sqrt(variance + EPS), so that variance + EPS is what scales, and must stay above EPS.
            total = norm["moving_variance"] + EPS
            own = np.maximum(np.exp(rng.normal(0, spread, units)), np.sqrt(2 * EPS / total))
            norm["moving_variance"] = (own**2 * total - EPS)[order]
            _move(writer, ("kernel",), order, own)
            _move(norm, ("moving_mean",), order, own)
            _move(norm, ("gamma", "beta"), order, scale)
        reader["kernel"] = (reader["kernel"] / scale[:, None])[..., order, :]
    for layer in moved:
        layer.weights = {n: w.astype(np.float32) for n, w in layer.weights.items()}
    return moved


def _move(weights: dict[str, np.ndarray], names: tuple[str, ...], order: np.ndarray, scale: np.ndarray) -> None:
    for name in names:
        weights[name] = (weights[name] * scale)[..., order]
