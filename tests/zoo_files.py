"""Zoos of known content: trained networks, their disguises and their near relatives, in all formats that canon writes.

Each file has a class: two files hold one network if and only if theirs is the same, but for casts to half precision, of which
only the network they come from is known.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from blocks import transformer
from strategies import element

from canon.formats import read, write
from canon.network import Network
from canon.run import Run
from canon.symmetry import derive

DATA = Path(__file__).parents[1] / "data"
TRAINED = ("mlp-seed0.h5", "mlp-seed1.h5", "mlp-tanh.h5", "cnn-seed0.h5", "cnn-seed1.h5")
FAR = 4 * np.log(10)
"""Scales from 10^-4 to 10^4."""


@dataclass
class Zoo:
    """folder; of: file name -> class; half: file name -> the class it is a cast of."""

    folder: Path
    of: dict[str, str] = field(default_factory=dict)
    half: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, network: Network, of: str, fmt: str = "canon", half: bool = False) -> None:
        """Write a network under a name; fmt: of canon.formats.WRITES."""
        name = name + {"npz": ".npz", "keras-zip": ".keras"}.get(fmt, ".h5")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(Run(str(path), "test", network, graph="stored"), path, fmt)
        (self.half if half else self.of)[name] = of

    def copies(self) -> set[frozenset[str]]:
        """The groups, casts left out."""
        classes: dict[str, set[str]] = {}
        for name, of in self.of.items():
            classes.setdefault(of, set()).add(name)
        return {frozenset(names) for names in classes.values() if len(names) > 1}


def trained() -> dict[str, Network]:
    """The trained networks of data/, and a transformer block."""
    nets = {name.removesuffix(".h5"): read(DATA / name).network for name in TRAINED}
    block = transformer(seed=3)
    return {**nets, "block": cast(block, np.float32)}


def cast(network: Network, dtype: Any) -> Network:
    """All tensors in one type."""
    return network.with_tensors({n: t.astype(dtype) for n, t in network.tensors.items()})


def disguised(network: Network, rng: np.random.Generator, reach: float = FAR) -> Network:
    """A random member of the orbit, in the type it was in: relabelled, rescaled by up to 10^4 either way, flipped."""
    moved = element(derive(network), rng, reach=reach)(network)
    return network.with_tensors({n: t.astype(network.tensors[n].dtype) for n, t in moved.tensors.items()})


def noisy(network: Network, rng: np.random.Generator, size: float) -> Network:
    """Noise on every tensor but running variances, of a size relative to its spread."""
    fixed = {op.params["variance"] for op in network.ops if op.kind == "batch_norm"}
    return network.with_tensors(
        {
            n: (t + size * (t.std() or 1.0) * rng.standard_normal(t.shape)).astype(t.dtype)
            for n, t in network.tensors.items()
            if n not in fixed
        }
    )


def pruned(network: Network, share: float) -> Network:
    """The smallest entries of every kernel set to zero."""
    return network.with_tensors(
        {
            n: np.where(np.abs(t) < np.quantile(np.abs(t), share), 0, t).astype(t.dtype)
            for n, t in network.tensors.items()
            if t.ndim > 1
        }
    )


def renamed(network: Network) -> Network:
    """Other names for everything."""
    ops = tuple(
        replace(
            op,
            name=f"layer_{i}",
            inputs=tuple(f"v {v}" for v in op.inputs),
            output=f"v {op.output}",
            params={role: f"p{i}.{role}" for role in op.params},
        )
        for i, op in enumerate(network.ops)
    )
    tensors = {f"p{i}.{role}": network.tensors[t] for i, op in enumerate(network.ops) for role, t in op.params.items()}
    inputs = {f"v {v}": shape for v, shape in network.inputs.items()}
    return Network(tensors, ops, inputs, tuple(f"v {v}" for v in network.outputs))


def other_numbers(source: Path, path: Path, seed: int) -> Path:
    """A copy of an HDF5 file with other weights, made as a program would that saves again and again."""
    shutil.copyfile(source, path)
    rng = np.random.default_rng(seed)

    def change(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f" and item.ndim:
            item[...] = rng.standard_normal(item.shape)

    with h5py.File(path, "r+") as f:
        f.visititems(change)
    return path


def fill(zoo: Zoo, base: str, network: Network, rng: np.random.Generator, disguises: int = 3, formats: bool = True) -> None:
    """Everything that one trained network gives rise to."""
    keras = not any(op.kind in ("attention", "layer_norm") for op in network.ops)
    zoo.add(f"{base}/original", network, base)
    if formats and keras:
        zoo.add(f"{base}/keras", network, base, "keras")
        zoo.add(f"{base}/archive", network, base, "keras-zip")
        zoo.add(f"{base}/weights", network, base, "npz")
        zoo.add(f"{base}/weights-moved", disguised(network, rng), base, "state-dict")
    zoo.add(f"{base}/renamed", renamed(network), base)
    zoo.add(f"{base}/double", cast(network, np.float64), base)
    for i in range(disguises):
        zoo.add(f"{base}/moved-{i}", disguised(network, rng), base)
    for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        near = noisy(network, rng, size)
        zoo.add(f"{base}/noise-{size:g}", near, f"{base} noise {size:g}")
        zoo.add(f"{base}/noise-{size:g}-moved", disguised(near, rng), f"{base} noise {size:g}")
    thin = pruned(network, 0.3)
    zoo.add(f"{base}/pruned", thin, f"{base} pruned")
    zoo.add(f"{base}/pruned-moved", disguised(thin, rng), f"{base} pruned")
    zoo.add(f"{base}/half", cast(network, np.float16), base, half=True)
    zoo.add(f"{base}/half-moved", cast(disguised(network, rng, 0.3), np.float16), base, half=True)


def spoil(folder: Path) -> dict[str, str]:
    """Files that hold no network: name -> a word of what is said of each."""
    good = (DATA / "mlp-seed0.h5").read_bytes()
    bad = {
        "bad/truncated.h5": (good[: len(good) // 2], "truncated"),
        "bad/empty.h5": (b"", "empty"),
        "bad/page.h5": (b"<!DOCTYPE html><html></html>", "HTML"),
        "bad/pointer.h5": (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12345\n", "LFS"),
        "bad/readme.txt": (b"weights of a network\n", "text"),
        "bad/zeros.bin": (b"\0" * 5000, "no format"),
    }
    for name, (content, _) in bad.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    run = read(DATA / "mlp-seed0.h5")
    broken = {n: t.copy() for n, t in run.network.tensors.items()}
    next(t for t in broken.values() if t.ndim > 1)[1, 2] = np.nan
    write(run.with_network(run.network.with_tensors(broken)), folder / "bad/nan.h5", source=DATA / "mlp-seed0.h5")
    return {**{name: word for name, (_, word) in bad.items()}, "bad/nan.h5": "NaN"}
