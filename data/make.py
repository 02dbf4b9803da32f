"""Makes every file of this folder again: python data/make.py (needs the extra `data`, for scikit-learn's digits).

Test accuracy is printed for each. The seeds are fixed; another BLAS or processor changes the weights by rounding,
which training then amplifies, so that the bytes differ from machine to machine and the findings do not.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
from sklearn.datasets import load_digits

from disguise import disguise
from keras import save
from train import Array, Net, accuracy, cnn, forward, mlp, train

HERE = Path(__file__).parent
SIZES = (64, 48, 32, 10)
STEPS = (0, 1, 5, 20, 40)
"""Epochs after which the run of several checkpoints was stored."""


def main() -> None:
    """Train, disguise, write, and print a line for each file."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)
    flat, square, labels = images.reshape(-1, 64), images[..., None], digits.target[order]
    first, second, test = slice(0, 900), slice(900, 1300), slice(1300, None)

    def write(net: Net, name: str, x: Array) -> None:
        save(net, HERE / name, functional=net[0].kind == "Conv2D")
        print(f"{name:<24}{accuracy(net, x[test], labels[test]):.3f}")

    write_probes(images[test], labels[test], order[test], HERE / "digits.npz")
    mlps = []
    for seed in range(3):
        rng = np.random.default_rng([1, seed])
        net = mlp(rng, SIZES, "relu")
        if seed == 0:
            checkpoints = {0: copy.deepcopy(net)}
            for before, after in pairwise(STEPS):
                train(net, flat[first], labels[first], rng, after - before, 2e-3)
                checkpoints[after] = copy.deepcopy(net)
            write_run(checkpoints, HERE / "mlp-run.h5", flat[test], labels[test])
        else:
            train(net, flat[first], labels[first], rng, STEPS[-1], 2e-3)
        write(net, f"mlp-seed{seed}.h5", flat)
        mlps.append(net)
    write(proved(mlps[0], disguise(mlps[0], np.random.default_rng(2)), flat), "mlp-seed0-disguised.h5", flat)

    tuned, rng = copy.deepcopy(mlps[0]), np.random.default_rng(3)
    # New data: the second part of the digits, each image moved one pixel to the right.
    moved = np.pad(images[second], ((0, 0), (0, 0), (1, 0)))[:, :, :-1].reshape(-1, 64)
    train(tuned, np.concatenate([flat[second], moved]), np.tile(labels[second], 2), rng, 15, 2e-3)
    print(f"  the fine-tune stands at distance {distance(mlps[0], tuned):.4f} before its disguise")
    write(proved(tuned, disguise(tuned, rng), flat), "mlp-seed0-tuned.h5", flat)

    rng = np.random.default_rng(4)
    net = mlp(rng, SIZES, "tanh")
    train(net, flat[first], labels[first], rng, 40, 2e-3)
    write(net, "mlp-tanh.h5", flat)

    for seed in range(2):
        rng = np.random.default_rng([5, seed])
        net = cnn(rng)
        train(net, square[first], labels[first], rng, 40, 5e-3)
        write(net, f"cnn-seed{seed}.h5", square)
        if seed == 0:
            write(proved(net, disguise(net, rng), square), "cnn-seed0-disguised.h5", square)


def proved(net: Net, copied: Net, x: Array) -> Net:
    """The copy, if it computes what the net computes."""
    a, b = forward(net, x)[0], forward(copied, x)[0]
    worst = np.abs(a - b).max() / np.abs(a).max()
    if worst > 1e-5:
        raise RuntimeError(f"the disguise changes the function by {worst:.2g}")
    return copied


def distance(a: Net, b: Net) -> float:
    """Root mean square over the layers of each unit's distance, its incoming vector normed: what canon has to find."""

    def units(net: Net) -> list[np.ndarray]:
        vectors = [np.vstack([layer.weights["kernel"], layer.weights["bias"]]).astype(float) for layer in net]
        for v, after in pairwise(vectors):
            norm = np.linalg.norm(v, axis=0)
            v /= norm
            after[:-1] *= norm[:, None]
        return vectors

    per_layer = [
        (((p - q) ** 2).sum(0) / ((p**2).sum(0) + (q**2).sum(0))).mean() for p, q in zip(units(a), units(b), strict=True)
    ]
    return float(np.sqrt(np.mean(per_layer)))


def write_probes(images: Array, labels: np.ndarray, numbers: np.ndarray, path: Path) -> None:
    """The test images as samples to run networks on, in both shapes; sample_ids are their numbers in scikit-learn's set.

    Float16 holds them exactly: their values are sixteenths.
    """
    half = images.astype(np.float16)
    np.savez_compressed(
        path,
        flat=half.reshape(-1, 64),
        square=half[..., None],
        labels=labels.astype(np.int8),
        sample_ids=numbers.astype(np.int16),
    )


def write_run(checkpoints: dict[int, Net], path: Path, x: Array, y: np.ndarray) -> None:
    """canon's own HDF5: one architecture, a checkpoint for each step with its metrics, kernels as (out, in)."""
    ops, value = [], "input"
    for layer in checkpoints[0]:
        linear = layer.activation == "linear"
        params = {role: f"{layer.name}/{role}" for role in layer.weights}
        output = layer.name if linear else f"{layer.name}/pre"
        ops.append(_op("dense", layer.name, value, output, params))
        if not linear:
            ops.append(_op(layer.activation, f"{layer.name}/{layer.activation}", output, layer.name, {}))
        value = layer.name
    with h5py.File(path, "w") as file:
        file.attrs["canon_format"] = 1
        file.attrs["created_by"] = "data/make.py"
        file["architecture"] = json.dumps({"inputs": {"input": [64]}, "ops": ops, "outputs": [value]})
        for step, net in checkpoints.items():
            group = file.create_group(f"checkpoints/{step}")
            group.attrs["step"] = step
            group.attrs["test_accuracy"] = accuracy(net, x, y)
            for layer in net:
                group[f"{layer.name}/kernel"] = layer.weights["kernel"].T
                group[f"{layer.name}/bias"] = layer.weights["bias"]
            print(f"{path.name + ':' + str(step):<24}{group.attrs['test_accuracy']:.3f}")


def _op(kind: str, name: str, value: str, output: str, params: dict[str, str]) -> dict[str, object]:
    return {"kind": kind, "name": name, "inputs": [value], "output": output, "params": params, "attrs": {}}


if __name__ == "__main__":
    main()
