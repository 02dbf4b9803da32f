"""Small Keras HDF5 files, written by h5py alone."""

import json
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np


def layer(cls, name, src=(), w=None, **cfg):
    """An entry of a configuration and its weights; src: names, or (name, node, tensor), one call."""
    refs = [list(s) if isinstance(s, tuple) else [s, 0, 0] for s in ([src] if isinstance(src, str) else src)]
    return {
        "class_name": cls,
        "name": name,
        "config": {"name": name, **cfg},
        "inbound_nodes": [[[*r, {}] for r in refs]] if refs else [],
        "w": w or {},
    }


def inp(name, *shape):
    return layer("InputLayer", name, batch_input_shape=[None, *shape])


def dense(name, src, n_in, n_out, act="relu", rng=None, dtype="float32", **cfg):
    rng = rng or np.random.default_rng(len(name))
    w = {"kernel": rng.standard_normal((n_in, n_out)).astype(dtype), "bias": rng.standard_normal(n_out).astype(dtype)}
    return layer("Dense", name, src, w, units=n_out, activation=act, use_bias=True, **cfg)


def functional(layers, inputs, outputs, name="model", cls="Functional"):
    def refs(names):
        return [list(n) if isinstance(n, tuple) else [n, 0, 0] for n in names]

    config = {"name": name, "layers": bare(layers), "input_layers": refs(inputs), "output_layers": refs(outputs)}
    return {"class_name": cls, "config": config}


def sequential(layers, name="sequential", as_list=False):
    inner = [{k: v for k, v in entry.items() if k not in ("name", "inbound_nodes")} for entry in bare(layers)]
    return {"class_name": "Sequential", "config": inner if as_list else {"name": name, "layers": inner}}


def nested(model, name, src, w):
    """A model as a layer; w: full weight name -> array, all in its one group."""
    calls = src if src and isinstance(src[0], list) else [src]
    nodes = [[[*(s if isinstance(s, tuple) else (s, 0, 0)), {}] for s in call] for call in calls]
    return {**model, "name": name, "inbound_nodes": nodes, "w": w, "nested": True}


def bare(layers):
    return [{k: v for k, v in entry.items() if k not in ("w", "nested")} for entry in layers]


def save(path: Path, model, layers, version="2.4.0", backend="tensorflow", full=True, suffix=":0", inner=True, optimizer=False):
    """Write the file; inner: weight names carry the layer's name; None for version or backend leaves them out."""
    with h5py.File(path, "w") as f:
        root = f.create_group("model_weights") if full else f
        if full:
            f.attrs["model_config"] = json.dumps(model)
        for at in {f, root}:
            for key, value in (("keras_version", version), ("backend", backend)):
                if value is not None:
                    at.attrs[key] = value
        root.attrs["layer_names"] = np.array([k["name"].encode() for k in layers])
        for k in layers:
            g = root.create_group(k["name"])
            prefix = f"{k['name']}/" if inner and not k.get("nested") else ""
            names = [f"{prefix}{n}{suffix}" for n in k["w"]]
            g.attrs["weight_names"] = np.array([n.encode() for n in names]) if names else np.zeros(0)
            for n, v in zip(names, k["w"].values(), strict=True):
                g[n] = v
        if optimizer:
            f["optimizer_weights/Adam/dense_0/kernel/m:0"] = np.zeros((3, 3))
            f["optimizer_weights/Adam/iterations:0"] = np.int64(7)
            f["optimizer_weights"].attrs["weight_names"] = b"broken"
    return path


def mlp(path: Path, sizes=(4, 6, 5, 3), act="relu", seed=0, **kw):
    """A chain of dense layers dense_0, dense_1 ..., the last linear."""
    rng = np.random.default_rng(seed)
    layers, src = [inp("x", sizes[0])], "x"
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers.append(dense(f"dense_{i}", src, a, b, "linear" if i == len(sizes) - 2 else act, rng))
        src = f"dense_{i}"
    return save(path, functional(layers, ["x"], [src]), layers, **kw)


def run(network, *inputs):
    """The network's outputs on float64 inputs, op by op."""
    from canon.ops import kind_of

    values = dict(zip(network.inputs, inputs, strict=True))
    for op in network.ops:
        params = {role: t.astype(np.float64) for role, t in network.params(op).items()}
        values[op.output] = kind_of(op).forward(op, [values[v] for v in op.inputs], params)
    return [values[v] for v in network.outputs]
