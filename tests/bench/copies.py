"""Comparing two copies of a large MLP against reading both files. Not part of the test run.

    python tests/bench/copies.py [--widths 784 4096 4096 4096 4096 10] [--rounds 5]

Writes a network and a relabelled and rescaled copy of it, then times, interleaved and in turn: h5py reading every dataset of
both files, and canon's comparison of them, each in a process of its own and within one; prints medians, the ratios, and the
peak memory against the size of both files.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np

READ = """
import sys, time, h5py
start = time.perf_counter()
for path in sys.argv[1:]:
    with h5py.File(path) as f:
        kept = []
        f.visititems(lambda name, d: kept.append(d[()]) if isinstance(d, h5py.Dataset) else None)
print(time.perf_counter() - start)
"""


def write(path: Path, kernels: list[np.ndarray], biases: list[np.ndarray]) -> None:
    """A Keras 2 full model of dense layers."""
    layers, names = [], []
    for i, k in enumerate(kernels):
        name = f"dense_{i}"
        names.append(name)
        config = {
            "name": name,
            "units": k.shape[1],
            "activation": "linear" if i == len(kernels) - 1 else "relu",
            "use_bias": True,
        }
        if i == 0:
            config["batch_input_shape"] = [None, k.shape[0]]
        layers.append({"class_name": "Dense", "config": config})
    with h5py.File(path, "w") as f:
        f.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {"name": "m", "layers": layers}})
        root = f.create_group("model_weights")
        for at in (f, root):
            at.attrs["keras_version"], at.attrs["backend"] = "2.4.0", "tensorflow"
        root.attrs["layer_names"] = [n.encode() for n in names]
        for name, k, b in zip(names, kernels, biases, strict=True):
            group = root.create_group(name)
            group.attrs["weight_names"] = [f"{name}/kernel:0".encode(), f"{name}/bias:0".encode()]
            group[f"{name}/kernel:0"], group[f"{name}/bias:0"] = k.astype(np.float32), b.astype(np.float32)


def make(folder: Path, widths: list[int]) -> tuple[Path, Path]:
    """A network and its copy."""
    rng = np.random.default_rng(0)
    kernels = [rng.normal(0, (2 / a) ** 0.5, (a, b)) for a, b in pairwise(widths)]
    biases = [rng.normal(0, 0.1, b) for b in widths[1:]]
    paths = folder / "a.h5", folder / "b.h5"
    write(paths[0], kernels, biases)
    for i, n in enumerate(widths[1:-1]):
        p, c = rng.permutation(n), np.exp(rng.normal(0, 3, n))
        kernels[i], biases[i] = (kernels[i] * c)[:, p], (biases[i] * c)[p]
        kernels[i + 1] = (kernels[i + 1] / c[:, None])[p]
    write(paths[1], kernels, biases)
    return paths


def timed(words: list[str]) -> tuple[float, str]:
    """Seconds of a whole process, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return time.perf_counter() - start, done.stdout


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[784, 4096, 4096, 4096, 4096, 10])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        a, b = make(Path(tmp), args.widths)
        size = a.stat().st_size + b.stat().st_size
        whole: dict[str, list[float]] = {"read": [], "compare": []}
        inside: dict[str, list[float]] = {"read": [], "compare": []}
        within = (
            "import sys, time; from canon.formats import read; from canon.compare import compare; "
            "start = time.perf_counter(); r = compare(read(sys.argv[1]), read(sys.argv[2])); "
            "assert r.verdict == 'equivalent', r.verdict; print(time.perf_counter() - start)"
        )
        for _ in range(args.rounds):
            seconds, out = timed([sys.executable, "-c", READ, str(a), str(b)])
            whole["read"].append(seconds)
            inside["read"].append(float(out))
            inside["compare"].append(float(timed([sys.executable, "-c", within, str(a), str(b)])[1]))
            whole["compare"].append(timed(["canon", "compare", str(a), str(b), "--quiet"])[0])
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"files: {size / 1e6:.0f} MB together")
    for what, times in (("whole processes", whole), ("inside the process", inside)):
        read, compare = (statistics.median(times[k]) for k in ("read", "compare"))
        ratios = sorted(c / r for r, c in zip(times["read"], times["compare"], strict=True))
        spread = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        print(f"{what}: read {read:.3f} s, compare {compare:.3f} s, ratio {spread}")
    print(f"peak memory: {peak / 1e6:.0f} MB, {peak / size:.2f} times both files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
