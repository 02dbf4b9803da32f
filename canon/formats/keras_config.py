"""A Keras configuration as a graph: models inside models are wired in, each call of a layer adds its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from canon.errors import AmbiguousGraph, CorruptFile, GraphError
from canon.formats.keras_call import UNKNOWN_MASK, Call, Graph, called, plural
from canon.formats.keras_groups import Entry
from canon.formats.keras_masks import Masks
from canon.formats.keras_specs import MODELS, Ref, Spec, input_shape, parse
from canon.formats.keras_steps import over_steps
from canon.formats.keras_units import NOISE
from canon.ops.base import Shape

HANDED_ON = (*NOISE, "Activation", "ReLU", "LeakyReLU")
"""Classes that take and give one shape, whatever it is: what their readers ask for, they ask for."""
Calls = Mapping[str, Sequence[Spec]]


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
        self.graph.count()
        if model["class_name"] == "Sequential" or isinstance(model["config"], list):
            return self._sequential(model, specs, given, suffix)
        return self._functional(model, specs, given, suffix)

    def _call(self, spec: Spec, inputs: Sequence[str], suffix: str, readers: Calls) -> tuple[str, ...]:
        if not inputs:
            raise CorruptFile(f"layer {spec.path!r}", "is called on nothing")
        if spec.timed:
            steps = self.graph.aside({v: self.graph.shapes[v][1:] for v in inputs})
            inner = replace(spec, timed=False)
            outputs = _Wiring(steps, self.weights)._call(inner, inputs, suffix, {})
            over_steps(steps, self.graph, inputs, spec.path)
            if mask := self.graph.masks.get(inputs[0]):
                self.graph.masks.update(dict.fromkeys(outputs, mask))
            return outputs
        if spec.is_model:
            return self.model(spec.cfg, parse(spec.cfg, f"{spec.path}/"), inputs, suffix)
        call = Call(
            self.graph,
            spec.path,
            spec.path + suffix,
            spec.cls,
            spec.cfg,
            tuple(inputs),
            self.weights[spec.path],
            lambda: self._demand(spec, readers, inputs),
        )
        made = spec.layer.build(call)
        if spec.layer.keeps_mask and call.name not in self.graph.masks:
            met = {self.graph.masks[v] for v in inputs if v in self.graph.masks}
            if met:
                self.graph.masks[call.name] = next(iter(met)) if len(met) == 1 else UNKNOWN_MASK
        return made or (call.name,)

    def _demand(self, spec: Spec, readers: Calls, inputs: Sequence[str]) -> Shape | None:
        """The shape that a layer's readers ask for."""
        rank = len(self.graph.shapes[inputs[0]])
        for reader in readers.get(spec.name, ()):
            said = [shape for call in reader.calls for ref, shape in call.shapes if ref[0] == spec.name and ref[2] == 0]
            if said:
                return said[0]
            if any(len(call.refs) != 1 for call in reader.calls):
                continue
            if reader.built is not None:
                return reader.built
            if reader.cls in MODELS:
                heads = [s for s in parse(reader.cfg, "") if s.cls == "InputLayer"]
                asked = input_shape(heads[0].cfg) if len(heads) == 1 else None
            elif reader.cls in HANDED_ON:
                asked = self._demand(reader, readers, inputs)
            else:
                asked = _by_kernel(self.weights.get(reader.path, {}), reader, rank)
            if asked is not None:
                return asked
        return None

    def _input(self, name: str, shape: Shape | None) -> str:
        if shape is None:
            raise AmbiguousGraph("", f"input {name!r} has no shape")
        self.graph.inputs[name] = self.graph.shapes[name] = shape
        return name

    def _sequential(
        self, model: Mapping[str, Any], specs: Sequence[Spec], given: Sequence[str] | None, suffix: str
    ) -> tuple[str, ...]:
        readers = {a.name: (b,) for a, b in pairwise(specs)}
        values: Sequence[str] = given or ()
        for spec in specs:
            if spec.cls == "InputLayer":
                values = values or (self._input(spec.path, input_shape(spec.cfg)),)
                continue
            if not values:
                shape = self._first_shape(model, spec)
                values = (self._input("input", shape),) if shape is not None else ()
            values = self._call(spec, values, suffix, readers) if values else self._lead(spec, suffix)
        return tuple(values)

    def _lead(self, spec: Spec, suffix: str) -> tuple[str, ...]:
        """A model that begins another brings its inputs along."""
        return self.model(spec.cfg, parse(spec.cfg, f"{spec.path}/"), None, suffix)

    def _first_shape(self, model: Mapping[str, Any], spec: Spec) -> Shape | None:
        """Input shape of a Sequential without an input layer; None where its first layer brings one."""
        built = model["config"].get("build_input_shape") if isinstance(model["config"], Mapping) else None
        for cfg in (spec.cfg, {"batch_input_shape": built}):
            if cfg.get("batch_input_shape") or cfg.get("batch_shape"):
                return input_shape(cfg)
        if spec.built is not None:
            return spec.built
        if spec.is_model:
            return None
        kernel = self.weights.get(spec.path, {}).get("kernel")
        if isinstance(spec.cfg.get("input_dim"), int) and spec.cls == "Dense":
            return (spec.cfg["input_dim"],)
        if kernel is not None and spec.cls == "Dense":
            return (int(kernel.dataset.shape[0]),)
        if spec.cls == "Embedding":
            return (spec.cfg.get("input_length"),)
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
            values[name, 0] = (given[i] if given is not None else self._input(own.path, input_shape(own.cfg)),)
        first, readers, masks = _first_calls(specs, ends), _readers(specs), Masks(self.graph)
        left = [(spec, k) for spec in specs for k in range(len(spec.calls)) if (spec.name, k) not in values]
        if idle := [spec.path for spec in specs if not spec.calls and (spec.name, 0) not in values]:
            raise CorruptFile(f"layer {idle[0]!r}", "is called on nothing")
        while left:
            waiting = []
            for spec, k in left:
                call = spec.calls[k]
                wanted = call.refs if call.mask is None else (*call.refs, call.mask)
                if all((name, node) in values for name, node, _ in wanted):
                    inputs = [self._pick(values, ref) for ref in call.refs]
                    if call.mask is not None:
                        masks.give(inputs[0], self._pick(values, call.mask), spec.path)
                    made = masks.part(spec, call, inputs, called("", k) + suffix)
                    made = made or self._call(spec, inputs, called("", k) + suffix, readers)
                    values[spec.name, k + first.get(spec.name, 0)] = made
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


def _by_kernel(weights: Mapping[str, Entry], reader: Spec, rank: int) -> Shape | None:
    """The shape that a layer's own weights ask for, where its input has this rank."""
    found = {role: entry.dataset.shape for role, entry in weights.items()}
    if reader.timed or rank < 1:
        return None
    if "kernel" in found and (reader.cls in ("Dense", "LSTM", "GRU", "SimpleRNN") and len(found["kernel"]) == 2):
        return (*(None,) * (rank - 1), int(found["kernel"][0]))
    if "kernel" in found and reader.cls in ("Conv1D", "Conv2D", "Conv3D") and len(found["kernel"]) == rank + 1:
        inner = int(found["kernel"][-2]) * int(reader.cfg.get("groups") or 1)
        free = (None,) * (rank - 1)
        return (inner, *free) if reader.cfg.get("data_format") == "channels_first" else (*free, inner)
    return None


def _readers(specs: Sequence[Spec]) -> dict[str, list[Spec]]:
    """The layers that read each layer."""
    found: dict[str, list[Spec]] = {}
    for spec in specs:
        for call in spec.calls:
            for name, _, _ in call.refs:
                found.setdefault(name, []).append(spec)
    return found


def _first_calls(specs: Sequence[Spec], ends: Sequence[Ref]) -> dict[str, int]:
    """What number the first call of each model has: a model built on inputs of its own counts that as call 0."""
    last: dict[str, int] = {}
    for ref in (*ends, *(ref for spec in specs for call in spec.calls for ref in call.refs)):
        last[ref[0]] = max(last.get(ref[0], 0), ref[1])
    return {spec.name: int(last.get(spec.name, 0) == len(spec.calls)) for spec in specs if spec.is_model and spec.calls}


def _ref_list(found: Any) -> list[Ref]:
    """input_layers or output_layers: a list of tensors, or one alone."""
    if isinstance(found, Mapping):
        found = [ref for part in found.values() for ref in _ref_list(part)]
    if found and isinstance(found[0], str):
        found = [found]
    return [(str(name), int(node), int(tensor)) for name, node, tensor in found]
