"""A copy of an ONNX model with its tensors replaced: whole or not at all, every other byte of its graph as it was.

Values beside the model come into the copy, so that it stands alone; where that is more than a file of its kind can hold, it
is refused.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import WriteError
from canon.formats.common_wire import MOST
from canon.formats.common_write import replacing
from canon.formats.onnx_file import TYPES, array_of, is_external, parse
from canon.formats.onnx_spot import Spot
from canon.ops.base import Array
from canon.precision import BFLOAT16, to_bfloat16
from canon.run import Run

ACTION = "canon_action/"
"""How the keys begin, among the model's metadata, of what led to the copy: arrays of numpy in base64."""
_HINT = "Write it in canon's own format."


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors. Raises WriteError where one has no place in it."""
    model = parse(source)
    held = _held(model)
    wanted: dict[str, list[tuple[str, Spot]]] = {}
    for name in run.network.tensors:
        first = run.layout.get(name)
        for spot in (first, *first.copies) if isinstance(first, Spot) else (None,):
            if spot is None or spot.path not in held:
                raise WriteError("", f"{name!r} is no tensor that {source} stores: it is computed there from others", _HINT)
            wanted.setdefault(spot.path, []).append((name, spot))
    for key, spots in wanted.items():
        _replace(held[key], run, spots, source)
    for tensor in held.values():
        if is_external(tensor):
            _fill(tensor, *array_of(tensor, source.parent))
    kept = [p for p in model.metadata_props if not p.key.startswith(ACTION)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    for space, parts in actions.items():
        for part, values in parts.items():
            model.metadata_props.add(key=f"{ACTION}{space}/{part}", value=_text(values))
    if model.ByteSize() > MOST:
        raise WriteError("", f"{model.ByteSize():,} bytes are more than an ONNX file can hold without others beside it", _HINT)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())


def _held(model: Any) -> dict[str, Any]:
    """The tensors of the graph itself by name: initialisers, and constants by what they write."""
    found = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for a in node.attribute:
                if a.name == "value" and a.HasField("t"):
                    found.setdefault(node.output[0], a.t)
    return found


def _replace(tensor: Any, run: Run, spots: list[tuple[str, Spot]], source: Path) -> None:
    """Put all parameters that are views of one stored tensor back into it."""
    before, precision = array_of(tensor, source.parent)
    after = np.array(before, np.float64 if before.dtype != np.float64 else None)
    for name, spot in spots:
        view = run.network.tensors[name]
        if view.size != spot.values(before).size:
            raise WriteError("", f"tensor {name!r} of shape {view.shape} does not go into {tensor.name!r}")
        spot.put(after, view)
    with np.errstate(over="ignore"):
        stored = after.astype(before.dtype)
    if not np.array_equal(np.isfinite(stored), np.isfinite(after)):
        kind = precision or str(before.dtype)
        raise WriteError("", f"tensor {tensor.name!r} holds values beyond the range of {kind}, the source's type", _HINT)
    for name, spot in spots:
        wanted = run.network.tensors[name].astype(np.float64)
        back = spot.values(after).astype(np.float64)
        if len(spots) > 1 and not np.allclose(back, wanted, rtol=1e-6, atol=1e-6 * float(np.abs(wanted).max(initial=0.0))):
            raise WriteError("", f"{tensor.name!r} is used in several ways, which no longer agree", _HINT)
    _fill(tensor, stored, precision)


def _fill(tensor: Any, values: Array, precision: str) -> None:
    """Set a tensor's values, as bytes in the file itself."""
    kind = TYPES[int(tensor.data_type)]
    raw = to_bfloat16(values).astype("<u2") if precision == BFLOAT16 else values.astype(np.dtype(kind).newbyteorder("<"))
    for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
        tensor.ClearField(name)
    tensor.ClearField("data_location")
    tensor.raw_data = np.ascontiguousarray(raw).tobytes()


def _text(values: Array) -> str:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(values), allow_pickle=False)
    return base64.b64encode(out.getvalue()).decode("ascii")
