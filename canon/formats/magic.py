"""What a file is, from its first bytes: the container of a network that canon reads, or a refusal that names it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from canon.errors import ReadError, UnknownFormat

HEAD = 4096
HDF5 = b"\x89HDF\r\n\x1a\n"
NOT_YET = "canon reads Keras models and weights, tensors dumped by name into HDF5 or .npz, and its own format."


def container(path: Path) -> Literal["hdf5", "json", "zip"]:
    """What to open the file as. Raises ReadError or UnknownFormat in one line that says what it is."""
    try:
        if path.is_dir():
            raise UnknownFormat("", "is a folder, not a file")
        if path.exists() and not path.is_file():
            raise UnknownFormat("", "is not a regular file")
        with path.open("rb") as file:
            head = file.read(HEAD)
    except FileNotFoundError:
        raise ReadError("", "no such file") from None
    except OSError as e:
        raise ReadError("", f"cannot be opened: {e.strerror or e}") from None
    if head.startswith(HDF5) or _behind_userblock(path):
        return "hdf5"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    what, hint = _stranger(head)
    raise UnknownFormat("", what, hint)


def _behind_userblock(path: Path) -> bool:
    """HDF5 may begin at 512, 1024, 2048 and so on."""
    size, at = path.stat().st_size, 512
    with path.open("rb") as file:
        while at < min(size, 1 << 20):
            file.seek(at)
            if file.read(8) == HDF5:
                return True
            at *= 2
    return False


def _stranger(head: bytes) -> tuple[str, str]:
    start = head.lstrip().lower()
    if not head:
        return "an empty file", "Fetch it again."
    if head.startswith(b"version https://git-lfs"):
        size = re.search(rb"size (\d+)", head)
        real = f": the real file has {int(size[1]):,} bytes" if size else ""
        return f"a Git LFS pointer{real}", "Fetch it with `git lfs pull`."
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, not a model", "The download went wrong: fetch the raw file."
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "a Python pickle (torch before 1.6 saved so), not read yet: unpickling runs code", NOT_YET
    if head.startswith(b"\x93NUMPY"):
        return "a numpy array (.npy), not read yet", NOT_YET
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40:
        return "a safetensors file, not read yet", NOT_YET
    if head[:1] == b"\x08" and head[1:2] < b"\x20" and head[2:3] in b"\x12\x1a\x22\x2a\x3a\x42":
        return "an ONNX model, not read yet", NOT_YET
    for magic, name in (
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ):
        if head.startswith(magic):
            return f"a file compressed with {name}", "Unpack it first."
    if head.startswith(b"MATLAB 5.0"):
        return "a MATLAB file, which canon does not read", NOT_YET
    if re.search(rb"[\x00-\x08\x0e-\x1f]", head) is None:
        return "a text file, not a network that canon reads", NOT_YET
    return "no format that canon knows", NOT_YET


def in_zip(names: Iterable[str]) -> tuple[str, str]:
    """What a zip archive of these members is, where canon does not read it, and a hint."""
    found = list(names)
    if any(name.rsplit("/", 1)[-1] == "data.pkl" for name in found):
        return "a torch file, not read yet", NOT_YET
    if "saved_model.pb" in {name.rsplit("/", 1)[-1] for name in found}:
        return "a zipped TensorFlow SavedModel, which canon does not read", "Save the model as .keras or .h5."
    return "a zip archive, not a network that canon reads", NOT_YET
