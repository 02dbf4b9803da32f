"""How Keras lays weights out in HDF5: a group a layer, and the order of both in attributes, never in the groups.

Shared by the formats that hold a configuration and those that do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canon.errors import CorruptFile
from canon.formats.common import MOST_OBJECTS, natural, node, strings, text, walk

OLD_NAMES = {
    "W": "kernel",
    "U": "recurrent_kernel",
    "b": "bias",
    "running_mean": "moving_mean",
    "running_std": "moving_variance",  # Keras 1 calls it so, and stores the variance
    "alphas": "alpha",
}
_OLD = re.compile(r"_(W|U|b|gamma|beta|running_mean|running_std|alphas|(?:W|U|b)_[a-z])$")


THEANO = "written by Theano, whose convolution kernels are flipped: they are turned as Keras does"
UNKNOWN_BACKEND = (
    "Keras 1 does not record its backend: convolution kernels are read as TensorFlow's (Theano's would be flipped)"
)


@dataclass(frozen=True)
class Entry:
    """One weight of a layer: its name in weight_names, and the dataset that holds it."""

    name: str
    dataset: Any
    told: str = ""
    """Its role, where the name does not say it (Keras 0.x)."""

    @property
    def path(self) -> str:
        """Absolute path of the dataset in its file."""
        return str(self.dataset.name)

    @property
    def parts(self) -> tuple[str, ...]:
        """The name's components, without TensorFlow's output number."""
        return tuple(re.sub(r":\d+$", "", self.name).split("/"))

    @property
    def role(self) -> str:
        """What the weight is to its layer, in Keras 2's words ("kernel")."""
        if self.told:
            return self.told
        last = self.parts[-1]
        old = _OLD.search(last)
        return OLD_NAMES.get(old[1], old[1]) if old else last


@dataclass(frozen=True)
class Era:
    """Which Keras wrote a file. major: 1, 2, 3; theano: whether its convolution kernels are flipped;
    unknown_backend: whether they might be; half_pixel: whether bilinear resizing samples at the centres of pixels.
    """

    major: int
    theano: bool
    unknown_backend: bool
    half_pixel: bool = True

    @property
    def hard_sigmoid(self) -> float:
        """The slope of its hard sigmoid."""
        return 1 / 6 if self.major >= 3 else 0.2


def era(*nodes: Any, told: dict[str, Any] | None = None) -> Era:
    """From the attributes keras_version and backend of the first node that has them; told: those of a configuration."""
    found = {}
    for name in ("keras_version", "backend"):
        values = [text(n.attrs[name]) for n in nodes if name in n.attrs] + [
            str(told[name]) for _ in "x" if told and told.get(name)
        ]
        found[name] = values[0] if values else ""
    version = re.match(r"\d+", found["keras_version"])
    major = int(version[0]) if version else 1
    theano = major < 3 and found["backend"] == "theano"
    numbers = tuple(int(n) for n in re.findall(r"\d+", found["keras_version"])[:2])
    half_pixel = numbers >= (2, 4) or "-tf" in found["keras_version"] or major >= 3
    return Era(max(major, 1), theano, major < 2 and not found["backend"], half_pixel)


def layers(root: Any) -> dict[str, list[Entry]]:
    """The weights of every layer, in Keras's order.

    Raises CorruptFile naming the layer whose list and group do not agree.
    """
    names = strings(root, "layer_names")
    if names is None and "nb_layers" in root.attrs:
        return _numbered(root)
    if names is None:
        raise CorruptFile("", "Keras weights without the attribute layer_names")
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise CorruptFile(f"layer {twice[0]!r}", "is listed twice in layer_names")
    found: dict[str, list[Entry]] = {}
    total = 0
    for name in names:
        found[name] = _entries(root, name)
        total += 1 + len(found[name])
        if total > MOST_OBJECTS:
            raise CorruptFile("", f"lists more than {MOST_OBJECTS:,} layers and weights", "No network is kept so.")
    return found


def _numbered(root: Any) -> dict[str, list[Entry]]:
    """Keras 0.x: layer_0/param_0 and so on, whose roles their number and shapes tell."""
    found = {}
    for name in sorted((n for n in root if re.fullmatch(r"layer_\d+", n)), key=natural):
        datasets: list[Any] = []
        group = node(root, name)
        while (dataset := node(group, f"param_{len(datasets)}")) is not None:
            datasets.append(dataset)
        roles = _guessed([len(d.shape or ()) for d in datasets])
        found[name] = [Entry(f"param_{i}", d, role) for i, (d, role) in enumerate(zip(datasets, roles, strict=True))]
    return found


def _guessed(ranks: Sequence[int]) -> Sequence[str]:
    if len(ranks) in (9, 12) and {2, 1} == set(ranks):
        gates = "zrh" if len(ranks) == 9 else "icfo"
        return [f"{letter}_{gate}" for gate in gates for letter in "WUb"]
    known = {(2,): ("embeddings",), (1, 1, 1, 1): ("gamma", "beta", "running_mean", "running_std"),
             (2, 2, 1): ("kernel", "recurrent_kernel", "bias")}  # fmt: skip
    if len(ranks) == 2 and ranks[0] >= 2 and ranks[1] == 1:
        return ("kernel", "bias")
    return known.get(tuple(ranks), [str(i) for i in range(len(ranks))])


def extra(root: Any) -> list[Entry]:
    """Weights that belong to the model itself and to no layer."""
    return _entries(root, "top_level_model_weights") if node(root, "top_level_model_weights") is not None else []


def _entries(root: Any, layer: str) -> list[Entry]:
    import h5py

    where = f"layer {layer!r}"
    group = node(root, layer)
    if not isinstance(group, h5py.Group):
        raise CorruptFile(where, "is listed in layer_names and has no group")
    there = {dataset.name: path for path, dataset in walk(group)}
    names = strings(group, "weight_names")
    if names is None:
        if there:
            raise CorruptFile(where, f"holds {len(there)} weights and has no attribute weight_names")
        return []
    found = []
    for name in names:
        dataset = node(group, name)
        if not isinstance(dataset, h5py.Dataset):
            raise CorruptFile(where, f"lists the weight {name!r}, which is not there")
        if there.pop(dataset.name, None) is None:
            raise CorruptFile(where, f"lists the weight {name!r} twice", "Two weights of one name overwrite each other.")
        found.append(Entry(name, dataset))
    if there:
        left = next(iter(there.values()))
        raise CorruptFile(where, f"holds the weight {left!r}, which its weight_names do not list")
    return found
