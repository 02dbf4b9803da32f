"""Checkpoints in several files under an index, as transformers writes them; and folders, of which one file is the model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from canon.errors import CorruptFile, ReadError, UnknownFormat, UsageError
from canon.formats.common import Request
from canon.formats.common_named import Named, read_named
from canon.ops.base import Array
from canon.run import Run

INDEX = ".index.json"
MAP = "weight_map"
LARGEST = 1 << 27
"""Bytes that an index may have."""
ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".hdf5", ".keras", ".npz", ".onnx", ".nnet", ".canon")
"""What names of model files end in. What they are is read from their content."""
NO_MODEL = re.compile(r"(optimizer|scheduler|scaler|random_states|rng_state|training_args)[._].*|(optim|sched)_.*")
"""What trainers store beside a model."""
NAMED = 4
"""Files named in a refusal."""

Shard = Callable[[Path], tuple[str, dict[str, Named]]]
"""The format of one file and the tensors it holds."""


@dataclass(frozen=True)
class Index:
    """An index file. shards: tensor -> name of the file that holds it; open: reads one of them."""

    path: Path
    shards: Mapping[str, str]
    open: Shard


def model_in(folder: Path) -> tuple[Path, str]:
    """The one file of a folder that is a model, its index where it lies in several, and a note. UnknownFormat, ReadError."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir() and not entry.name.startswith("."))
    except OSError as e:
        raise ReadError("", f"cannot be opened: {e.strerror or e}") from None
    indices = [name for name in names if name.endswith(INDEX)]
    parts = {shard for name in indices for shard in _weight_map(folder / name).values()}
    found = indices + [n for n in names if n.lower().endswith(ENDINGS) and n not in parts and not NO_MODEL.fullmatch(n)]
    if not found:
        what = "a TensorFlow SavedModel, which canon does not read" if "saved_model.pb" in names else "no model file among them"
        raise UnknownFormat("", f"is a folder of {len(names)} files: {what}", "Name the file.")
    if len(found) > 1:
        some = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
        raise UnknownFormat("", f"is a folder with {len(found)} files that may be meant: {some}", "Name the file.")
    return folder / found[0], f"of the folder, {found[0]} is read"


def index(path: Path, shard: Shard) -> Index | None:
    """The index that a JSON file is, or None where it is something else. Raises CorruptFile."""
    shards = _weight_map(path)
    return Index(path, shards, shard) if shards else None


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file, or nothing where a JSON file has no such map."""
    try:
        if path.stat().st_size > LARGEST:
            raise CorruptFile(path.name, f"is an index of {path.stat().st_size:,} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as e:
        raise CorruptFile(path.name, f"is not JSON ({type(e).__name__})") from e
    shards = found.get(MAP) if isinstance(found, dict) else None
    if shards is None:
        return {}
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise CorruptFile(MAP, "is no object of file names")
    for name in set(shards.values()):
        if not name or {"", ".", ".."} & set(name.split("/")) or re.search(r"[\\:\0]", name):
            raise CorruptFile(MAP, f"names a file outside the folder: {name!r}", "canon follows no name out of the folder.")
    return shards


def read(f: Index, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph.

    Raises CorruptFile for a shard that is not there or holds other tensors than the index says.
    """
    files = dict.fromkeys(f.shards.values())
    gone = [name for name in files if not (path.parent / name).is_file()]
    if gone:
        more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise CorruptFile("", f"shard {gone[0]} is not there{more}: {len(files) - len(gone)} of {len(files)} are",
                          "Fetch the whole set.")  # fmt: skip
    found: dict[str, Named] = {}
    kinds: dict[str, None] = {}
    for name in files:
        try:
            kind, tensors = f.open(path.parent / name)
        except ReadError as e:
            raise e.at(name) from e
        kinds[kind] = None
        for key, tensor in tensors.items():
            if f.shards.get(key) != name:
                said = f"puts it in {f.shards[key]}" if key in f.shards else "has no such tensor"
                raise CorruptFile(name, f"holds {key!r}, and the index {said}", "The files are not of one set.")
            found[key] = tensor
    if lacking := next((key for key in f.shards if key not in found), None):
        raise CorruptFile(f.shards[lacking], f"has no {lacking!r}, which the index puts there", "The files are not of one set.")
    whole = {key: found[key] for key in f.shards}
    return read_named(whole, f"sharded {' and '.join(kinds)}", path, request)


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> NoReturn:
    """Raise UsageError: a set of files has no copy in one."""
    raise UsageError("", f"{source.name} is an index of several files, and no copy of it can be one file",
                     "Write it with --to safetensors.")  # fmt: skip
