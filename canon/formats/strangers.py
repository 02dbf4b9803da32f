"""HDF5 files that hold no network canon reads, told apart so that the refusal says what they are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NoReturn

from canon.errors import UnknownFormat
from canon.formats.common import Request, node, walk

LOOK_AT = 2000
"""Datasets looked at before giving a file up."""


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file is a known stranger."""
    return _known(f) is not None


def read(f: Any, path: Path, request: Request) -> NoReturn:
    """Raise UnknownFormat in one line that says what the file looks like."""
    what, hint = _known(f) or (
        _unknown(f),
        "canon reads Keras models and weights, tensors dumped by name, and its own format.",
    )
    raise UnknownFormat("", what, hint)


def _known(f: Any) -> tuple[str, str] | None:
    top = set(f)
    names = {path for path, _ in itertools.islice(walk(f), LOOK_AT)}
    last = {name.rsplit("/", 1)[-1].lower() for name in names}
    if "PYTABLES_FORMAT_VERSION" in f.attrs:
        kept = ", with snapshots of a policy" if "snapshots" in top else ""
        return (
            f"a PyTables file{kept}: logs of training, not a network",
            "Export the policy's weights by name to compare it.",
        )
    if node(f, "layer/0/neuron") is not None or any("/neuron/" in name for name in names):
        return "a spiking network (lava-dl): its neurons are not scaled or relabelled as layers of numbers are", ""
    if "_NCProperties" in f.attrs:
        return "a netCDF file: data, not a network", ""
    if "#refs#" in top or any(
        "MATLAB_class" in f[name].attrs for name in itertools.islice(top, 20) if node(f, name) is not None
    ):
        return "a MATLAB 7.3 file, which canon does not read", "Export the weights by name, or as ONNX."
    if "_types" in top:
        return "a Julia file (JLD2), whose values lie behind references", "Export the weights by name to plain HDF5."
    if not names:
        return "an HDF5 file without any dataset", ""
    if top <= {"inputs", "outputs", "predictions", "activations", "scores"}:
        return "recorded inputs and outputs of a model, not a network", "Give the file of the model itself."
    if last & {"data", "x", "x_train", "images"} and last & {"label", "labels", "target", "targets", "y", "y_train"}:
        return f"a data set ({_some(f)}), not a network", ""
    if last & {"loss", "val_loss"} and not last & {"kernel", "weight"}:
        return f"a training log ({_some(f)}), not a network", ""
    return None


def _unknown(f: Any) -> str:
    return f"an HDF5 file that holds no network canon can recognise ({_some(f)})"


def _some(f: Any) -> str:
    found = [path for path, _ in itertools.islice(walk(f), 4)]
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
