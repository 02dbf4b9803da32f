"""A network as Keras layers: the inverse of reading a configuration. Ops that Keras has no layer for are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canon.errors import UnsupportedOp
from canon.formats.keras_express import ACTIVATIONS, EXPRESS, Expressed, refuse
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array

Ref = tuple[str, int]
"""A tensor of a Keras model: layer, and which of its calls."""


@dataclass
class Built:
    """A layer to write. arrays: what it stores, in Keras's order of roles; calls: what each of its calls reads;
    shape: of what comes out, batch excluded.
    """

    name: str
    cls: str
    cfg: dict[str, Any]
    arrays: dict[str, Array]
    calls: list[tuple[Ref, ...]]
    shape: tuple[int | None, ...]


@dataclass
class Model:
    """Layers in order, the refs of inputs and outputs, what cannot be kept, and the slope of hard sigmoids (0: none)."""

    layers: list[Built] = field(default_factory=list)
    inputs: list[Ref] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slope: float = 0.0


def build(network: Network) -> Model:
    """The network as layers. Raises UnsupportedOp naming the op that Keras cannot express."""
    return _Builder(network).run()


class _Builder:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.model = Model()
        self.refs: dict[str, Ref] = {}
        self.names: set[str] = set()
        self.shared: dict[tuple[Any, ...], Built] = {}
        self.done: set[str] = set()
        self.alone = {v for v, readers in network.readers.items() if len(readers) == 1 and v not in network.outputs}

    def run(self) -> Model:
        for value, shape in self.network.inputs.items():
            name = self._name(value)
            self.model.layers.append(
                Built(name, "InputLayer", {"name": name, "batch_shape": [None, *shape], "dtype": "float32"}, {}, [], shape)
            )
            self.refs[value] = (name, 0)
            self.model.inputs.append((name, 0))
        for op in self.network.ops:
            if op.name not in self.done:
                self._add(op)
        self.model.outputs += [self.refs[v] for v in self.network.outputs]
        used = {t for op in self.network.ops for t in op.params.values()}
        if left := [t for t in self.network.tensors if t not in used]:
            self.model.notes.append(f"tensors of no layer are left out: {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}")
        return self.model

    def _add(self, op: Op) -> None:
        if op.kind == "step_mask":  # Keras makes it from the layer beside it
            self.refs[op.output] = self.refs[op.inputs[0]]
            return
        whole = self._both_ways(op) or self._separable(op)
        if whole is None:
            if op.kind not in EXPRESS:
                raise refuse(op)
            whole = [op], EXPRESS[op.kind](self.network, op)
        ops, said = whole
        last = ops[-1]
        following = self._activation(last)
        if following is not None and said.takes_activation:
            said = Expressed(said.cls, {**said.cfg, "activation": ACTIVATIONS[following.kind]}, said.arrays, notes=said.notes)
            self._slope(following)
            last = following
        self._slope(op)
        self.done |= {o.name for o in (*ops, last)}
        for note in said.notes:
            if note not in self.model.notes:
                self.model.notes.append(note)
        inputs = [v for v in ops[0].inputs if v not in self.network.writer or self.network.writer[v].kind != "step_mask"]
        reads = tuple(self.refs[v] for v in inputs)
        if said.before is not None:
            reads = (self._place(f"{op.name}_pad", said.before, reads, inputs[0], ()),)
        tensors = tuple(t for o in ops for t in o.params.values())
        self.refs[last.output] = self._place(last.output, said, reads, last.output, tensors)

    def _place(self, value: str, said: Expressed, reads: tuple[Ref, ...], shaped: str, tensors: tuple[str, ...]) -> Ref:
        """A call of a layer: a new one, or a further call of one with the same tensors."""
        key = (said.cls, repr(sorted(said.cfg.items(), key=lambda kv: kv[0])), tensors)
        if tensors and key in self.shared:
            self.shared[key].calls.append(reads)
            return self.shared[key].name, len(self.shared[key].calls) - 1
        taken = {t for _, _, other in self.shared for t in other}
        if tied := [t for t in tensors if t in taken]:
            raise UnsupportedOp(value, f"Keras cannot tie {tied[0]!r} to layers that differ", "Write it in canon's own format.")
        name = self._name(value)
        kind = next((a.dtype for a in said.arrays.values()), self.network.dtype)
        cfg = {"name": name, "trainable": True, "dtype": np.dtype(kind).name, **said.cfg}
        built = Built(name, said.cls, cfg, dict(said.arrays), [reads], self.network.shapes[shaped])
        self.model.layers.append(built)
        if tensors:
            self.shared[key] = built
        return name, 0

    def _name(self, value: str) -> str:
        """A name that Keras allows, and no other layer has."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", value).lstrip("_.-") or "layer"
        name, k = plain, 1
        while name.lower() in self.names:
            name, k = f"{plain}_{k}", k + 1
        self.names.add(name.lower())
        return name

    def _slope(self, op: Op) -> None:
        slopes = [float(op.attrs["slope"])] if op.kind == "hard_sigmoid" else []
        for key in ("activation", "recurrent_activation"):
            said = op.attrs.get(key)
            if isinstance(said, Mapping) and said.get("kind") == "hard_sigmoid":
                slopes.append(float(said["slope"]))
        for slope in slopes:
            if self.model.slope not in (0.0, slope):
                raise UnsupportedOp(op.name, "hard sigmoids of two slopes, and no Keras has both")
            self.model.slope = slope

    def _activation(self, op: Op) -> Op | None:
        """The nonlinearity that belongs to a layer, as the reader names them."""
        if op.output not in self.alone:
            return None
        (reader,) = self.network.readers[op.output]
        fits = reader.kind in ACTIVATIONS and reader.inputs == (op.output,)
        return reader if fits and op.output == f"{reader.output}/pre" and _plain(reader) else None

    def _separable(self, op: Op) -> tuple[list[Op], Expressed] | None:
        """A depthwise convolution and the one by one right behind it, of one name."""
        if op.kind != "depthwise_conv" or op.output not in self.alone or "bias" in op.params:
            return None
        (mix,) = self.network.readers[op.output]
        if mix.kind != "conv" or not op.name.startswith(f"{mix.name.split('@')[0]}/depthwise"):
            return None
        depth, point = EXPRESS["depthwise_conv"](self.network, op), EXPRESS["conv"](self.network, mix)
        ones = (point.cfg["kernel_size"], point.cfg["strides"], point.cfg["padding"])
        rank = len(point.cfg["strides"])
        if ones != ([1] * rank, [1] * rank, "valid") or rank > 2 or depth.before is not None:
            return None
        cfg = {**depth.cfg, "filters": point.cfg["filters"], "use_bias": point.cfg["use_bias"]}
        arrays = {"depthwise_kernel": depth.arrays["depthwise_kernel"], "pointwise_kernel": point.arrays["kernel"]}
        if "bias" in point.arrays:
            arrays["bias"] = point.arrays["bias"]
        return [op, mix], Expressed(f"SeparableConv{rank}D", cfg, arrays, takes_activation=True)

    def _both_ways(self, op: Op) -> tuple[list[Op], Expressed] | None:
        """Two recurrent ops over one sequence, one of them backwards, that meet again: a Bidirectional."""
        if op.kind not in ("lstm", "gru", "simple_rnn") or op.output not in self.alone:
            return None
        (merge,) = self.network.readers[op.output]
        if merge.kind not in MERGES or len(merge.inputs) != 2 or merge.inputs[0] != op.output:
            return None
        turned: Op | None = None
        back = self.network.writer.get(merge.inputs[1])
        if back is not None and back.kind == "reverse" and op.attrs.get("return_sequences"):
            turned, back = back, self.network.writer.get(back.inputs[0])
        if back is None or back.kind != op.kind or back.inputs != op.inputs or back.output not in self.alone:
            return None
        if bool(op.attrs.get("return_sequences")) != (turned is not None) or op.attrs.get("go_backwards"):
            return None
        ahead, behind = EXPRESS[op.kind](self.network, op), EXPRESS[back.kind](self.network, back)
        if behind.cfg != {**ahead.cfg, "go_backwards": True}:
            return None
        inner = {"name": "forward", "trainable": True, "dtype": ahead.arrays["kernel"].dtype.name, **ahead.cfg}
        cfg = {"merge_mode": MERGES[merge.kind], "layer": {"class_name": ahead.cls, "config": inner}}
        arrays = {f"{way}/{r}": a for way, said in (("forward", ahead), ("backward", behind)) for r, a in said.arrays.items()}
        ops = [op, back, *([turned] if turned is not None else []), merge]
        return ops, Expressed("Bidirectional", cfg, arrays)


MERGES = {"concat": "concat", "add": "sum", "multiply": "mul", "average": "ave"}


def _plain(op: Op) -> bool:
    """Whether the name of a nonlinearity says all about it, in Keras."""
    if op.kind in ("softmax", "log_softmax"):
        return bool(op.attrs.get("axis", -1) == -1)
    return not op.attrs.get("approximate") and op.attrs.get("alpha", 1.0) == 1.0
