"""From a Keras configuration and its weights to a run, whatever file they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile, UnsupportedOp
from canon.formats import keras_config, keras_groups, keras_vars
from canon.formats.common import is_real
from canon.formats.common_layout import Place
from canon.formats.keras_call import Graph
from canon.formats.keras_groups import Entry
from canon.formats.keras_specs import MODELS, Spec, parse
from canon.network import Network
from canon.run import Run


def config_of(said: str) -> Mapping[str, Any]:
    """A model's configuration from its JSON."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError) as e:
        raise CorruptFile("model_config", f"is not JSON ({type(e).__name__})") from e
    if not isinstance(found, dict) or "config" not in found or "class_name" not in found:
        raise CorruptFile("model_config", "is no Keras configuration")
    return found


@contextmanager
def holding_together(where: str) -> Iterator[None]:
    """Whatever a configuration trips the reader with is a CorruptFile."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError, OverflowError) as e:
        raise CorruptFile(
            where, f"a Keras configuration that does not hold together ({type(e).__name__}: {str(e)[:80]})"
        ) from e


def run(
    graph: Graph,
    config: Mapping[str, Any],
    specs: Sequence[Spec],
    weights: Mapping[str, Mapping[str, Entry]],
    order: Sequence[str],
    path: Path,
    fmt: str,
    *,
    lent: bool,
) -> Run:
    """Wire the configuration into the graph. order: the datasets' paths in the file's order, which tensors keep."""
    if config["class_name"] not in MODELS:
        raise UnsupportedOp("", f"a model of class {config['class_name']} does not describe its graph",
                            "Save a Sequential or functional model.")  # fmt: skip
    outputs = keras_config.wire(graph, config, specs, weights)
    place = {p: i for i, p in enumerate(order)}
    names = sorted(graph.tensors, key=lambda t: place[graph.layout[t].path])
    network = Network({t: graph.tensors[t] for t in names}, tuple(graph.ops), graph.inputs, outputs)
    alternatives: tuple[Network, ...] = ()
    if graph.flips_unknown:
        graph.note(keras_groups.UNKNOWN_BACKEND)
        flipped = {t: np.flip(v, tuple(range(2, v.ndim))) for t, v in graph.tensors.items() if t in graph.flips_unknown}
        if any(v.shape[2:] != (1,) * (v.ndim - 2) for v in flipped.values()):
            alternatives = (network.with_tensors(flipped),)
    if graph.era.theano and any(isinstance(at, Place) and at.flip for at in graph.layout.values()):
        graph.note(keras_groups.THEANO)
    return Run(
        path=str(path),
        format=fmt,
        network=network,
        layout={t: graph.layout[t] for t in names},
        graph="borrowed" if lent else "config",
        notes=tuple(graph.notes),
        alternatives=alternatives,
    )


def from_vars(f: Any, path: Path, config: Mapping[str, Any], told: Mapping[str, Any], what: str, *, lent: bool) -> Run:
    """The run of an open weights file and a configuration."""
    era = keras_groups.era(told={"keras_version": told.get("keras_version") or dialect(config), "backend": "any"})
    graph = Graph(era)
    specs = parse(config)
    weights = keras_vars.assign(specs, f)
    if left := [e for e in keras_vars.variables(f) if is_real(e.dataset.dtype)]:
        graph.note(f"weights of the model itself, in no layer and left as they are: {len(left)}")
    order = [entry.path for roles in weights.values() for entry in roles.values()]
    return run(graph, config, specs, weights, order, path, f"keras-{era.major} {what}", lent=lent)


def dialect(config: Mapping[str, Any]) -> str:
    """Which Keras a configuration without a version is from: Keras 3 says batch_shape where 2 said batch_input_shape."""
    if config.get("keras_version"):
        return str(config["keras_version"])
    said = json.dumps(config)
    return "3" if '"module"' in said and '"batch_input_shape"' not in said else "2.4"
