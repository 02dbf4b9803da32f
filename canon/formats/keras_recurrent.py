"""Keras layers over steps: LSTM, GRU, SimpleRNN and CuDNN's, Bidirectional, Embedding, Masking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from canon.errors import CorruptFile
from canon.formats.keras_call import UNKNOWN_MASK, Call, activation
from canon.formats.keras_groups import Entry
from canon.formats.keras_layer import Layer, Options, size, with_bias
from canon.formats.keras_one import modern
from canon.formats.keras_opaque import opaque
from canon.ops import Op

GATES = {"LSTM": "ifco", "GRU": "zrh", "SimpleRNN": "x", "CuDNNLSTM": "ifco", "CuDNNGRU": "zrh"}
"""The gates of each cell, in the order that they follow each other in a kernel."""
MERGES = {"concat": "concat", "sum": "add", "mul": "multiply", "ave": "average"}


def _recurrent(c: Call) -> tuple[str, ...] | None:
    """A recurrent layer; one that starts from given states or hands its own on is opaque."""
    step = _activations(c)
    if len(c.inputs) > 1 or c.cfg.get("return_state") or c.cfg.get("time_major") or step is None:
        return _states(c)
    _run(c, c.name, "", c.cls, c.cfg, step, go_backwards=bool(c.cfg.get("go_backwards")))
    if c.cfg.get("return_sequences") and c.inputs[0] in c.graph.masks:
        c.graph.masks[c.name] = c.graph.masks[c.inputs[0]]
    return None


def _activations(c: Call) -> dict[str, Any] | None:
    """The nonlinearities of a cell as its op writes them; None where canon does not know one."""
    found = {}
    gates = "sigmoid" if c.cls.startswith("CuDNN") else c.cfg.get("recurrent_activation", "hard_sigmoid")
    cell = "tanh" if c.cls.startswith("CuDNN") else c.cfg.get("activation", "tanh")
    for key, name in (("activation", cell), ("recurrent_activation", gates)):
        kind, attrs = activation(c, name) or ("linear", {})
        if kind in ("opaque", "softmax", "log_softmax"):
            return None
        if c.cls != "SimpleRNN" or key == "activation":
            found[key] = {"kind": kind, **attrs} if attrs else kind
    return found


def _run(
    c: Call, name: str, prefix: str, cls: str, cfg: Mapping[str, Any], step: Mapping[str, Any], *, go_backwards: bool
) -> None:
    """Add the op of one direction; prefix: of the roles of its weights."""
    mask = c.graph.masks.get(c.inputs[0])
    if mask == UNKNOWN_MASK:
        raise c.refuse("on values whose masks differ is not supported")
    more: dict[str, Any] = {}
    if cls.endswith("GRU"):
        more["reset_after"] = cls == "CuDNNGRU" or bool(cfg.get("reset_after", False))
    if cfg.get("zero_output_for_mask"):
        more["zero_output_for_mask"] = True
    kind = {"L": "lstm", "G": "gru", "S": "simple_rnn"}[cls.removeprefix("CuDNN")[0]]
    inputs = (c.inputs[0],) if mask is None else (c.inputs[0], mask)
    attrs = {**step, **more, "return_sequences": bool(cfg.get("return_sequences")), "go_backwards": go_backwards}
    params = _cell(c, prefix, cls, size(replace(c, cfg=cfg), "units"), double_bias=bool(more.get("reset_after")))
    c.graph.add(Op(kind, name, inputs, name, params, attrs))


def _cell(c: Call, prefix: str, cls: str, units: int, *, double_bias: bool) -> dict[str, str]:
    """A cell's kernel, recurrent kernel and bias, each with its gates one after the other along axis 0."""
    gates, inner = GATES[cls], c.graph.shapes[c.inputs[0]][-1]
    g = len(gates)
    kernel, recurrent, bias = f"{prefix}kernel", f"{prefix}recurrent_kernel", f"{prefix}bias"
    if f"{prefix}W_{gates[0]}" in c.weights:  # Keras 1: an array for each gate
        found = {}
        for role, letter, wanted in (("kernel", "W", (inner, units)), ("recurrent_kernel", "U", (units, units))):
            found[role] = c.stacked(f"{prefix}{role}", [f"{prefix}{letter}_{gate}" for gate in gates], wanted, (1, 0))
        found["bias"] = c.stacked(bias, [f"{prefix}b_{gate}" for gate in gates], (units,), (0,))
        return found
    if cls.startswith("CuDNN"):  # its gates lie row by row where Keras's lie column by column
        if inner is None:
            inner = int(c.weights[kernel].dataset.shape[0])
        found = {
            "kernel": c.tensor(kernel, (inner, g * units), ((1, 0, 2), (inner, g, units), (), (g * units, inner))),
            "recurrent_kernel": c.tensor(recurrent, (units, g * units), ((1, 0, 2), (units, g, units), (), (g * units, units))),
        }
        whole: tuple[Any, ...] = (None, (2, g * units)) if cls == "CuDNNGRU" else (None, None, (), None, True)
        found["bias"] = c.tensor(bias, (2 * g * units,), whole)
        return found
    found = {
        "kernel": c.tensor(kernel, (inner, g * units), ((1, 0),)),
        "recurrent_kernel": c.tensor(recurrent, (units, g * units), ((1, 0),)),
    }
    if bias in c.weights:
        found["bias"] = c.tensor(bias, (2, g * units) if double_bias else (g * units,))
    return found


def _states(c: Call) -> tuple[str, ...]:
    """Opaque, with as many outputs as the options ask for."""
    first = c.graph.shapes[c.inputs[0]]
    units = size(c, "units")
    sequence = (first[0], units) if c.cfg.get("return_sequences") else (units,)
    opaque(c, sequence)
    if not c.cfg.get("return_state"):
        return (c.name,)
    names = [c.name]
    for state in ("state_h", "state_c")[: 2 if c.cls.endswith("LSTM") else 1]:
        names.append(f"{c.name}/{state}")
        opaque(replace(c, name=names[-1]), (units,))
    return tuple(names)


# both directions


def _inner(cfg: Options) -> tuple[str, dict[str, Any]]:
    layer = cfg["layer"]
    return modern(str(layer["config"].get("name")), str(layer["class_name"]), layer["config"])


def _bidirectional(c: Call) -> tuple[str, ...] | None:
    cls, cfg = _inner(c.cfg)
    merge = c.cfg.get("merge_mode", "concat")
    step = _activations(replace(c, cls=cls, cfg=cfg)) if cls in GATES else None
    if step is None or len(c.inputs) > 1 or cfg.get("return_state"):
        raise c.refuse(f"around {cls} with these options is not supported")
    back = c.cfg.get("backward_layer")
    back_cls, back_cfg = _inner({"layer": back}) if back else (cls, cfg)
    back_step = _activations(replace(c, cls=back_cls, cfg=back_cfg)) if back_cls in GATES else None
    if back_step is None or (merge is not None and merge not in MERGES):
        raise c.refuse(f"with merge_mode={merge!r} is not supported")
    suffix = c.name[len(c.layer) :]
    forward, backward = f"{c.layer}/forward{suffix}", f"{c.layer}/backward{suffix}"
    ahead = bool(cfg.get("go_backwards"))
    behind = bool(back_cfg.get("go_backwards")) if back else not ahead
    _run(c, forward, "forward/", cls, cfg, step, go_backwards=ahead)
    _run(c, backward, "backward/", back_cls, back_cfg, back_step, go_backwards=behind)
    if cfg.get("return_sequences"):
        turned = f"{backward}/reverse"
        c.graph.add(Op("reverse", turned, (backward,), turned, {}, {"axis": 0}))
        backward = turned
    if merge is None:
        return (forward, backward)
    axis = {"axis": -1} if merge == "concat" else {}
    c.graph.add(Op(MERGES[merge], c.name, (forward, backward), c.name, {}, axis))
    if cfg.get("return_sequences") and c.inputs[0] in c.graph.masks:
        c.graph.masks[c.name] = c.graph.masks[c.inputs[0]]
    return None


def _directions(cfg: Options) -> tuple[str, ...]:
    inner = _cell_roles(_inner(cfg)[1])
    return tuple(f"{way}/{role}" for way in ("forward", "backward") for role in inner)


def _named_twice(wanted: Sequence[str], entries: Sequence[Entry]) -> Sequence[str] | None:
    """Forward before backward, each direction under its own roles."""
    half, odd = divmod(len(entries), 2)
    roles = [e.role for e in entries]
    if odd or not half or len(set(roles[:half])) != half or set(roles[:half]) != set(roles[half:]):
        return None
    return [f"forward/{r}" for r in roles[:half]] + [f"backward/{r}" for r in roles[half:]]


def _named_gates(wanted: Sequence[str], entries: Sequence[Entry]) -> Sequence[str] | None:
    """As Keras 2 names them, or Keras 1 with an array for each gate."""
    roles = [e.role for e in entries]
    if len(set(roles)) == len(roles) and all(r[:2] in ("W_", "U_", "b_") for r in roles) and len(roles) in (9, 12):
        return roles
    if len(set(roles)) == len(roles) and set(roles) == set(wanted):
        return roles
    return wanted if len(entries) == len(wanted) else None


_cell_roles = with_bias("kernel", "recurrent_kernel")


# what comes before


def _embedding(c: Call) -> None:
    table = c.tensor("embeddings", (c.cfg.get("input_dim"), size(c, "output_dim")))
    c.graph.add(Op("embedding", c.name, c.inputs, c.name, {"table": table}))
    if c.cfg.get("mask_zero"):
        _mask(c, 0, tokens=True)


def _masking(c: Call) -> None:
    value = c.number("mask_value", default=0.0)
    c.op("masking", mask_value=value)
    _mask(c, value, tokens=False)


def _mask(c: Call, value: float, *, tokens: bool) -> None:
    if len(c.shape) != (1 if tokens else 2):
        raise CorruptFile(f"layer {c.layer!r}", f"masks steps of a value of shape {c.shape}")
    name = f"{c.layer}/mask{c.name[len(c.layer) :]}"
    c.graph.add(Op("step_mask", name, c.inputs, name, {}, {"mask_value": value, "tokens": tokens}))
    c.graph.masks[c.name] = name


LAYERS: dict[str, Layer] = {
    **{cls: Layer(_recurrent, _cell_roles, _named_gates, lambda cfg: (("cell", _cell_roles(cfg)),))
       for cls in ("LSTM", "GRU", "SimpleRNN")},
    **dict.fromkeys(("CuDNNLSTM", "CuDNNGRU"), Layer(_recurrent, lambda cfg: ("kernel", "recurrent_kernel", "bias"))),
    "Bidirectional": Layer(_bidirectional, _directions, _named_twice, lambda cfg: tuple(
        (f"{way}_layer/cell", tuple(r for r in _directions(cfg) if r.startswith(way))) for way in ("forward", "backward"))),
    "Embedding": Layer(_embedding, lambda cfg: ("embeddings",)),
    "Masking": Layer(_masking),
}  # fmt: skip
