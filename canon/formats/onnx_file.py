"""ONNX files: the protocol buffer, taken apart once it is known to be small enough, and its tensors.

Nothing in a file is trusted: a tensor's declared size is held against the bytes that are there before memory is asked for,
and values in other files are taken from the model's own folder alone, mapped and not read.
"""

from __future__ import annotations

import os
from importlib import import_module
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from canon.errors import CorruptFile, MissingExtra, ReadError
from canon.formats.common_wire import mapped, survey
from canon.ops.base import Array
from canon.precision import BFLOAT16, from_bfloat16

TYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: BFLOAT16,
}  # fmt: skip
"""Types of tensors by number, those whose values canon takes."""
OTHER_TYPES = {8: "string", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4",
               22: "int4", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2"}  # fmt: skip
_EXTERNAL = 1
_FIELDS = {1: "float_data", 11: "double_data", 7: "int64_data", 12: "uint64_data", 13: "uint64_data", 14: "float_data",
           15: "double_data"}  # fmt: skip
"""Where values are kept if not as bytes; the other types are in int32_data."""


def onnx() -> Any:
    """The package that takes ONNX's protocol buffers apart. Raises MissingExtra."""
    try:
        return import_module("onnx")
    except ImportError:
        raise MissingExtra("", "an ONNX model: reading it needs the package onnx", "pip install 'canonform[onnx]'") from None


def parse(path: Path) -> Any:
    """The file's ModelProto. Raises CorruptFile, MissingExtra."""
    package = onnx()
    try:
        with mapped(path) as raw:
            survey(raw)
            model = package.ModelProto()
            model.ParseFromString(bytes(raw[:]))
    except MemoryError as e:
        raise ReadError("", "needs more memory than there is") from e
    except OSError as e:
        raise ReadError("", f"cannot be read: {e.strerror or e}") from None
    except Exception as e:
        if type(e).__name__ != "DecodeError":
            raise
        raise CorruptFile("", "a damaged ONNX file: its fields hold what they cannot", "Fetch it again.") from None
    if not model.HasField("graph"):
        raise CorruptFile("", "an ONNX file without a graph")
    return model


def kind_of_type(number: int) -> str:
    """A type's name by its number."""
    return TYPES.get(number) or OTHER_TYPES.get(number) or f"number {number}"


def shape_of(tensor: Any) -> tuple[int, ...]:
    """A tensor's declared shape. Raises CorruptFile for sizes that are none."""
    shape = tuple(int(n) for n in tensor.dims)
    if any(n < 0 for n in shape):
        raise CorruptFile(tensor.name, f"declares a shape {shape}")
    return shape


def is_external(tensor: Any) -> bool:
    """Whether a tensor's values are in another file."""
    return bool(tensor.data_location == _EXTERNAL)


def array_of(tensor: Any, folder: Path) -> tuple[Array, str]:
    """A tensor's values, and the name of the type that they are stored in, where numpy has none ("").

    folder: of the model, where external values may be. Raises CorruptFile for more than the file holds, and for types
    whose values are no numbers of canon's.
    """
    number = int(tensor.data_type)
    if number not in TYPES:
        raise CorruptFile(tensor.name, f"holds values of type {kind_of_type(number)}, which canon does not read")
    if tensor.HasField("segment"):
        raise CorruptFile(tensor.name, "is kept in segments, which canon does not put together")
    shape, kind = shape_of(tensor), TYPES[number]
    dtype = np.dtype("<u2") if kind == BFLOAT16 else np.dtype(kind).newbyteorder("<")
    need = prod(shape) * dtype.itemsize
    if is_external(tensor):
        values = _external(tensor, folder, dtype, shape, need)
    elif tensor.raw_data:
        if len(tensor.raw_data) != need:
            raise CorruptFile(tensor.name, f"declares {need:,} bytes, and holds {len(tensor.raw_data):,}",
                              "The file is damaged or made to harm.")  # fmt: skip
        values = np.frombuffer(tensor.raw_data, dtype).reshape(shape)
    else:
        values = _from_fields(tensor, number, dtype, shape)
    if kind == BFLOAT16:
        return from_bfloat16(values), BFLOAT16
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("=")), ""


def _from_fields(tensor: Any, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    field = getattr(tensor, _FIELDS.get(number, "int32_data"))
    parts = 2 if number in (14, 15) else 1
    if len(field) != prod(shape) * parts:
        raise CorruptFile(tensor.name, f"declares shape {shape}, and holds {len(field) // parts:,} values",
                          "The file is damaged or made to harm.")  # fmt: skip
    wide: Any = np.float64 if number in (1, 11, 14, 15) else np.uint64 if number in (12, 13) else np.int64
    found: Array = np.fromiter(field, wide, len(field))
    if number in (1, 11):
        with np.errstate(over="ignore"):
            return found.astype(dtype).reshape(shape)
    if number in (14, 15):
        return (found[::2] + 1j * found[1::2]).astype(dtype).reshape(shape)
    if number in (10, 16):  # halves are kept as their bits
        return np.asarray(found & 0xFFFF).astype("<u2").view(dtype).reshape(shape)
    return found.astype(dtype).reshape(shape)


def _external(tensor: Any, folder: Path, dtype: np.dtype[Any], shape: tuple[int, ...], need: int) -> Array:
    """Values in a file beside the model, mapped."""
    said = {e.key: e.value for e in tensor.external_data}
    path = _beside(tensor.name, said.get("location", ""), folder)
    try:
        size = path.stat().st_size
    except OSError:
        raise ReadError(tensor.name, f"keeps its values in {said['location']!r}, which is not there",
                        "External data belongs beside the model.") from None  # fmt: skip
    try:
        offset = int(said.get("offset") or 0)
        length = int(said["length"]) if said.get("length") else need
    except ValueError:
        raise CorruptFile(tensor.name, "says where its values are in words that are no numbers") from None
    if length != need or offset < 0 or offset + need > size:
        raise CorruptFile(
            tensor.name,
            f"declares {need:,} bytes from {offset:,} on in {said['location']!r}, which has {size:,}",
            "The file is damaged, cut short or made to harm.",
        )
    if need == 0:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", offset, shape or (1,))).reshape(shape)


def _beside(name: str, location: str, folder: Path) -> Path:
    """The file that a location names, if it lies in the model's folder, and no link leads out of it."""
    parts = PurePosixPath(location.replace("\\", "/")).parts
    outside = not parts or location.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in location
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, *parts)) if not outside else ""
    if outside or os.path.commonpath([root, path]) != root:
        raise CorruptFile(name, f"keeps its values in {location!r}, outside the model's folder",
                          "canon reads external data beside the model alone.")  # fmt: skip
    found = Path(path)
    if found.exists() and not found.is_file():
        raise CorruptFile(name, f"keeps its values in {location!r}, which is not a regular file")
    return found
