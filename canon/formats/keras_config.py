"""A Keras configuration as a graph: models inside models are wired in, and each weight finds its layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canon.errors import AmbiguousGraph, CorruptFile, GraphError, UnsupportedOp
from canon.formats.keras_call import REFUSAL, Call, Graph, called, plural
from canon.formats.keras_groups import Entry
from canon.formats.keras_layers import LAYERS, STATISTICS
from canon.formats.keras_one import modern
from canon.ops.base import Shape

MODELS = ("Sequential", "Model", "Functional")
Ref = tuple[str, int, int]
"""A tensor of a configuration: layer, which of its calls, which of that call's outputs."""


@dataclass(frozen=True)
class Spec:
    """A layer of a configuration: path ("outer/inner"), name in its model, class and options in Keras 2's words."""

    path: str
    name: str
    cls: str
    cfg: Mapping[str, Any]
    calls: tuple[tuple[Ref, ...], ...]

    @property
    def is_model(self) -> bool:
        """Whether the layer is a model itself; cfg is its whole entry then."""
        return self.cls in MODELS


def parse(model: Mapping[str, Any], prefix: str = "") -> tuple[Spec, ...]:
    """The layers of a model's configuration, in its order."""
    return tuple(_spec(raw, prefix) for raw in _raw_layers(model))


def _raw_layers(model: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    config = model["config"]
    found: Sequence[Mapping[str, Any]] = config if isinstance(config, list) else config["layers"]
    return found


def _spec(raw: Mapping[str, Any], prefix: str) -> Spec:
    cls, cfg = str(raw["class_name"]), raw["config"]
    name = raw.get("name") or (cfg.get("name") if isinstance(cfg, Mapping) else None)
    if not isinstance(name, str):
        raise CorruptFile("", f"a layer of class {cls} without a name")
    calls = tuple(tuple(_refs(prefix + name, node)) for node in raw.get("inbound_nodes") or [])
    if cls in MODELS:
        return Spec(prefix + name, name, cls, raw, calls)
    custom = raw.get("registered_name")
    if isinstance(custom, str) and ">" in custom and not custom.startswith("Keras>"):
        cls = custom
    cls, new = modern(prefix + name, cls, cfg)
    return Spec(prefix + name, name, cls, new, calls)


def _refs(layer: str, node: Any) -> Iterator[Ref]:
    """The tensors that one call reads, from any Keras's way to write them."""
    if isinstance(node, Mapping) and "args" in node:
        _plain_arguments(layer, node.get("kwargs") or {})
        yield from _histories(node["args"])
        return
    if isinstance(node, Mapping):
        raise UnsupportedOp("", f"layer {layer!r} takes its inputs by name, which is not supported", REFUSAL)
    for part in [node] if node and isinstance(node[0], str) else node:
        if len(part) > 3:
            _plain_arguments(layer, part[3])
        yield str(part[0]), int(part[1]), int(part[2])


def _plain_arguments(layer: str, found: Mapping[str, Any]) -> None:
    for key, value in found.items():
        if value not in (None, False):
            raise UnsupportedOp("", f"layer {layer!r} is called with {key}={str(value)[:40]}, which is not supported", REFUSAL)


def _histories(found: Any) -> Iterator[Ref]:
    if isinstance(found, Mapping):
        history = (found.get("config") or {}).get("keras_history")
        if found.get("class_name") != "__keras_tensor__" or not history:
            raise CorruptFile("", "a layer is called on something that is no layer's output")
        yield str(history[0]), int(history[1]), int(history[2])
    else:
        for part in found:
            yield from _histories(part)


# weights


def leaves(specs: Sequence[Spec]) -> Iterator[Spec]:
    """All layers that are no models, in order; UnsupportedOp for one that canon does not know."""
    for spec in specs:
        if spec.is_model:
            yield from leaves(parse(spec.cfg, f"{spec.path}/"))
        elif spec.cls in LAYERS:
            yield spec
        elif spec.cls != "InputLayer":
            raise UnsupportedOp("", f"layer {spec.path!r} of class {spec.cls} is not supported", REFUSAL)


def assign(specs: Sequence[Spec], groups: Mapping[str, Sequence[Entry]]) -> dict[str, dict[str, Entry]]:
    """The weights of each layer by role, from the file's groups.

    Raises CorruptFile naming the layer where configuration and file do not agree.
    """
    named = {spec.name for spec in specs}
    for name, entries in groups.items():
        if entries and name not in named:
            raise CorruptFile(f"layer {name!r}", f"has {plural(len(entries), 'weight')} and is not in the configuration")
    found: dict[str, dict[str, Entry]] = {}
    for spec in specs:
        entries = groups.get(spec.name, ())
        inner = list(leaves([spec]))
        if spec.is_model:
            found.update(_nested(spec, inner, entries))
        elif inner:
            found[spec.path] = _own(spec, entries)
    if not any(found.values()):
        raise CorruptFile("", "not one parameter of the file belongs to a layer of its configuration")
    return found


def _own(spec: Spec, entries: Sequence[Entry]) -> dict[str, Entry]:
    layer, roles = LAYERS[spec.cls], [e.role for e in entries]
    wanted = layer.weights(spec.cfg)
    if len(set(roles)) == len(roles) and (set(roles) == set(wanted) or (layer.any_weights and entries)):
        return dict(zip(roles, entries, strict=True))
    if len(entries) != len(wanted):
        raise CorruptFile(
            f"layer {spec.path!r}",
            f"holds {plural(len(entries), 'weight')} ({_listed(roles)}), its configuration asks for {_listed(wanted)}",
        )
    return dict(zip(wanted, entries, strict=True))


def _listed(roles: Sequence[str]) -> str:
    return ", ".join(roles) or "none"


def _nested(model: Spec, inner: Sequence[Spec], entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """All weights below a model lie in one group: found by layer name, else by Keras's order."""
    by_name: dict[str, dict[str, Entry]] = {spec.path: {} for spec in inner}
    wanted = {spec.path: LAYERS[spec.cls].weights(spec.cfg) for spec in inner}
    for spec in inner:
        for entry in entries:
            if spec.name in entry.parts[:-1] and entry.role in wanted[spec.path]:
                by_name[spec.path].setdefault(entry.role, entry)
    used = [e.path for roles in by_name.values() for e in roles.values()]
    if len(used) == len(set(used)) == len(entries) and all(set(by_name[p]) == set(wanted[p]) for p in by_name):
        return by_name
    for order in _orders(inner, wanted):
        if len(order) == len(entries) and all(role == entry.role for (_, role), entry in zip(order, entries, strict=True)):
            found: dict[str, dict[str, Entry]] = {spec.path: {} for spec in inner}
            for (path, role), entry in zip(order, entries, strict=True):
                found[path][role] = entry
            return found
    total = sum(map(len, wanted.values()))
    raise CorruptFile(
        f"layer {model.path!r}",
        f"is a model whose {plural(len(entries), 'weight')} do not go with its layers, which ask for {total}",
    )


def _orders(inner: Sequence[Spec], wanted: Mapping[str, Sequence[str]]) -> Iterator[list[tuple[str, str]]]:
    """Keras lists what is trained before what is not; some versions list layer by layer."""
    every = [(spec, role) for spec in inner for role in wanted[spec.path]]

    def held(spec: Spec, role: str) -> bool:
        return role in STATISTICS or spec.cfg.get("trainable") is False

    yield [(s.path, r) for s, r in every if not held(s, r)] + [(s.path, r) for s, r in every if held(s, r)]
    yield [(s.path, r) for s, r in every if r not in STATISTICS] + [(s.path, r) for s, r in every if r in STATISTICS]
    yield [(s.path, r) for s, r in every]


# wiring


def wire(
    graph: Graph, model: Mapping[str, Any], specs: Sequence[Spec], weights: Mapping[str, Mapping[str, Entry]]
) -> tuple[str, ...]:
    """Add a whole configuration to the graph; the names of its outputs."""
    return _Wiring(graph, weights).model(model, specs, None, "")


@dataclass
class _Wiring:
    graph: Graph
    weights: Mapping[str, Mapping[str, Entry]]

    def model(
        self, model: Mapping[str, Any], specs: Sequence[Spec], given: Sequence[str] | None, suffix: str
    ) -> tuple[str, ...]:
        """given: the values a model inside another is called on; suffix: which call of it this is."""
        if model["class_name"] == "Sequential" or isinstance(model["config"], list):
            return self._sequential(model, specs, given, suffix)
        return self._functional(model, specs, given, suffix)

    def _call(self, spec: Spec, inputs: Sequence[str], suffix: str) -> tuple[str, ...]:
        if spec.is_model:
            return self.model(spec.cfg, parse(spec.cfg, f"{spec.path}/"), inputs, suffix)
        if not inputs:
            raise CorruptFile(f"layer {spec.path!r}", "is called on nothing")
        call = Call(self.graph, spec.path, spec.path + suffix, spec.cls, spec.cfg, tuple(inputs), self.weights[spec.path])
        LAYERS[spec.cls].build(call)
        return (call.name,)

    def _input(self, name: str, shape: Shape) -> str:
        self.graph.inputs[name] = self.graph.shapes[name] = shape
        return name

    def _sequential(
        self, model: Mapping[str, Any], specs: Sequence[Spec], given: Sequence[str] | None, suffix: str
    ) -> tuple[str, ...]:
        values: Sequence[str] = given or ()
        for spec in specs:
            if spec.cls == "InputLayer":
                values = values or (self._input(spec.path, _input_shape(spec.cfg)),)
                continue
            if not values:
                shape = self._first_shape(model, spec)
                values = (self._input("input", shape),) if shape is not None else ()
            values = self._call(spec, values, suffix) if values else self._lead(spec, suffix)
        return tuple(values)

    def _lead(self, spec: Spec, suffix: str) -> tuple[str, ...]:
        """A model that begins another brings its inputs along."""
        return self.model(spec.cfg, parse(spec.cfg, f"{spec.path}/"), None, suffix)

    def _first_shape(self, model: Mapping[str, Any], spec: Spec) -> Shape | None:
        """Input shape of a Sequential without an input layer; None where its first layer brings one."""
        built = model["config"].get("build_input_shape") if isinstance(model["config"], Mapping) else None
        for cfg in (spec.cfg, {"batch_input_shape": built}):
            if cfg.get("batch_input_shape") or cfg.get("batch_shape"):
                return _input_shape(cfg)
        if spec.is_model:
            return None
        kernel = self.weights.get(spec.path, {}).get("kernel")
        if isinstance(spec.cfg.get("input_dim"), int) and spec.cls == "Dense":
            return (spec.cfg["input_dim"],)
        if kernel is not None and spec.cls == "Dense":
            return (int(kernel.dataset.shape[0]),)
        raise AmbiguousGraph("", f"the configuration does not say what shape layer {spec.path!r} takes in")

    def _functional(
        self, model: Mapping[str, Any], specs: Sequence[Spec], given: Sequence[str] | None, suffix: str
    ) -> tuple[str, ...]:
        config = model["config"]
        heads, ends = _ref_list(config["input_layers"]), _ref_list(config["output_layers"])
        values: dict[tuple[str, int], tuple[str, ...]] = {}
        if given is not None and len(given) != len(heads):
            raise GraphError(
                "", f"model {config.get('name')!r} has {plural(len(heads), 'input')} and is called on {len(given)}"
            )
        by_name = {spec.name: spec for spec in specs}
        for i, (name, _, _) in enumerate(heads):
            if name not in by_name:
                raise CorruptFile("", f"the input layer {name!r} is not in the configuration")
            own = by_name[name]
            values[name, 0] = (given[i] if given is not None else self._input(own.path, _input_shape(own.cfg)),)
        first = _first_calls(specs, ends)
        left = [(spec, k) for spec in specs for k in range(len(spec.calls)) if (spec.name, k) not in values]
        if idle := [spec.path for spec in specs if not spec.calls and (spec.name, 0) not in values]:
            raise CorruptFile(f"layer {idle[0]!r}", "is called on nothing")
        while left:
            waiting = []
            for spec, k in left:
                refs = spec.calls[k]
                if all((name, node) in values for name, node, _ in refs):
                    inputs = [self._pick(values, ref) for ref in refs]
                    values[spec.name, k + first.get(spec.name, 0)] = self._call(spec, inputs, called("", k) + suffix)
                else:
                    waiting.append((spec, k))
            if len(waiting) == len(left):
                raise GraphError(waiting[0][0].path, "reads a value that nothing computes")
            left = waiting
        for ref in ends:
            if ref[:2] not in values:
                raise CorruptFile("", f"the output {ref[0]!r} is not in the configuration")
        return tuple(self._pick(values, ref) for ref in ends)

    def _pick(self, values: Mapping[tuple[str, int], tuple[str, ...]], ref: Ref) -> str:
        found = values[ref[:2]]
        if not 0 <= ref[2] < len(found):
            raise CorruptFile(f"layer {ref[0]!r}", f"has no output number {ref[2]}")
        return found[ref[2]]


def _first_calls(specs: Sequence[Spec], ends: Sequence[Ref]) -> dict[str, int]:
    """What number the first call of each model has: a model built on inputs of its own counts that as call 0."""
    last: dict[str, int] = {}
    for ref in (*ends, *(ref for spec in specs for call in spec.calls for ref in call)):
        last[ref[0]] = max(last.get(ref[0], 0), ref[1])
    return {spec.name: int(last.get(spec.name, 0) == len(spec.calls)) for spec in specs if spec.is_model and spec.calls}


def _ref_list(found: Any) -> list[Ref]:
    """input_layers or output_layers: a list of tensors, or one alone."""
    if isinstance(found, Mapping):
        found = list(found.values())
    if found and isinstance(found[0], str):
        found = [found]
    return [(str(name), int(node), int(tensor)) for name, node, tensor in found]


def _input_shape(cfg: Mapping[str, Any]) -> Shape:
    found = cfg.get("batch_input_shape") or cfg.get("batch_shape")
    if not isinstance(found, list):
        raise AmbiguousGraph("", f"input {cfg.get('name')!r} has no shape")
    return tuple(None if n is None else int(n) for n in found[1:])
