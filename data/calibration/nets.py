"""Networks to calibrate on, in plain numpy: dense ones under relu, tanh or gelu, convolutional ones with batch norm.

All are lists of the layers of `train.py`, whose backpropagation trains the convolutional ones. Dense ones are trained
here, all weights in one vector, by Adam or by gradient descent with momentum, towards probabilities or real numbers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from train import Array, Layer, Net, forward, softmax, train

BATCH = 64
DECAY = np.float32(1e-4)


@dataclass(frozen=True)
class Task:
    """Two disjoint sets of (inputs, targets), whether targets are probabilities, and inputs of the kind at hand."""

    own: tuple[Array, Array]
    other: tuple[Array, Array]
    classes: bool


@dataclass(frozen=True)
class How:
    """optimiser: "adam" or "sgd" (momentum 0.9); rate: its learning rate; epochs: of a full training."""

    optimiser: str
    rate: float
    epochs: int


def digits(images: bool) -> Task:
    """scikit-learn's 1797 digits, the first half of a fixed order and the rest; flat, or images of one channel."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    order = np.random.default_rng(0).permutation(len(raw.target))
    x = (raw.images[order] / 16).astype(np.float32)
    x = x[..., None] if images else x.reshape(len(x), -1)
    y = np.eye(10, dtype=np.float32)[raw.target[order]]
    return Task((x[:900], y[:900]), (x[900:], y[900:]), True)


def teacher(n_in: int, n_out: int, classes: bool, seed: int) -> Task:
    """Normal inputs; a random tanh network of 32 units says the class, or the numbers themselves."""
    rng = np.random.default_rng([7, seed])
    x = rng.normal(size=(1800, n_in)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(0, 2 / n_in**0.5, (n_in, 32)) + rng.normal(size=32))
    y = (hidden @ rng.normal(0, 1 / 32**0.5, (32, n_out))).astype(np.float32)
    if classes:
        y = np.eye(n_out, dtype=np.float32)[y.argmax(1)]
    return Task((x[:900], y[:900]), (x[900:], y[900:]), classes)


def dense(rng: np.random.Generator, sizes: tuple[int, ...], activation: str) -> Net:
    """Kernels of variance 2 / inputs (1 / inputs under tanh and at the end); small biases, so that none starts equal."""
    net = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        gain = 1 if last or activation == "tanh" else 2
        kernel = rng.normal(0, (gain / n_in) ** 0.5, (n_in, n_out)).astype(np.float32)
        bias = rng.normal(0, 0.05, n_out).astype(np.float32)
        net.append(Layer("Dense", f"dense_{i + 1}", "linear" if last else activation, {"kernel": kernel, "bias": bias}))
    return net


def convolutional(rng: np.random.Generator, sizes: tuple[int, ...]) -> Net:
    """Convolution, batch norm and relu for each width, max pooling between them, then the mean over the image and a
    dense layer: sizes are (channels of the input, widths..., outputs).
    """
    net: Net = []
    for i, (n_in, n) in enumerate(pairwise(sizes[:-1])):
        kernel = rng.normal(0, (2 / (9 * n_in)) ** 0.5, (3, 3, n_in, n)).astype(np.float32)
        ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
        norm = {"gamma": ones, "beta": zeros, "moving_mean": zeros.copy(), "moving_variance": ones.copy()}
        net += [Layer("MaxPooling2D", f"pool_{i}")] if i else []
        net += [Layer("Conv2D", f"conv_{i + 1}", weights={"kernel": kernel})]
        net += [Layer("BatchNormalization", f"norm_{i + 1}", weights=norm), Layer("ReLU", f"relu_{i + 1}")]
    kernel = rng.normal(0, sizes[-2] ** -0.5, sizes[-2:]).astype(np.float32)
    head = Layer("Dense", "dense_1", weights={"kernel": kernel, "bias": np.zeros(sizes[-1], np.float32)})
    return [*net, Layer("GlobalAveragePooling2D", "mean"), head]


def is_dense(net: Net) -> bool:
    """Whether all layers are dense."""
    return all(layer.kind == "Dense" for layer in net)


def outputs(net: Net, x: Array) -> Array:
    """What a network computes, before any softmax."""
    if not is_dense(net):
        return forward(net, x)[0]
    for layer in net:
        x = _ACTIVATIONS[layer.activation][0](x @ layer.weights["kernel"] + layer.weights["bias"])
    return x


def trained(
    net: Net, data: tuple[Array, Array], classes: bool, how: How, share: float, rng: np.random.Generator, hotter: float = 1
) -> Net:
    """A copy trained for a share of the epochs, at a rate so many times hotter."""
    net = copy.deepcopy(net)
    epochs, rate = max(1, round(share * how.epochs)), how.rate * hotter
    if is_dense(net):
        _fit(net, *data, classes, rng, how.optimiser, rate, epochs)
    else:
        train(net, data[0], data[1].argmax(1), rng, epochs, rate)
    return net


def _gelu(z: Array) -> Array:
    return np.float32(0.5) * z * (1 + np.tanh(_ROOT * (z + _CUBE * z**3)))


def _gelu_slope(z: Array) -> Array:
    t = np.tanh(_ROOT * (z + _CUBE * z**3))
    return np.float32(0.5) * (1 + t + z * (1 - t * t) * _ROOT * (1 + 3 * _CUBE * z * z))


_ROOT, _CUBE = np.float32((2 / np.pi) ** 0.5), np.float32(0.044715)
_ACTIVATIONS = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(np.float32)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "gelu": (_gelu, _gelu_slope),
    "linear": (lambda z: z, np.ones_like),
}
"""Each function and its slope, both of the value before it."""


def _fit(
    net: Net, x: Array, y: Array, classes: bool, rng: np.random.Generator, optimiser: str, rate: float, epochs: int
) -> None:
    theta = np.concatenate([w.ravel() for layer in net for w in layer.weights.values()])
    gradient = np.zeros_like(theta)
    weights, slopes = _views(net, theta), _views(net, gradient)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            values, before = [x[batch]], []
            for layer, (kernel, bias) in zip(net, weights, strict=True):
                before.append(values[-1] @ kernel + bias)
                values.append(_ACTIVATIONS[layer.activation][0](before[-1]))
            d = ((softmax(values[-1]) if classes else values[-1]) - y[batch]) / np.float32(len(batch))
            for i in reversed(range(len(net))):
                d = d * _ACTIVATIONS[net[i].activation][1](before[i])
                np.matmul(values[i].T, d, out=slopes[i][0])
                d.sum(0, out=slopes[i][1])
                d = d @ weights[i][0].T if i else d
            gradient += DECAY * theta
            step += 1
            if optimiser == "adam":
                first += np.float32(0.1) * (gradient - first)
                second += np.float32(0.001) * (gradient * gradient - second)
                size = np.sqrt(second / np.float32(1 - 0.999**step)) + np.float32(1e-8)
                theta -= np.float32(rate / (1 - 0.9**step)) * first / size
            else:
                first *= np.float32(0.9)
                first += gradient
                theta -= np.float32(rate) * first
    for layer, (kernel, bias) in zip(net, weights, strict=True):
        layer.weights = {"kernel": kernel.copy(), "bias": bias.copy()}


def _views(net: Net, flat: NDArray[np.float32]) -> list[tuple[Array, Array]]:
    out, at = [], 0
    for layer in net:
        pair = []
        for w in layer.weights.values():
            pair.append(flat[at : at + w.size].reshape(w.shape))
            at += w.size
        out.append((pair[0], pair[1]))
    return out
