"""Keras archives (.keras), of Keras 2.12 to 3: a zip of the configuration as JSON and the weights as HDF5."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from canon.errors import CorruptFile, UnknownFormat
from canon.formats.common import Request, hdf5
from canon.formats.common_bfloat16 import with_precision
from canon.formats.common_write import replacing, write_copy
from canon.formats.common_zip import archive, members, small, unpacked
from canon.formats.keras_run import config_of, from_vars, holding_together
from canon.ops.base import Array
from canon.run import Run

CONFIG, METADATA = "config.json", "metadata.json"
WEIGHTS = ("model.weights.h5", "variables.h5")
OPTIMIZER = "optimizer"


def sniff(f: zipfile.ZipFile) -> bool:
    """Whether an open zip archive is Keras's."""
    return CONFIG in members(f)


def read(f: zipfile.ZipFile, path: Path, request: Request) -> Run:
    """The run; UnsupportedOp names a layer that canon does not know, CorruptFile what does not fit together."""
    inside = members(f)
    config = config_of(small(f, inside[CONFIG]))
    told = _metadata(small(f, inside[METADATA])) if METADATA in inside else {}
    with _weights(f, inside) as inner, hdf5(inner) as h5, holding_together(CONFIG):
        return with_precision(h5, from_vars(h5, path, config, told, "archive", lent=False))


def _metadata(said: str) -> Mapping[str, Any]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _weights(found: zipfile.ZipFile, inside: Mapping[str, zipfile.ZipInfo]) -> Iterator[Path]:
    name = next((n for n in WEIGHTS if n in inside), None)
    if name is None:
        other = next((n for n in inside if ".weights." in n), None)
        if other is not None:
            raise UnknownFormat("", f"a Keras archive whose weights are in {other}, not in one HDF5 file",
                                "Save it with model.save(path) in one piece.")  # fmt: skip
        raise CorruptFile("", "a Keras archive without weights (model.weights.h5)")
    with unpacked(found, inside[name]) as inner:
        yield inner


def write(run: Run, path: Path, source: Path, actions: Mapping[str, Mapping[str, Array]], *, drop_optimizer: bool) -> None:
    """A copy of the source with the run's tensors."""
    with archive(source) as found, replacing(path) as temporary:
        inside = members(found)
        with _weights(found, inside) as inner:
            moved = inner.with_name("moved")
            write_copy(run, moved, inner, actions, drop=(OPTIMIZER,) if drop_optimizer else ())
            with zipfile.ZipFile(temporary, "w") as out:
                for name, info in inside.items():
                    if name in WEIGHTS:
                        with moved.open("rb") as weights, out.open(info.filename, "w", force_zip64=True) as member:
                            shutil.copyfileobj(weights, member, 1 << 20)
                    else:
                        out.writestr(info, found.read(info))
