"""ONNX's outer shape, from its bytes alone: whether a file is one, and whether it is small enough to be taken apart.

A protocol buffer is a sequence of fields: a number and a type, then a value or a length and as many bytes. Taking one apart
costs many times the bytes of its graph (not of its weights), so the graph is measured first, by walking over the fields.
Source: the protocol buffers' encoding; onnx.proto for the numbers of the fields.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from canon.errors import CorruptFile

MOST = (1 << 31) - 1
"""Bytes that a protocol buffer may have."""
MOST_GRAPH, MOST_PARTS, MOST_FIELDS, DEEPEST = 1 << 25, 500_000, 2_500_000, 100
"""Bytes of a graph without its weights, messages and fields in it, and messages inside messages: more than any network has."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: _BYTES, 8: _BYTES, 14: _BYTES, 20: _BYTES,
          25: _BYTES, 26: _BYTES}  # fmt: skip
"""Fields of a model and how they are kept: version, producer, graph (7), opset (8) and others."""
_GRAPH, _OPSET, _VERSION = 7, 8, 1
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "", 14: "", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {4: "", 5: "", 6: "", 7: "node", 9: "", 11: "attribute", 12: "value", 14: ""},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 14: "", 15: "sparse"},
    "value": {2: "type", 4: ""},
    "type": {1: "array", 4: "list", 5: "list", 8: "array", 9: "list"},
    "array": {2: "shape"},
    "list": {1: "type", 2: "type"},
    "shape": {1: ""},
    "node": {1: "", 2: "", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 9: "", 10: "tensor", 11: "graph", 14: "", 15: "", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {6: "", 13: ""},
}
"""Messages by the field that holds them, and what is in them: "" for those that are counted and not entered."""
_WEIGHTS = {"tensor": {4, 5, 7, 9, 10, 11}}
"""Fields of a tensor that hold its values."""

Buffer = bytes | mmap.mmap


@dataclass(frozen=True)
class Survey:
    """graph: bytes that are not values of tensors; parts: messages and names."""

    graph: int
    parts: int


@contextmanager
def mapped(path: Path) -> Iterator[Buffer]:
    """The file's bytes, not read before they are looked at."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
            yield found


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model as far as its outermost fields tell; the last of them may be cut short."""
    with mapped(path) as raw:
        return _looks(raw)


def _looks(raw: Buffer) -> bool:
    seen: dict[int, int] = {}
    at, end = 0, len(raw)
    try:
        while at < end and len(seen) < len(_MODEL) and sum(seen.values()) < 1000:
            number, kind, value, at = _field(raw, at, end)
            if _MODEL.get(number) != kind:
                return False
            seen[number] = seen.get(number, 0) + 1
            if number == _VERSION and not 1 <= value < 256:
                return False
            if at > end:
                break
    except _OutOfStepError:
        return bool(seen.get(_GRAPH)) and seen.get(_VERSION) == 1
    return seen.get(_VERSION) == 1 and (bool(seen.get(_GRAPH)) or (at > end and end > 16))


class _OutOfStepError(Exception):
    """The bytes are no fields."""


def _varint(raw: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _OutOfStepError


def _field(raw: Buffer, at: int, end: int) -> tuple[int, int, int, int]:
    """(number, type, value or length, where the next begins: of bytes behind them, and perhaps beyond the end)."""
    key, at = _varint(raw, at, end)
    number, kind = key >> 3, key & 7
    if number == 0:
        raise _OutOfStepError
    if kind == _VARINT:
        value, at = _varint(raw, at, end)
        return number, kind, value, at
    if kind == _BYTES:
        length, at = _varint(raw, at, end)
        return number, kind, length, at + length
    if kind in (_FIXED32, _FIXED64):
        return number, kind, 0, at + (4 if kind == _FIXED32 else 8)
    raise _OutOfStepError


def survey(raw: Buffer) -> Survey:
    """Measure a model. Raises CorruptFile for bytes that are no fields, for a file cut short, and beyond the limits."""
    if len(raw) > MOST:
        raise CorruptFile("", f"an ONNX file of {len(raw):,} bytes: a protocol buffer has at most {MOST:,}",
                          "Weights beyond that are kept in files beside it (external data).")  # fmt: skip
    weights = parts = fields = 0
    stack: list[tuple[str, int, int, int]] = [("model", 0, len(raw), 0)]
    while stack:
        what, at, end, depth = stack.pop()
        inside, values = _INSIDE[what], _WEIGHTS.get(what, ())
        while at < end:
            start = at
            try:
                number, kind, length, at = _field(raw, at, end)
            except _OutOfStepError:
                raise CorruptFile("", f"a damaged ONNX file: byte {start:,} begins no field", "Fetch it again.") from None
            if at > end:
                raise CorruptFile("", _cut(what, number, at, end, len(raw)), "Fetch it again.")
            fields += 1
            if parts > MOST_PARTS or fields > MOST_FIELDS:
                raise CorruptFile("", f"an ONNX graph of more than {MOST_PARTS:,} parts", "No network is written so.")
            if number in values:
                weights += at - start
                continue
            if kind != _BYTES or number not in inside:
                continue
            parts += 1
            if depth > DEEPEST:
                raise CorruptFile("", f"an ONNX file of messages {DEEPEST} deep", "No network is written so.")
            if inside[number] and length:
                stack.append((inside[number], at - length, at, depth + 1))
    if len(raw) - weights > MOST_GRAPH:
        raise CorruptFile("", f"a graph of {len(raw) - weights:,} bytes without its weights", "No network is written so.")
    return Survey(len(raw) - weights, parts)


def _cut(what: str, number: int, at: int, end: int, size: int) -> str:
    if end == size:
        return f"a truncated ONNX file: {size:,} of at least {at:,} bytes are there"
    return f"a damaged ONNX file: a field of {'an' if what[0] in 'aeiou' else 'a'} {what} reaches beyond it"
