"""A Keras configuration taken apart: its layers, in Keras 2's words, and which tensors each call of them reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canon.errors import CorruptFile, UnsupportedOp
from canon.formats.keras_call import REFUSAL
from canon.formats.keras_layer import Layer
from canon.formats.keras_layers import LAYERS, layer_of
from canon.formats.keras_one import modern
from canon.ops.base import Shape

MODELS = ("Sequential", "Model", "Functional")
DEEPEST, MOST_LAYERS = 40, 8000
"""Levels of models within models that are followed, and layers of one model."""
Ref = tuple[str, int, int]
"""A tensor of a configuration: layer, which of its calls, which of that call's outputs."""
SHARED_NAMES = ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Concatenate", "Softmax", "NotEqual", "Any")
"""Functions of Keras 3 that do what the layer of the same name does, or that masks are made of."""
FUNCTIONS = {
    **{f"{at}.{word}": cls for at in ("math", "__operators__")
       for word, cls in (("add", "Add"), ("subtract", "Subtract"), ("multiply", "Multiply"))},
    "math.maximum": "Maximum",
    "math.minimum": "Minimum",
}  # fmt: skip
"""TensorFlow's functions of two tensors that are a layer."""


@dataclass(frozen=True)
class Inputs:
    """What one call of a layer is given: tensors in order, the mask where it is given by hand, and plain values by name.

    shapes: of the tensors, where the configuration says them (Keras 3 does).
    """

    refs: tuple[Ref, ...]
    mask: Ref | None = None
    plain: tuple[tuple[str, Any], ...] = ()
    shapes: tuple[tuple[Ref, Shape], ...] = ()


@dataclass(frozen=True)
class Spec:
    """A layer of a configuration: path ("outer/inner"), name in its model, class and options in Keras 2's words.

    timed: whether it is applied to every step (TimeDistributed: class and options are those of the layer within);
    stored: its class as the file spells it; built: the shape it was built for, where the file says so.
    """

    path: str
    name: str
    cls: str
    cfg: Mapping[str, Any]
    calls: tuple[Inputs, ...]
    timed: bool = False
    stored: str = ""
    built: Shape | None = None

    @property
    def is_model(self) -> bool:
        """Whether the layer is a model itself; cfg is its whole entry then."""
        return self.cls in MODELS

    @property
    def layer(self) -> Layer:
        """What canon knows of its class."""
        return layer_of(self.cls)


def parse(model: Mapping[str, Any], prefix: str = "") -> tuple[Spec, ...]:
    """The layers of a model's configuration, in its order."""
    if prefix.count("/") > DEEPEST:
        raise CorruptFile("", f"its models are nested more than {DEEPEST} deep")
    if len(raw_layers(model)) > MOST_LAYERS:
        raise CorruptFile("", f"a model of more than {MOST_LAYERS:,} layers")
    found = tuple(_spec(raw, prefix) for raw in raw_layers(model))
    names = Counter(spec.path for spec in found)
    if twice := [name for name, n in names.items() if n > 1]:
        raise CorruptFile(f"layer {twice[0]!r}", "is in the configuration twice")
    return found


def raw_layers(model: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The entries of a model's layers."""
    config = model["config"]
    found: Sequence[Mapping[str, Any]] = config if isinstance(config, list) else config["layers"]
    return found


def leaves(specs: Sequence[Spec]) -> Iterator[Spec]:
    """All layers that are no models, in order."""
    for spec in specs:
        if spec.is_model:
            yield from leaves(parse(spec.cfg, f"{spec.path}/"))
        elif spec.cls != "InputLayer":
            yield spec


def input_shape(cfg: Mapping[str, Any]) -> Shape | None:
    """The shape that an input layer, or a first layer, is declared for."""
    found = cfg.get("batch_input_shape") or cfg.get("batch_shape")
    if isinstance(found, Mapping):
        found = found.get("config") or found.get("value")
    if not isinstance(found, list):
        return None
    return tuple(None if n is None else int(n) for n in found[1:])


def _spec(raw: Mapping[str, Any], prefix: str) -> Spec:
    cls, cfg = str(raw["class_name"]), raw["config"]
    name = raw.get("name") or (cfg.get("name") if isinstance(cfg, Mapping) else None)
    if not isinstance(name, str):
        raise CorruptFile("", f"a layer of class {cls} without a name")
    path = prefix + name
    calls = tuple(_inputs(path, node) for node in raw.get("inbound_nodes") or [])
    if cls in MODELS:
        return Spec(path, name, cls, raw, calls, stored=cls)
    if cls == "TimeDistributed":
        inner = cfg["layer"]
        if inner["class_name"] in MODELS:
            return Spec(path, name, inner["class_name"], inner, calls, timed=True, stored=cls)
        within, options = modern(path, str(inner["class_name"]), inner["config"])
        return Spec(path, name, within, options, calls, timed=True, stored=cls)
    known, plain = _class(cls, raw, calls), dict(calls[0].plain) if calls else {}
    new_cls, new = modern(path, known, cfg)
    if plain and new_cls in LAYERS:
        key, value = next(iter(plain.items()))
        raise UnsupportedOp("", f"layer {path!r} is called with {key}={str(value)[:40]}, which is not supported", REFUSAL)
    if plain:
        new["arguments"] = plain
    return Spec(path, name, new_cls, new, calls, stored=cls, built=_built(raw))


def _class(cls: str, raw: Mapping[str, Any], calls: Sequence[Inputs]) -> str:
    """A layer's class; functions that are wired in as layers, and classes of others, under names of their own."""
    custom, module = raw.get("registered_name"), raw.get("module")
    numbers = any(not key or key.isdigit() for call in calls for key, _ in call.plain)
    if isinstance(custom, str) and ">" in custom and not custom.startswith("Keras>"):
        return custom
    if cls in ("TFOpLambda", "SlicingOpLambda"):
        function = str(raw["config"].get("function"))
        joined = FUNCTIONS.get(function)
        return joined if joined and all(len(call.refs) == 2 and not call.plain for call in calls) else f"tf.{function}"
    if numbers and cls not in ("NotEqual",):
        return f"ops.{cls}"
    if isinstance(module, str) and ".ops" in module and cls not in SHARED_NAMES:
        return f"ops.{cls}"
    return cls


def _built(raw: Mapping[str, Any]) -> Shape | None:
    build = raw.get("build_config")
    found = build.get("input_shape") if isinstance(build, Mapping) else None
    if isinstance(found, list) and all(n is None or isinstance(n, int) for n in found):
        return tuple(found[1:])
    return None


def _inputs(layer: str, node: Any) -> Inputs:
    """What one call is given, from any Keras's way to write it."""
    if isinstance(node, Mapping) and "args" in node:
        positional, named = [node["args"]], [dict(node.get("kwargs") or {})]
    elif isinstance(node, Mapping):
        raise UnsupportedOp("", f"layer {layer!r} takes its inputs by name, which is not supported", REFUSAL)
    else:
        parts = [node] if node and isinstance(node[0], str) else node
        parts = [part[0] if isinstance(part[0], list) and len(part) == 1 else part for part in parts]
        positional, named = [[part[:3] for part in parts]], [part[3] for part in parts if len(part) > 3]
    shapes: list[tuple[Ref, Shape]] = []
    refs, mask, plain = list(_tensors(positional, shapes)), None, []
    for i, value in enumerate(positional[0] if isinstance(node, Mapping) else ()):
        if isinstance(value, int | float | str):
            plain.append((str(i), value))
    for key, value in ((key, value) for keywords in named for key, value in keywords.items()):
        found = list(_tensors(value, shapes))
        if key == "mask" and len(found) == 1:
            mask = found[0]
        elif found:
            refs += found
        elif value not in (None, False) and key != "name":
            plain.append((key, value))
    return Inputs(tuple(refs), mask, tuple(plain), tuple(shapes))


def _tensors(value: Any, shapes: list[tuple[Ref, Shape]]) -> Iterator[Ref]:
    """The tensors in an argument, however deep in lists."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__keras_tensor__":
            name, node, tensor = value["config"]["keras_history"]
            ref = (str(name), int(node), int(tensor))
            said = value["config"].get("shape")
            if isinstance(said, list) and all(n is None or isinstance(n, int) for n in said):
                shapes.append((ref, tuple(said[1:])))
            yield ref
    elif isinstance(value, list):
        if len(value) in (3, 4) and isinstance(value[0], str) and all(isinstance(n, int) for n in value[1:3]):
            yield str(value[0]), int(value[1]), int(value[2])
        else:
            for part in value:
                yield from _tensors(part, shapes)


# wrappers


def of_several_devices(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The model within what Keras's multi_gpu_model makes: slices of the batch, the model on each, and a concatenation."""
    if model["class_name"] not in ("Model", "Functional"):
        return None
    raw = raw_layers(model)
    inner = [r for r in raw if r["class_name"] in MODELS]
    slices = [r for r in raw if r["class_name"] == "Lambda" and {"i", "parts"} <= set(r["config"].get("arguments") or ())]
    joins = [r for r in raw if r["class_name"] == "Concatenate" and r["config"].get("axis") == 0]
    inputs = [r for r in raw if r["class_name"] == "InputLayer"]
    whole = len(inner) == 1 and slices and joins and len(raw) == len(inner) + len(slices) + len(joins) + len(inputs)
    return inner[0] if whole else None
