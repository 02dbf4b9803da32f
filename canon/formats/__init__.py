"""File formats, found by content and never by name. `read` gives a run, `write` stores one; one file a format.

A format has `sniff(file) -> bool`, `read(file, path, request) -> Run` and, where it can, `write`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from canon.borrow import borrow
from canon.errors import CanonError, CorruptFile, MismatchError, UnknownFormat, UsageError
from canon.formats import (
    canon_hdf5,
    hdf5_tensors,
    keras_hdf5,
    keras_vars_hdf5,
    keras_weights,
    keras_write,
    keras_zip,
    nnet,
    npz_tensors,
    onnx_model,
    safetensors,
    sharded,
    strangers,
    torch_pickle,
)
from canon.formats.common import Request, hdf5
from canon.formats.common_bfloat16 import with_precision
from canon.formats.common_chain import check_activation
from canon.formats.common_named import Named
from canon.formats.common_zip import archive, members
from canon.formats.magic import container, in_zip
from canon.ops.base import Array
from canon.run import Run

__all__ = ["WRITES", "borrow", "read", "write"]

WRITES = ("canon", "keras", "keras-zip", "npz", "safetensors", "state-dict", "torch")
"""Formats that `write` can be told to make, whatever the source is in."""
NEW = {
    "keras": keras_write.write_hdf5,
    "keras-zip": keras_write.write_zip,
    "npz": npz_tensors.write_new,
    "safetensors": safetensors.write_new,
    "state-dict": hdf5_tensors.write_new,
    "torch": torch_pickle.write_new,
}
KEEP_TYPES = ("canon", "safetensors", "torch")
"""Of these, the formats that have a bfloat16."""

IN_HDF5 = (canon_hdf5, keras_hdf5, keras_weights, keras_vars_hdf5, strangers, hdf5_tensors)
IN_ZIP = (keras_zip, npz_tensors, torch_pickle)
"""Formats by container, in the order in which they are asked."""
UNOPENED = {"nnet": nnet, "onnx": onnx_model, "safetensors": safetensors, "torch": torch_pickle}
"""Formats that open their files themselves."""
BY_NAME = (hdf5_tensors, npz_tensors, safetensors, sharded, torch_pickle)
"""Formats of tensors by name alone: what they belong to may be said in a configuration beside the file."""
BESIDE = ("config.json", "adapter_config.json")
LARGEST_CONFIG = 1 << 22


def read(
    path: str | os.PathLike[str],
    checkpoint: str | None = None,
    architecture: str | os.PathLike[str] | None = None,
    activation: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """The run that a file holds.

    path: a file, the index of several, or a folder with one model in it;
    checkpoint: which step, where there are several (the last by default), or under which key of a torch checkpoint;
    architecture: another run, or a Keras model's JSON, whose graph a file without one takes;
    activation: the nonlinearity of every hidden layer, where the file does not record it;
    options: what else names and shapes do not tell: heads, kv_heads, eps, rope_theta, rope_layout, model_type; or ask: False,
    where a network without a graph is better than an error that asks for it.
    Raises ReadError, GraphError, MismatchError or UsageError with the path in front.
    """
    check_activation(activation)
    told = {**(options or {}), **({} if activation is None else {"activation": activation})}
    lender = None if architecture is None else _architecture(Path(architecture), told)
    try:
        return _read(Path(path), checkpoint, lender, activation, options or {})
    except CanonError as e:
        raise e.at(str(path)) from e


def _read(
    path: Path,
    checkpoint: str | None,
    lender: Run | Mapping[str, Any] | None,
    activation: str | None,
    options: Mapping[str, Any],
) -> Run:
    config = lender if isinstance(lender, Mapping) else None
    path, told = sharded.model_in(path) if path.is_dir() else (path, "")
    with _opened(path) as (form, f):
        if checkpoint is not None and form not in (canon_hdf5, torch_pickle):
            raise UsageError("", f"no checkpoint {checkpoint!r}: the file holds one network, without steps")
        takes = form in (keras_weights, keras_vars_hdf5)
        if config is not None and form in BY_NAME:
            raise UsageError("", "a Keras configuration goes with Keras's weight files only", "Lend another run instead.")
        if config is not None and form is keras_weights:
            form = keras_hdf5
        beside = _beside(path) if form in BY_NAME else None
        like = isinstance(lender, Run) and lender.graph == "family" and form in BY_NAME and beside is None
        if like and isinstance(lender, Run):
            beside = _beside(Path(lender.path))  # what its file does not tell, the lender's configuration does
        lends = isinstance(lender, Run) and not like
        run: Run = form.read(f, path, Request(checkpoint, config if takes else None, activation, beside, options, lends))
        lent = like and run.graph == "family"
        if not lent and isinstance(lender, Run) and run.graph in ("chain", "none", "family"):
            try:
                run, lent = borrow(run, lender), True
            except MismatchError as misfit:
                # tensors that Keras stores otherwise than its layers hold them (gates, say): by its own configuration
                own = _configuration(Path(lender.path)) if form is keras_weights else None
                if own is None:
                    raise
                try:
                    run, lent = keras_hdf5.read(f, path, Request(checkpoint, own, activation)), True
                except CanonError:
                    raise misfit from None
        if form in IN_HDF5:
            run = with_precision(f, run)
    unused = [told] if told else []
    if lent and run.graph == "family" and isinstance(lender, Run):
        unused.append(f"what the file does not tell is taken from the configuration beside {lender.path}")
    if lender is not None and not lent and run.graph != "borrowed":
        unused.append("the architecture lent is not used: the file records its own")
    if (words := [name for name in options if name != "ask"]) and run.graph != "family":
        unused.append(f"what is told is not used, as no known family needs it: {', '.join(words)}")
    if activation is not None and run.graph not in ("chain", "family"):
        unused.append(
            "the activation told is not used: " + ("no graph is known" if run.graph == "none" else "the graph has its own")
        )
    return replace(run, notes=(*run.notes, *unused))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The format of a file, and what it is to be read from."""
    kind = container(path)
    if kind == "json":
        index = sharded.index(path, _shard)
        if index is None:
            raise UnknownFormat("", "a JSON file: it may hold an architecture, but no weights", "Lend it to a weights file.")
        yield sharded, index
        return
    if kind in UNOPENED:
        yield UNOPENED[kind], None
        return
    if kind == "hdf5":
        with hdf5(path) as f:
            yield next((form for form in IN_HDF5 if form.sniff(f)), strangers), f
        return
    with archive(path) as found:
        form = next((form for form in IN_ZIP if form.sniff(found)), None)
        if form is None:
            raise UnknownFormat("", *in_zip(members(found)))
        yield form, found


def _shard(path: Path) -> tuple[str, dict[str, Named]]:
    """The format of one file of a set, and the tensors it holds by name."""
    with _opened(path) as (form, f):
        if form is safetensors:
            return safetensors.NAME, safetensors.named(path)
        if form is torch_pickle:
            return torch_pickle.NAME, torch_pickle.named(f, path)
    raise UnknownFormat("", "is no safetensors and no torch file, as the files of a set are")


def _beside(path: Path) -> Mapping[str, Any] | None:
    """The configuration in a file's folder, if there is one."""
    config = next((path.parent / name for name in BESIDE if (path.parent / name).is_file()), path.parent / BESIDE[0])
    try:
        if not config.is_file() or config.stat().st_size > LARGEST_CONFIG:
            return None
        found = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        return None
    return found if isinstance(found, dict) else None


def _architecture(path: Path, told: Mapping[str, Any]) -> Run | Mapping[str, Any]:
    """What an architecture file holds: a run, or a Keras configuration; told: as `read` takes it as options."""
    try:
        if path.is_dir() or container(path) != "json":
            return read(path, options=told)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as e:
            raise CorruptFile("", f"is not JSON ({type(e).__name__})") from e
        if isinstance(found, dict) and sharded.MAP in found:
            return read(path, options=told)
        if not isinstance(found, dict) or not {"class_name", "config"} <= set(found):
            raise UnknownFormat("", "JSON that is no Keras configuration", "Write it with model.to_json().")
        return found
    except CanonError as e:
        raise (e if e.where.startswith(str(path)) else e.at(str(path))) from e


def _configuration(path: Path) -> Mapping[str, Any] | None:
    """The Keras configuration that an HDF5 file records, if it does."""
    if container(path) != "hdf5":
        return None
    with hdf5(path) as f:
        return keras_hdf5.configuration(f)


def write(
    run: Run,
    path: str | os.PathLike[str],
    fmt: str | None = None,
    source: str | os.PathLike[str] | None = None,
    *,
    actions: Mapping[str, Mapping[str, Array]] | None = None,
    drop_optimizer: bool = False,
    checkpoints: Sequence[Run] = (),
) -> tuple[str, ...]:
    """Store a run: as a new file of one of WRITES, or as a copy of the file it came from with its tensors replaced.

    Returns what the format cannot keep, one line each.
    fmt: None for such a copy; source: the file to copy (run.path by default);
    actions: space -> name -> array, what led here; drop_optimizer: leave out optimizer state that no longer fits;
    checkpoints: further checkpoints of the same graph, canon's format only.
    The file appears whole or not at all. Raises WriteError, UsageError with the path in front.
    """
    try:
        return _write(
            run,
            Path(path),
            fmt,
            Path(source if source is not None else run.path),
            actions or {},
            drop_optimizer,
            checkpoints,
        )
    except CanonError as e:
        raise e.at(str(path)) from e


def _write(
    run: Run,
    path: Path,
    fmt: str | None,
    source: Path,
    actions: Mapping[str, Mapping[str, Array]],
    drop_optimizer: bool,
    checkpoints: Sequence[Run],
) -> tuple[str, ...]:
    if fmt is not None and fmt not in WRITES:
        raise UsageError(
            "", f"canon cannot write {fmt!r}", f"Formats to write: {', '.join(WRITES)}, or that of the file it came from."
        )
    if fmt == "canon" or (fmt is None and run.format == canon_hdf5.NAME):
        canon_hdf5.write((run, *checkpoints), path, actions)
        return ()
    if checkpoints:
        raise UsageError("", "only canon's own format holds several checkpoints")
    if fmt is not None:
        widened = run.network.precision and fmt not in KEEP_TYPES
        notes = NEW[fmt](run, path)
        return (*notes, "what was stored in bfloat16 is written in float32, the same values") if widened else notes
    try:
        with _opened(source) as (form, _):
            pass
    except CanonError as e:
        raise e.at(f"the source {source}") from e
    if form is strangers:
        raise UsageError("", f"the source {source} holds no network", "Name the file that the run was read from.")
    return form.write(run, path, source, actions, drop_optimizer=drop_optimizer) or ()
