"""ONNX's recurrent nodes: LSTM, GRU, RNN, in one direction, the other, or both.

ONNX stacks the gates of an LSTM as input, output, forget, cell; canon as input, forget, cell, output. The two biases of a
gate are added, but where a GRU resets after its product. A layer in both directions is two layers, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from canon.formats.onnx_build import Builder, Convert
from canon.formats.onnx_graph import Node
from canon.formats.onnx_known import Known, Step, viewed
from canon.formats.onnx_size import Dim, times
from canon.formats.onnx_spot import Spot
from canon.formats.onnx_units import round_off
from canon.formats.onnx_value import Batch, Unfit, Value

_KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN": "simple_rnn"}
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
"""Where canon's gates are among ONNX's."""
_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_FUNCTIONS: dict[str, dict[str, Any]] = {
    "Relu": {"kind": "relu"}, "Tanh": {"kind": "tanh"}, "Sigmoid": {"kind": "sigmoid"}, "Softsign": {"kind": "softsign"},
    "Softplus": {"kind": "softplus"}, "HardSigmoid": {"kind": "hard_sigmoid", "slope": 0.2},
    "LeakyRelu": {"kind": "leaky_relu", "alpha": 0.01}, "Elu": {"kind": "elu", "alpha": 1.0},
}  # fmt: skip


def _functions(node: Node, directions: int) -> list[list[dict[str, Any]]]:
    """The functions of each direction: of the gates, of the candidate and, for an LSTM, of the output."""
    names = list(node.attrs.get("activations") or _DEFAULT[node.op] * directions)
    each = len(_DEFAULT[node.op])
    alphas, betas = (list(node.attrs.get(f"activation_{k}") or []) for k in ("alpha", "beta"))
    if len(names) != each * directions:
        raise Unfit(f"{len(names)} functions for {directions} directions")
    out: list[dict[str, Any]] = []
    for name in names:
        if name not in _FUNCTIONS:
            raise Unfit(f"its function {name}")
        found = dict(_FUNCTIONS[name])
        if name in ("HardSigmoid", "LeakyRelu", "Elu") and alphas:
            found["slope" if name == "HardSigmoid" else "alpha"] = round_off(float(alphas.pop(0)))
        if name == "HardSigmoid" and betas and betas.pop(0) != 0.5:
            raise Unfit("a hard sigmoid about another point than one half")
        out.append(found)
    return [out[i * each : (i + 1) * each] for i in range(directions)]


def _stacked(n: int, gates: Sequence[int], direction: int, row: int, columns: int | None) -> tuple[Step, ...]:
    """Steps from (directions, gates n, columns) to one direction with canon's order of gates. row: where they begin."""
    pick: list[Step] = [("cut", 0, direction, direction + 1), ("cut", 1, row, row + len(gates) * n)]
    width = () if columns is None else (columns,)
    if tuple(gates) == tuple(range(len(gates))):
        return (*pick, ("reshape", (len(gates) * n, *width)))
    return (*pick, ("reshape", (len(gates), n, *width)), ("pick", 0, tuple(gates)), ("reshape", (len(gates) * n, *width)))


def _params(b: Builder, node: Node, direction: int, units: int, after: bool) -> dict[str, str]:
    w, r, gates = b.need(node, 1), b.need(node, 2), _GATES[node.op]
    g = len(gates) * units
    if w.array.ndim != 3 or r.array.ndim != 3 or w.array.shape[1] != g or r.array.shape[1:] != (g, units):
        raise Unfit(f"kernels of shape {w.array.shape} and {r.array.shape} for {units} units")
    made = {
        "kernel": _part(b, node, w, "kernel", _stacked(units, gates, direction, 0, w.array.shape[2])),
        "recurrent_kernel": _part(b, node, r, "recurrent_kernel", _stacked(units, gates, direction, 0, units)),
    }
    if b.given(node, 3):
        bias = b.need(node, 3)
        if bias.array.ndim != 2 or bias.array.shape[1] != 2 * g:
            raise Unfit(f"a bias of shape {bias.array.shape} for {units} units")
        if after:
            both: tuple[Step, ...] = (("cut", 0, direction, direction + 1), ("reshape", (2, g)))
            made["bias"] = _part(b, node, bias, "bias", both)
        else:
            made["bias"] = _part(
                b, node, bias, "bias", _stacked(units, gates, direction, 0, None), _stacked(units, gates, direction, g, None)
            )
    return made


def _part(b: Builder, node: Node, k: Known, role: str, steps: tuple[Step, ...], plus: tuple[Step, ...] | None = None) -> str:
    array = viewed(k.array, steps)
    if plus is not None:
        array = array + viewed(k.array, plus)
    if k.path and not k.steps:
        return b.draft.tensor(replace(k, array=array), role, like=Spot(k.path, shape=(-1,), steps=steps, plus=plus))
    return b.draft.tensor(Known(array), f"{node.label}/{role}")


def _zero(b: Builder, node: Node, i: int) -> bool:
    """Whether an input is left out, or known to be zero."""
    if not b.given(node, i):
        return True
    found = b.known(node, i)
    return found is not None and not found.open and found.array.dtype.kind in "fiu" and not found.array.any()


def _recurrent(b: Builder, node: Node, kind: str) -> None:
    x = b.value(node)
    layout = int(node.attrs.get("layout", 0))
    if layout:
        x = b.turned(node, x, (1, 0, 2), ":turned")
    x.needs_batch(1)
    if "clip" in node.attrs or int(node.attrs.get("input_forget", 0)):
        raise Unfit("it clips what goes into its functions, or couples its gates")
    if b.given(node, 4) and not _whole(b, node, x):
        raise Unfit("its sequences have lengths of their own")
    if not _zero(b, node, 5) or (node.op == "LSTM" and not (_zero(b, node, 6) and _zero(b, node, 7))):
        raise Unfit("it begins with a state, or looks through peepholes")
    way = str(node.attrs.get("direction", "forward"))
    ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(way)
    if ways is None:
        raise Unfit(f"its direction {way}")
    units = int(node.attrs.get("hidden_size") or b.need(node, 2).array.shape[-1])
    functions = _functions(node, len(ways))
    after = node.op == "GRU" and bool(node.attrs.get("linear_before_reset", 0))
    whole = bool(node.outputs) and bool(node.outputs[0]) and b.is_read(node.outputs[0])
    last = len(node.outputs) > 1 and bool(node.outputs[1]) and b.is_read(node.outputs[1])
    if len(node.outputs) > 2 and node.outputs[2] and b.is_read(node.outputs[2]):
        raise Unfit("the state of its cells is read")
    sequences, states = [], []
    for i, backwards in enumerate(ways):
        attrs = _attributes(node, functions[i], after, backwards, whole)
        params = _params(b, node, i, units, after)
        suffix = f":{('forward', 'backward')[backwards]}" if len(ways) > 1 else ":steps"
        dims: tuple[Dim, ...] = (x.dims[0], units) if whole else (units,)
        y = b.op(node, kind, [x], params, batch=Batch(1) if whole else Batch(0), dims=dims, suffix=suffix, **attrs)
        if whole and last:  # what comes last is first in the order in which a backward layer puts out
            state = b.op(node, "take", [y], batch=Batch(0), dims=(units,), suffix=f"{suffix}:last", axis=0, index=-1)
            states.append(state)
        elif last:
            states.append(y)
        if whole:
            sequences.append(b.op(node, "reverse", [y], dims=dims, suffix=f"{suffix}:turned", axis=0) if backwards else y)
    if whole:
        b.put(node, _side_by_side(b, node, sequences, units, layout, whole=True))
    if last:
        b.put(node, _side_by_side(b, node, states, units, layout, whole=False), 1)


def _attributes(node: Node, functions: Sequence[dict[str, Any]], after: bool, backwards: bool, whole: bool) -> dict[str, Any]:
    if node.op == "LSTM" and functions[1] != functions[2]:
        raise Unfit("its cell and its output have different functions")
    said = [f["kind"] if len(f) == 1 else f for f in functions]
    attrs: dict[str, Any] = {"activation": said[0] if node.op == "RNN" else said[1]}
    if node.op != "RNN":
        attrs["recurrent_activation"] = said[0]
    attrs |= {key: True for key, on in (("reset_after", after), ("go_backwards", backwards), ("return_sequences", whole)) if on}
    return attrs


def _whole(b: Builder, node: Node, x: Value) -> bool:
    """Whether lengths of sequences are known, and those of the value."""
    found, n = b.known(node, 4), x.shape[0]
    return found is not None and not found.open and isinstance(n, int) and bool((found.array == n).all())


def _side_by_side(b: Builder, node: Node, parts: Sequence[Value], units: int, layout: int, whole: bool) -> Value:
    """What all directions put out, in ONNX's shape: (steps, directions, batch, units), or without steps."""
    n, at = len(parts), 1 if whole else 0
    y = parts[0]
    if n > 1:
        dims = (*y.dims[:-1], times(n, units))
        y = b.op(node, "concat", parts, dims=dims, suffix=":both" if whole else ":both last", axis=len(y.dims) - 1)
    steps = y.dims[:-1]
    wide = (*steps, n, b.batch_size, units)
    made = b.relay(node, y, wide, Batch(at + 1), ":out" if whole else ":out last")
    if layout:
        order = (2, 0, 1, 3) if whole else (1, 0, 2)
        made = b.turned(node, made, order, ":first")
    return made


TABLE: dict[str, Convert] = {op: partial(_recurrent, kind=kind) for op, kind in _KINDS.items()}
