"""Keras models in HDF5, of Keras 1, 2 and 3 ("legacy"): the configuration and the weights, never the optimizer's state.

Also Keras's weights-only files when a configuration is lent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile
from canon.formats import keras_assign, keras_groups, keras_run, keras_specs
from canon.formats.common import Request, node, text
from canon.formats.common_write import write_copy
from canon.formats.keras_call import Graph, plural
from canon.ops.base import Array
from canon.run import Run

OPTIMIZER = "optimizer_weights"


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file holds a Keras configuration."""
    return "model_config" in f.attrs


def configuration(f: Any) -> Mapping[str, Any] | None:
    """The configuration that a full model records, to be lent to a file of its weights; None for other files."""
    return keras_run.config_of(text(f.attrs["model_config"])) if sniff(f) else None


def read(f: Any, path: Path, request: Request) -> Run:
    """The run; UnsupportedOp names a layer that canon does not know, CorruptFile what does not fit together."""
    root = node(f, "model_weights")
    root = f if root is None and "layer_names" in f.attrs else root
    if root is None:
        raise CorruptFile("", "a Keras configuration without the weights (model_weights)")
    lent = request.keras_config is not None
    config = request.keras_config if request.keras_config is not None else keras_run.config_of(text(f.attrs["model_config"]))
    with keras_run.holding_together("model_config"):
        return _read(root, f, path, config, lent=lent)


def _read(root: Any, f: Any, path: Path, config: Mapping[str, Any], *, lent: bool) -> Run:
    era = keras_groups.era(root, f, told=dict(config))
    groups = keras_groups.layers(root)
    graph = Graph(era)
    order = [e.path for group in groups.values() for e in group]
    wrapped = keras_specs.of_several_devices(config)
    if wrapped is not None:
        graph.note("the model was spread over several devices: what each of them runs is compared")
        entries = next((groups[name] for name in groups if name == wrapped["config"]["name"]), [])
        specs = keras_specs.parse(wrapped)
        whole = keras_specs.Spec("", "", "Functional", wrapped, ())
        weights = keras_assign.nested(whole, list(keras_specs.leaves(specs)), entries)
        config = wrapped
    else:
        specs = keras_specs.parse(config)
        if lent:
            groups = _paired(specs, groups, graph)
        weights = keras_assign.assign(specs, groups)
    if left := keras_groups.extra(root):
        graph.note(f"weights of the model itself, in no layer and left as they are: {len(left)}")
    return keras_run.run(
        graph, config, specs, weights, order, path, f"keras-{era.major} {'weights ' if lent else ''}hdf5", lent=lent
    )


def _paired(
    specs: tuple[keras_specs.Spec, ...], groups: dict[str, list[keras_groups.Entry]], graph: Graph
) -> dict[str, list[keras_groups.Entry]]:
    """Groups under the names of a lent configuration: by name, or, where the names differ, in order as Keras does."""
    held = [name for name, entries in groups.items() if entries]
    if set(held) <= {spec.name for spec in specs}:
        return groups
    takers = [spec for spec in specs if any(leaf.layer.weights(leaf.cfg) for leaf in keras_specs.leaves([spec]))]
    if len(takers) != len(held):
        raise CorruptFile(
            "", f"{plural(len(held), 'layer')} hold weights, and the architecture has {len(takers)} that take some"
        )
    graph.note("layers are paired with the architecture's in order: their names differ")
    return {spec.name: groups[name] for spec, name in zip(takers, held, strict=True)}


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors."""
    write_copy(run, path, source, actions, drop=(OPTIMIZER,) if drop_optimizer else ())
