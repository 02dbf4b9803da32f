"""What a file is, from its first bytes: the container of a network that canon reads, or a refusal that names it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from canon.errors import ReadError, UnknownFormat
from canon.formats.common_wire import is_onnx

HEAD = 4096
HDF5 = b"\x89HDF\r\n\x1a\n"
TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number, pickled, with which torch before 1.6 began its files."""
NOT_YET = (
    "canon reads Keras and torch models and weights, ONNX, .nnet, safetensors, tensors by name in HDF5 or .npz, its own format."
)


def container(path: Path) -> Literal["hdf5", "json", "nnet", "onnx", "safetensors", "torch", "zip"]:
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
    if _is_safetensors(head):  # its length may begin with the byte of a brace: before JSON
        return "safetensors"
    if head.startswith(TORCH):
        return "torch"
    if head.lstrip()[:1] in (b"{", b"["):
        return "json"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if is_onnx(path):
        return "onnx"
    if _is_nnet(head):
        return "nnet"
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


def _is_safetensors(head: bytes) -> bool:
    """A length that no file has more than, and a JSON object."""
    return head[8:9] == b"{" and head[5:8] == bytes(3)


def _is_nnet(head: bytes) -> bool:
    """Lines of comment, then one of numbers: layers, inputs, outputs, the largest layer; and one with the layers' sizes."""
    lines = [line.strip() for line in head.split(b"\n")]
    numbers = [line for line in lines if line and not line.startswith(b"//")]
    if len(numbers) < 2 or re.fullmatch(rb"\d{1,9}( *, *\d{1,9}){3} *,?", numbers[0]) is None:
        return False
    layers, inputs = (int(n) for n in numbers[0].split(b",")[:2])
    sizes = [n.strip() for n in numbers[1].rstrip(b",").split(b",")]
    return all(n.isdigit() for n in sizes[:-1]) and (len(sizes) == layers + 1 or sizes[0] == b"%d" % inputs)


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
        return "a Python pickle and no torch file: unpickling runs code", "Save its arrays as .npz or safetensors."
    if head.startswith(b"\x93NUMPY"):
        return "one numpy array (.npy): a network has several, and they need names", "Put them into one .npz by layer and role."
    if head[257:262] == b"ustar":
        old = head[:100].rstrip(b"\0") in (b"sys_info", b"pickle", b"tensors", b"storages")
        if old:
            return "a tar archive, as torch 0.1 saved its files", "Load it with that torch, and save its state_dict()."
        return "a tar archive", "Unpack it first."
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
    if any(name.rsplit("/", 1)[-1] == "archive_format" for name in found):
        return "a program that torch exported (.pt2), which canon does not read", "Save its state dict."
    if "saved_model.pb" in {name.rsplit("/", 1)[-1] for name in found}:
        return "a zipped TensorFlow SavedModel, which canon does not read", "Save the model as .keras or .h5."
    return "a zip archive, not a network that canon reads", NOT_YET
