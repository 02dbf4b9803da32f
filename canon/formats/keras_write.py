"""New Keras files from any network: legacy HDF5, which every Keras since 2 loads, and Keras 3's archive (.keras)."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import UnsupportedOp, WriteError
from canon.formats.common_write import check_name, replacing
from canon.formats.keras_build import Built, Model, build
from canon.formats.keras_layers import layer_of
from canon.formats.keras_slope import steeper
from canon.formats.keras_vars import snake_case
from canon.run import Run

MODULE = "keras.src.models.functional"
LEGACY, MODERN = "2.15.0", "3.10.0"
MOST = 60_000
"""Bytes that one HDF5 attribute may have, less than the 64 KiB where it no longer fits."""
NO_TRAINING = "how it was trained is not kept: no optimizer, no loss"
OLD_SLOPE = "its hard sigmoid is the one of Keras 1 and 2: Keras 3 computes another with this file"
NEW_SLOPE = "its hard sigmoid is the one of Keras 3: Keras 2 computes another with this file"


def write_hdf5(run: Run, path: Path) -> tuple[str, ...]:
    """Legacy HDF5, with its configuration; what it cannot keep, a line each."""
    import h5py

    model = build(run.network)
    newer = abs(model.slope - 1 / 6) < 1e-6
    config = {"class_name": "Functional", "config": _functional(model, [_legacy(layer) for layer in model.layers])}
    with replacing(path) as temporary, h5py.File(temporary, "w") as f:
        weights = f.create_group("model_weights")
        for at in (f, weights):
            at.attrs["keras_version"] = MODERN if newer else LEGACY
            at.attrs["backend"] = "tensorflow"
        f.attrs["model_config"] = json.dumps(config)
        _names(weights, "layer_names", [layer.name for layer in model.layers])
        for layer in model.layers:
            group = weights.create_group(layer.name)
            names = [f"{layer.name}/{role}:0" for role in layer.arrays]
            _names(group, "weight_names", names)
            for name, values in zip(names, layer.arrays.values(), strict=True):
                check_name(name)
                group.create_dataset(name, data=np.ascontiguousarray(values), track_times=False)
    return (*model.notes, *_lost(run), *((NEW_SLOPE if newer else OLD_SLOPE,) if model.slope else ()))


def _names(group: Any, key: str, names: list[str]) -> None:
    """A list of names as Keras keeps it: split over numbered attributes where it is too long for one."""
    raw = [name.encode("utf-8") for name in names]
    if max(map(len, raw), default=0) > MOST:
        raise WriteError("", f"a name of {max(map(len, raw)):,} bytes is too long for an HDF5 attribute")
    width = max(map(len, raw), default=1)
    per = max(MOST // max(width, 1), 1)
    if len(raw) <= per:
        group.attrs[key] = np.array(raw, dtype=f"S{max(width, 1)}")
        return
    for i in range(0, len(raw), per):
        group.attrs[f"{key}{i // per}"] = np.array(raw[i : i + per], dtype=f"S{width}")


def _functional(model: Model, layers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "model",
        "trainable": True,
        "layers": layers,
        "input_layers": [[name, call, 0] for name, call in model.inputs],
        "output_layers": [[name, call, 0] for name, call in model.outputs],
    }


def _options(layer: Built) -> dict[str, Any]:
    """A layer's options; a layer within them says where its class is from, without which Keras 3 does not find it."""
    inner = layer.cfg.get("layer")
    within = {"layer": _object(inner["class_name"], inner["config"], "keras.layers")} if inner else {}
    return {**layer.cfg, **within}


def _legacy(layer: Built) -> dict[str, Any]:
    nodes = [[[name, call, 0, {}] for name, call in reads] for reads in layer.calls]
    cfg = _options(layer)
    if layer.cls == "InputLayer":
        cfg["batch_input_shape"] = cfg.pop("batch_shape")
    cfg = {key: value for key, value in cfg.items() if key != "groups" or value != 1 or layer.cls == "GroupNormalization"}
    return {"class_name": layer.cls, "config": cfg, "name": layer.name, "inbound_nodes": nodes}


def write_zip(run: Run, path: Path) -> tuple[str, ...]:
    """Keras 3's archive; what it cannot keep, a line each. The same network gives the same bytes."""
    network, changed = steeper(run.network)
    model = build(network)
    shapes = {layer.name: layer.shape for layer in model.layers}
    if gone := [layer for layer in model.layers if layer.cls.startswith("LocallyConnected")]:
        raise UnsupportedOp(gone[0].name, "Keras 3 has no locally connected layers", "Write it as legacy HDF5.")
    config = _object("Functional", _functional(model, [_modern(layer, shapes) for layer in model.layers]), MODULE)
    config["registered_name"] = "Functional"
    told = {"keras_version": MODERN, "date_saved": "1980-01-01@00:00:00"}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as out:
        for name, said in (("metadata.json", told), ("config.json", config)):
            out.writestr(zipfile.ZipInfo(name), json.dumps(said))
        out.writestr(zipfile.ZipInfo("model.weights.h5"), _weights(model))
    return (*changed, *model.notes, *_lost(run))


def _object(cls: str, config: Mapping[str, Any], module: str, **more: Any) -> dict[str, Any]:
    return {"module": module, "class_name": cls, "config": dict(config), "registered_name": None, **more}


def _modern(layer: Built, shapes: Mapping[str, tuple[int | None, ...]]) -> dict[str, Any]:
    cfg = _options(layer)
    if layer.cls == "LeakyReLU":
        cfg["negative_slope"] = cfg.pop("alpha")
    nodes = [{"args": _arguments(layer, reads, shapes), "kwargs": {}} for reads in layer.calls]
    return _object(layer.cls, cfg, "keras.layers", name=layer.name, inbound_nodes=nodes)


def _arguments(layer: Built, reads: tuple[tuple[str, int], ...], shapes: Mapping[str, tuple[int | None, ...]]) -> list[Any]:
    tensors = [
        {
            "class_name": "__keras_tensor__",
            "config": {"shape": [None, *shapes[name]], "dtype": "float32", "keras_history": [name, call, 0]},
        }
        for name, call in reads
    ]
    return [tensors] if len(tensors) > 1 else tensors


def _weights(model: Model) -> bytes:
    """The weights in Keras 3's layout: groups named after classes and counted, variables by number."""
    import h5py

    raw = io.BytesIO()
    count: dict[str, int] = {}
    with h5py.File(raw, "w") as f:
        f.create_group("vars").attrs["name"] = "model"
        for layer in model.layers:
            snake = snake_case(layer.cls)
            k = count[snake] = count.get(snake, -1) + 1
            group = f.create_group(f"layers/{snake}_{k}" if k else f"layers/{snake}")
            group.create_group("vars").attrs["name"] = layer.name
            for path, roles in _places(layer):
                held = group.require_group(f"{path}/vars" if path else "vars")
                for i, role in enumerate(roles):
                    held.create_dataset(str(i), data=np.ascontiguousarray(layer.arrays[role]), track_times=False)
    return raw.getvalue()


def _places(layer: Built) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Where below its group a layer keeps what."""
    if layer.cls == "TimeDistributed":
        inner = layer.cfg["layer"]
        found = layer_of(inner["class_name"]).places(inner["config"])
        return tuple((f"layer/{path}" if path else "layer", roles) for path, roles in found)
    return layer_of(layer.cls).places(layer.cfg) if layer.arrays else ()


def _lost(run: Run) -> tuple[str, ...]:
    """What of a run has no place in a Keras file."""
    lost = []
    if run.probes:
        lost.append("the probes stored with the run are left out")
    if len(run.checkpoints) > 1:
        lost.append(f"one checkpoint of {len(run.checkpoints)} is written: {run.checkpoint}")
    if run.graph == "config" and not run.format.startswith("canon"):
        lost.append(NO_TRAINING)
    return tuple(lost)
