"""Small networks in plain numpy: layers, backpropagation, Adam. Float32 throughout, as networks are usually trained.

A network is a list of layers applied in turn. Weights have Keras names and layouts: kernels of dense layers are
(in, out), of convolutions (height, width, in, out); images are (samples, height, width, channels).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
EPS, MOMENTUM = 1e-3, 0.95
"""Of every batch norm."""


@dataclass
class Layer:
    """One layer.

    kind: Dense, Conv2D (3 by 3, same padding, no bias), BatchNormalization, ReLU, MaxPooling2D, GlobalAveragePooling2D;
    activation: of a Dense layer, relu, tanh or linear; weights: by Keras name.
    """

    kind: str
    name: str
    activation: str = "linear"
    weights: dict[str, Any] = field(default_factory=dict)

    @property
    def trainable(self) -> list[str]:
        """Names of the weights that have a gradient."""
        return [n for n in self.weights if not n.startswith("moving_")]


Net = list[Layer]


def mlp(rng: np.random.Generator, sizes: tuple[int, ...], activation: str) -> Net:
    """A dense network on flat images, linear at the end."""
    net = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        gain = 2 if activation == "relu" and not last else 1
        weights = {"kernel": _normal(rng, (gain / n_in) ** 0.5, (n_in, n_out)), "bias": np.zeros(n_out, np.float32)}
        net.append(Layer("Dense", f"dense_{i + 1}", "linear" if last else activation, weights))
    return net


def cnn(rng: np.random.Generator) -> Net:
    """conv 8, batch norm, relu, pool, conv 12, batch norm, relu, mean over the image, dense 10."""

    def stage(i: int, n_in: int, n: int) -> Net:
        ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
        norm = {"gamma": ones, "beta": zeros, "moving_mean": zeros.copy(), "moving_variance": ones.copy()}
        kernel = _normal(rng, (2 / (9 * n_in)) ** 0.5, (3, 3, n_in, n))
        return [
            Layer("Conv2D", f"conv_{i}", weights={"kernel": kernel}),
            Layer("BatchNormalization", f"norm_{i}", weights=norm),
            Layer("ReLU", f"relu_{i}"),
        ]

    dense = {"kernel": _normal(rng, 12**-0.5, (12, 10)), "bias": np.zeros(10, np.float32)}
    pool, mean = Layer("MaxPooling2D", "pool_1"), Layer("GlobalAveragePooling2D", "mean")
    return [*stage(1, 1, 8), pool, *stage(2, 8, 12), mean, Layer("Dense", "dense_1", weights=dense)]


def _normal(rng: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> Array:
    return rng.normal(0, deviation, shape).astype(np.float32)


def forward(net: Net, x: Array, training: bool = False) -> tuple[Array, list[Any]]:
    """Outputs, and what each layer's backward step needs. In training, batch norms use and record batch statistics."""
    kept: list[Any] = []
    for layer in net:
        w = layer.weights
        match layer.kind:
            case "Dense":
                z = x @ w["kernel"] + w["bias"]
                y = {"relu": lambda z: np.maximum(z, 0), "tanh": np.tanh, "linear": lambda z: z}[layer.activation](z)
                kept.append((x, y))
            case "Conv2D":
                patches = _patches(x)
                y = np.tensordot(patches, w["kernel"], 3)
                kept.append(patches)
            case "BatchNormalization":
                mean, variance = w["moving_mean"], w["moving_variance"]
                if training:
                    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
                    w["moving_mean"] = (MOMENTUM * w["moving_mean"] + (1 - MOMENTUM) * mean).astype(np.float32)
                    w["moving_variance"] = (MOMENTUM * w["moving_variance"] + (1 - MOMENTUM) * variance).astype(np.float32)
                deviation = np.sqrt(variance + np.float32(EPS))
                centred = (x - mean) / deviation
                y = w["gamma"] * centred + w["beta"]
                kept.append((centred, deviation))
            case "ReLU":
                y = np.maximum(x, 0)
                kept.append(y)
            case "MaxPooling2D":
                n, h, v, c = x.shape
                blocks = x.reshape(n, h // 2, 2, v // 2, 2, c)
                y = blocks.max((2, 4))
                kept.append((blocks == y[:, :, None, :, None]).astype(np.float32))
            case "GlobalAveragePooling2D":
                y = x.mean((1, 2))
                kept.append(x.shape)
        x = y
    return x, kept


def backward(net: Net, kept: list[Any], d: Array) -> list[dict[str, Array]]:
    """Gradients of all weights, by layer, from the gradient at the output."""
    grads: list[dict[str, Array]] = []
    for layer, cache in zip(reversed(net), reversed(kept), strict=True):
        w, g = layer.weights, {}
        match layer.kind:
            case "Dense":
                x, y = cache
                d = d * {"relu": lambda y: y > 0, "tanh": lambda y: 1 - y * y, "linear": np.ones_like}[layer.activation](y)
                g = {"kernel": x.T @ d, "bias": d.sum(0)}
                d = d @ w["kernel"].T
            case "Conv2D":
                g = {"kernel": np.tensordot(cache, d, ((0, 1, 2), (0, 1, 2)))}
                d = np.tensordot(_patches(d), w["kernel"][::-1, ::-1].swapaxes(2, 3), 3)
            case "BatchNormalization":
                centred, deviation = cache
                g = {"gamma": (d * centred).sum((0, 1, 2)), "beta": d.sum((0, 1, 2))}
                count = d[..., 0].size
                d = w["gamma"] / deviation * (d - g["beta"] / count - centred * g["gamma"] / count)
            case "ReLU":
                d = d * (cache > 0)
            case "MaxPooling2D":
                n, h, _, v, _, c = cache.shape
                d = (cache * (d[:, :, None, :, None] / cache.sum((2, 4), keepdims=True))).reshape(n, 2 * h, 2 * v, c)
            case "GlobalAveragePooling2D":
                n, h, v, c = cache
                d = np.broadcast_to(d[:, None, None] / np.float32(h * v), cache)
        grads.append(g)
    return grads[::-1]


def _patches(x: Array) -> Array:
    """(samples, height, width, 3, 3, channels): the 3 by 3 surroundings of every pixel, zero outside the image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2)), 3, 5)


def train(net: Net, x: Array, y: NDArray[np.int64], rng: np.random.Generator, epochs: int, rate: float) -> None:
    """Adam with weight decay 1e-4 on the cross entropy, batches of 64; changes the net in place."""
    moments = [{n: (np.zeros_like(layer.weights[n]),) * 2 for n in layer.trainable} for layer in net]
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), 64):
            batch = order[start : start + 64]
            logits, kept = forward(net, x[batch], training=True)
            d = softmax(logits)
            d[np.arange(len(batch)), y[batch]] -= 1
            step += 1
            for layer, moment, grads in zip(net, moments, backward(net, kept, d / len(batch)), strict=True):
                for n in layer.trainable:
                    g = grads[n] + np.float32(1e-4) * layer.weights[n]
                    m, v = moment[n]
                    moment[n] = m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                    change = rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
                    layer.weights[n] = (layer.weights[n] - change).astype(np.float32)


def softmax(z: Array) -> Array:
    """Over the last axis."""
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def accuracy(net: Net, x: Array, y: NDArray[np.int64]) -> float:
    """Share of the images that the net names right."""
    return float((forward(net, x)[0].argmax(1) == y).mean())
