"""Keras models in HDF5, of Keras 1, 2 and 3 ("legacy"): the configuration and the weights, never the optimizer's state.

Also Keras's weights-only files when a configuration is lent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile, UnsupportedOp
from canon.formats import keras_config, keras_groups
from canon.formats.common import Request, node, text, write_copy
from canon.formats.keras_call import Graph, plural
from canon.formats.keras_layers import LAYERS
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run

OPTIMIZER = "optimizer_weights"


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file holds a Keras configuration."""
    return "model_config" in f.attrs


def read(f: Any, path: Path, request: Request) -> Run:
    """The run; UnsupportedOp names a layer that canon does not know, CorruptFile what does not fit together."""
    root = node(f, "model_weights")
    root = f if root is None and "layer_names" in f.attrs else root
    if root is None:
        raise CorruptFile("", "a Keras configuration without the weights (model_weights)")
    config = request.keras_config if request.keras_config is not None else _config(f)
    try:
        return _read(root, f, path, config, lent=request.keras_config is not None)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as e:
        raise CorruptFile(
            "model_config", f"a Keras configuration that does not hold together ({type(e).__name__}: {str(e)[:80]})"
        ) from e


def _config(f: Any) -> Mapping[str, Any]:
    try:
        found = json.loads(text(f.attrs["model_config"]))
    except (ValueError, RecursionError) as e:
        raise CorruptFile("model_config", f"is not JSON ({type(e).__name__})") from e
    if not isinstance(found, dict) or "config" not in found or "class_name" not in found:
        raise CorruptFile("model_config", "is no Keras configuration")
    return found


def _read(root: Any, f: Any, path: Path, config: Mapping[str, Any], *, lent: bool) -> Run:
    if config["class_name"] not in keras_config.MODELS:
        raise UnsupportedOp("", f"a model of class {config['class_name']} does not describe its graph",
                            "Save a Sequential or functional model.")  # fmt: skip
    era = keras_groups.era(root, f, told=dict(config))
    groups = keras_groups.layers(root)
    specs = keras_config.parse(config)
    graph = Graph(era)
    if lent:
        groups = _paired(specs, groups, graph)
    weights = keras_config.assign(specs, groups)
    outputs = keras_config.wire(graph, config, specs, weights)
    place = {e.path: i for i, e in enumerate(e for group in groups.values() for e in group)}
    order = sorted(graph.tensors, key=lambda t: place[graph.layout[t].path])
    network = Network({t: graph.tensors[t] for t in order}, tuple(graph.ops), graph.inputs, outputs)
    if graph.flips_unknown:
        graph.note(keras_groups.UNKNOWN_BACKEND)
    if era.theano and any(getattr(place, "flip", ()) for place in graph.layout.values()):
        graph.note(keras_groups.THEANO)
    if left := keras_groups.extra(root):
        graph.note(f"weights of the model itself, in no layer and left as they are: {len(left)}")
    return Run(
        path=str(path),
        format=f"keras-{era.major} {'weights ' if lent else ''}hdf5",
        network=network,
        layout={t: graph.layout[t] for t in order},
        graph="borrowed" if lent else "config",
        notes=tuple(graph.notes),
    )


def _paired(
    specs: tuple[keras_config.Spec, ...], groups: dict[str, list[keras_groups.Entry]], graph: Graph
) -> dict[str, list[keras_groups.Entry]]:
    """Groups under the names of a lent configuration: by name, or, where the names differ, in order as Keras does."""
    held = [name for name, entries in groups.items() if entries]
    if set(held) <= {spec.name for spec in specs}:
        return groups
    takers = [spec for spec in specs if any(LAYERS[leaf.cls].weights(leaf.cfg) for leaf in keras_config.leaves([spec]))]
    if len(takers) != len(held):
        raise CorruptFile(
            "", f"{plural(len(held), 'layer')} hold weights, and the architecture has {len(takers)} that take some"
        )
    graph.note("layers are paired with the architecture's in order: their names differ")
    return {spec.name: groups[name] for spec, name in zip(takers, held, strict=True)}


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors."""
    write_copy(run, path, source, actions, drop=(OPTIMIZER,) if drop_optimizer else ())
