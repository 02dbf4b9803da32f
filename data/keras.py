"""Writes a network as Keras 2 does: an HDF5 file with the model's configuration and its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from train import EPS, MOMENTUM, Layer, Net


def save(net: Net, path: Path, functional: bool) -> None:
    """A Sequential model or, with an input layer and named connections, a functional one. Input: 64 or 8 by 8 by 1."""
    shape = [None, 64] if net[0].kind == "Dense" else [None, 8, 8, 1]
    layers = [_layer(layer) for layer in net]
    if functional:
        source = "input_1"
        for entry in layers:
            entry |= {"name": entry["config"]["name"], "inbound_nodes": [[[source, 0, 0, {}]]]}
            source = entry["name"]
        config = {"batch_input_shape": shape, "dtype": "float32", "sparse": False, "name": "input_1"}
        first = {"class_name": "InputLayer", "config": config, "name": "input_1", "inbound_nodes": []}
        ends = {"input_layers": [["input_1", 0, 0]], "output_layers": [[source, 0, 0]]}
        model = {"class_name": "Model", "config": {"name": "model_1", "layers": [first, *layers], **ends}}
    else:
        layers[0]["config"] |= {"batch_input_shape": shape, "dtype": "float32"}
        model = {"class_name": "Sequential", "config": {"name": "sequential_1", "layers": layers}}
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(model)
        group = file.create_group("model_weights")
        for at in (file, group):
            at.attrs["keras_version"] = "2.2.4"
            at.attrs["backend"] = "tensorflow"
        names = [layer.name for layer in net]
        group.attrs["layer_names"] = np.array([n.encode() for n in (["input_1", *names] if functional else names)])
        if functional:
            group.create_group("input_1").attrs["weight_names"] = np.zeros(0)
        for layer in net:
            own = group.create_group(layer.name)
            paths = [f"{layer.name}/{n}:0" for n in layer.weights]
            own.attrs["weight_names"] = np.array([p.encode() for p in paths]) if paths else np.zeros(0)
            for p, w in zip(paths, layer.weights.values(), strict=True):
                own[p] = w


def _layer(layer: Layer) -> dict[str, Any]:
    kind, config = layer.kind, {"name": layer.name, "trainable": True}
    place = {"padding": "same", "data_format": "channels_last"}
    match kind:
        case "Dense":
            config |= {"units": layer.weights["bias"].size, "activation": layer.activation, "use_bias": True}
        case "Conv2D":
            filters = layer.weights["kernel"].shape[-1]
            config |= {"filters": filters, "kernel_size": [3, 3], "strides": [1, 1], "dilation_rate": [1, 1], **place}
            config |= {"activation": "linear", "use_bias": False}
        case "BatchNormalization":
            config |= {"axis": -1, "momentum": MOMENTUM, "epsilon": EPS, "center": True, "scale": True}
        case "ReLU":
            kind = "Activation"
            config |= {"activation": "relu"}
        case "MaxPooling2D":
            config |= {"pool_size": [2, 2], "strides": [2, 2], **place, "padding": "valid"}
        case "GlobalAveragePooling2D":
            config |= {"data_format": "channels_last"}
    return {"class_name": kind, "config": config}
