"""torch's files (.pt, .pth, .bin): pickles with their tensors behind them, loaded by weights_only and in no other way.

Since torch 1.6 a zip archive, <name>/data.pkl and one member a storage; before, pickles one after the other and then the
storages. What the pickles ask for is looked at before torch is: see torch_scan.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from canon.errors import CorruptFile, MissingExtra, UnknownFormat
from canon.formats.common import Request
from canon.formats.common_dump import entries, lost
from canon.formats.common_named import Named, read_named
from canon.formats.common_write import fitted, outgoing, replacing
from canon.formats.common_zip import archive, check_all, members
from canon.formats.torch_choice import Chosen, choose, put, ties, without_optimizer
from canon.formats.torch_scan import ITEMSIZE, LONGEST, Global, Storage, refused, scan
from canon.ops.base import Array
from canon.precision import BFLOAT16, from_bfloat16
from canon.run import Run

NAME, LEGACY = "torch", "torch legacy"
PICKLE = "data.pkl"
SCRIPT = "constants.pkl"
EXTRA = "canonform[torch]"
FLOATS = ("float64", "float32", "float16", BFLOAT16)


def sniff(f: zipfile.ZipFile) -> bool:
    """Whether an open zip archive is torch's."""
    return any(name.rsplit("/", 1)[-1] == PICKLE for name in members(f))


def read(f: zipfile.ZipFile | None, path: Path, request: Request) -> Run:
    """The run: a chain where shapes prove one, else tensors without a graph. f: the archive, or None for the old format.

    Raises MissingExtra without torch, ReadError naming a refused global, CorruptFile, UsageError for a key not there.
    """
    chosen = choose(_load(f, path), request.checkpoint)
    run = read_named(_named(chosen), NAME if f is not None else LEGACY, path, request)
    several = len(chosen.keys) > 1
    return replace(
        run,
        checkpoint=chosen.key if several else "",
        checkpoints=chosen.keys if several else (),
        notes=(*chosen.notes, *run.notes),
    )


def named(f: zipfile.ZipFile | None, path: Path) -> dict[str, Named]:
    """The tensors of a file by name, as a part of a set."""
    return _named(choose(_load(f, path), None))


# loading


def _load(f: zipfile.ZipFile | None, path: Path) -> Any:
    """What torch makes of a file that was looked at first."""
    plain = _check_zip(f) if f is not None else _check_legacy(path)
    torch = _torch()
    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")
            # mapped where the storages lie unpacked in the file; torch takes names in .safetensors for safetensors
            mapped = plain and path.suffix != ".safetensors"
            return torch.load(str(path) if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except pickle.UnpicklingError as e:
        said = re.search(r"GLOBAL (\S+)", str(e))
        raise (refused(said[1]) if said else _damaged(e)) from None
    except Exception as e:  # torch raises whatever its C++ does
        raise _damaged(e) from e


def _damaged(e: Exception) -> CorruptFile:
    lines = str(e).splitlines()
    said = lines[0][:160] if lines else type(e).__name__
    return CorruptFile("", f"a torch file that torch does not load ({said})", "Fetch the file again.")


def _torch() -> Any:
    try:
        import torch
    except ImportError as e:
        raise MissingExtra("", "a torch file, and torch is not installed", f"Install it with: pip install '{EXTRA}'") from e
    return torch


def _check_zip(f: zipfile.ZipFile) -> bool:
    """Look at an archive before torch does; whether everything in it lies unpacked."""
    inside = members(f)
    check_all(f)
    if len({name.lower() for name in inside}) < len(inside):  # torch's reader takes one for the other
        raise CorruptFile("", "a torch archive with two members of one name", "The file is made to harm.")
    found = [name for name in inside if name.rsplit("/", 1)[-1] == PICKLE]
    root = found[0][: -len(PICKLE)]
    if root + SCRIPT in inside:
        raise UnknownFormat("", "a TorchScript archive: a program, which weights_only does not load",
                            "Save torch.jit.load(file).state_dict() with torch.save.")  # fmt: skip
    if len(found) > 1:
        raise CorruptFile("", f"a torch archive with {len(found)} pickles ({found[0]}, {found[1]})")
    info = inside[found[0]]
    if info.file_size > LONGEST:
        raise CorruptFile(info.filename, f"is a pickle of {info.file_size:,} bytes", "No state dict needs as many.")

    def storage(saved: tuple[Any, ...]) -> Storage:
        _, kind, key, _, size = saved
        member = inside.get(f"{root}data/{key}") if isinstance(key, str) else None
        itemsize = _itemsize(kind)
        if member is None or type(size) is not int or not 0 <= size * itemsize <= member.file_size:
            there = f"has {member.file_size:,} bytes" if member else "is not there"
            raise CorruptFile(f"{root}data/{key}", f"{there}, and its tensors ask for {size} numbers of {itemsize}",
                              "The file is damaged or made to harm.")  # fmt: skip
        return Storage(size, itemsize)

    with f.open(info) as pickled:
        scan(pickled, storage)
    return all(member.compress_type == zipfile.ZIP_STORED for member in inside.values())


def _itemsize(kind: Any) -> int:
    if not isinstance(kind, Global):
        raise TypeError
    return ITEMSIZE[kind.name.rsplit(".", 1)[-1]]


def _check_legacy(path: Path) -> bool:
    """Look at a file of torch before 1.6; it is never mapped."""
    size = path.stat().st_size
    storages: dict[Any, Storage] = {}

    def storage(saved: tuple[Any, ...]) -> Storage:
        _, kind, key, _, numbers, view = saved
        if type(numbers) is not int or not 0 <= numbers * _itemsize(kind) <= size:
            raise CorruptFile("", f"a storage of {numbers} numbers in a file of {size:,} bytes",
                              "The file is truncated, damaged or made to harm.")  # fmt: skip
        whole = storages.setdefault(str(key), Storage(numbers, _itemsize(kind)))
        if view is None:
            return whole
        _, offset, length = view
        if not (type(offset) is type(length) is int and 0 <= offset <= offset + length <= whole.size):
            raise ValueError
        return Storage(length, whole.itemsize)

    with path.open("rb") as file:
        for what in range(5):  # magic number, protocol, the machine it was written on, the object, keys of storages
            found = scan(file, storage)
            if what == 2 and isinstance(found, dict) and found.get("little_endian") is False:
                raise UnknownFormat("", "a torch file from a big-endian machine, which canon does not read")
        keys = found if isinstance(found, list) else []
        for key in keys:
            known = storages.get(str(key))
            head = file.read(8)
            if known is None or len(head) < 8 or struct.unpack("<q", head)[0] != known.size:
                raise CorruptFile("", "a truncated or damaged torch file: its storages do not lie where its pickle says",
                                  "Fetch the file again.")  # fmt: skip
            file.seek(known.size * known.itemsize, 1)
        if len({str(key) for key in keys}) < len(storages) or file.tell() > size:
            raise CorruptFile("", f"a truncated torch file: {size:,} of {file.tell():,} bytes are there", "Fetch it again.")
    return False


# tensors


def _named(chosen: Chosen) -> dict[str, Named]:
    """Tensors as arrays that are made when asked for: views of torch's memory, bfloat16 widened."""
    found = {}
    for name, tensor in chosen.tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind.startswith(("float8", "float4")):
            raise UnknownFormat(name, f"is stored as {kind}: such numbers mean something only with their scales",
                                "Dequantise the file to bfloat16 first.")  # fmt: skip
        dtype = np.dtype(np.float32 if kind == BFLOAT16 else kind if kind in FLOATS else object)
        found[name] = Named(name, tuple(tensor.shape), dtype, partial(_values, tensor), BFLOAT16 if kind == BFLOAT16 else "")
    return found


def _values(tensor: Any) -> Array:
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return from_bfloat16(tensor.view(torch.int16).numpy().view(np.uint16))
    values: Array = tensor.resolve_neg().numpy()
    values.flags.writeable = False  # a mapping of the file, where it can be
    return values


# writing


def write(
    run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool
) -> tuple[str, ...]:
    """A copy of the source with the run's tensors in the same nest; what it cannot keep, a line each."""
    with _archive(source) as f:
        found, zipped = _load(f, source), f is not None
    chosen = choose(found, run.checkpoint or None)
    here = outgoing(run, source, lambda key: tuple(chosen.tensors[key].shape) if key in chosen.tensors else None)
    new = {key: _replaced(*here[key], old) if key in here else old for key, old in chosen.tensors.items()}
    for names in ties(chosen.tensors):
        first = new[names[0]]
        new.update({name: first for name in names if new[name].equal(first)})
    made = put(found, chosen.path, new)
    notes = [] if zipped else ["written as torch does since 1.6, a zip archive"]  # the old format has addresses in it
    if others := [key or "the top" for key in chosen.keys if key != chosen.key]:
        notes.append(f"left as they were: {', '.join(others)}")
    if drop_optimizer:
        made, gone = without_optimizer(made)
        notes += [f"left out, since it no longer fits: {', '.join(gone)}"] if gone else []
    _save(made, path)
    return (*notes, *(["the relabelling and scales that led here are not kept"] if actions else []))


def _archive(path: Path) -> AbstractContextManager[zipfile.ZipFile | None]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    return archive(path) if zipped else nullcontext()


def _replaced(name: str, values: Callable[[], Array], old: Any) -> Any:
    """The run's tensor in the type and class of the source's."""
    torch = _torch()
    kind = str(old.dtype).removeprefix("torch.")
    new = _made(fitted(name, values(), kind), kind)
    return torch.nn.Parameter(new, old.requires_grad) if isinstance(old, torch.nn.Parameter) else new


def _made(values: Array, kind: str) -> Any:
    """A torch tensor of its own; bfloat16 from its bits."""
    torch = _torch()
    if kind == BFLOAT16:
        return torch.from_numpy(np.array(values).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(values))


def write_new(run: Run, path: Path) -> tuple[str, ...]:
    """A state dict as torch's zip; what it cannot keep, a line each."""
    made: OrderedDict[str, Any] = OrderedDict()
    for key, (values, kind) in entries(run).items():
        made[key] = _made(fitted(key, values, kind), kind)
    _save(made, path)
    return lost(run)


def _save(made: Any, path: Path) -> None:
    torch = _torch()
    with replacing(path) as temporary, temporary.open("wb") as out:  # by file: a path's name would go into the archive
        torch.save(made, out)
