"""canon's own format: an HDF5 file that any HDF5 tool can read, with its graph and any number of checkpoints.

    /                             attributes canon_format, created_by, activations_known
    /architecture                 JSON text: inputs, ops, outputs, tensors (their order)
    /checkpoints/<step>/<tensor>  one dataset a tensor, weights as (out, in, *kernel); attributes step, and any metrics;
                                  on the dataset stored_as, where its values are those of a coarser type (bfloat16)
    /probes/<name>                inputs, (samples, ...); attribute sample_ids where known
    /activations/<step>/<probe>/<value>  (samples, units, ...), written by canon_record, read by arrays_hdf5
    /action/<space>/<name>        the group element that led here

The same content gives the same bytes: no times are stored, and names go in sorted or in the network's order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from canon import __version__
from canon.errors import CorruptFile, UnknownFormat, UsageError
from canon.formats.common import Request, bounded, check_string, load, natural, node, text, walk
from canon.formats.common_write import check_name, replacing, write_arrays
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array
from canon.precision import BFLOAT16
from canon.run import Run, Stored

NAME = "canon hdf5"
VERSION = 1
STORED_AS = "stored_as"


def sniff(f: Any) -> bool:
    """Whether an open HDF5 file is canon's own."""
    return "canon_format" in f.attrs


def read(f: Any, path: Path, request: Request) -> Run:
    """The run, with the checkpoint asked for (the last by default).

    Raises UnknownFormat for a newer version, CorruptFile, UsageError for a checkpoint that is not there.
    """
    version = f.attrs["canon_format"]
    if not isinstance(version, int | np.integer):
        raise CorruptFile("canon_format", f"is {version!r}, not a number")
    if version > VERSION:
        raise UnknownFormat("", f"written by a newer canon: format {version}, and this one reads {VERSION}", "Update canon.")
    architecture = _architecture(f)
    checkpoints = node(f, "checkpoints")
    steps = sorted(checkpoints or (), key=_step_order)
    if not steps:
        raise CorruptFile("", "a canon file without any checkpoint")
    step = steps[-1] if request.checkpoint is None else request.checkpoint
    if step not in steps:
        raise UsageError("", f"no checkpoint {step!r}", f"It holds {_some(steps)}.")
    group = node(checkpoints, step)
    datasets = dict(walk(group))
    wanted = [t for op in architecture["ops"] for t in op["params"].values()]
    order = dict.fromkeys([*architecture.get("tensors", []), *wanted, *datasets])
    for name in order:
        if name not in datasets:
            raise CorruptFile(f"checkpoints/{step}", f"has no tensor {name!r}, which the architecture names")
    network = Network(
        tensors={name: load(datasets[name]) for name in order},
        ops=tuple(
            Op(o["kind"], o["name"], tuple(o["inputs"]), o["output"], o["params"], o["attrs"]) for o in architecture["ops"]
        ),
        inputs={v: tuple(shape) for v, shape in architecture["inputs"].items()},
        outputs=tuple(architecture["outputs"]),
        precision={name: BFLOAT16 for name in order if datasets[name].attrs.get(STORED_AS) == BFLOAT16},
    )
    probes = node(f, "probes")
    return Run(
        path=str(path),
        format=NAME,
        network=network,
        checkpoint=step,
        checkpoints=tuple(steps),
        layout={name: Stored(f"checkpoints/{step}/{name}") for name in order},
        graph="stored",
        activations_known=bool(f.attrs.get("activations_known", True)),
        probes={name: load(dataset) for name, dataset in walk(probes)} if probes is not None else {},
        metrics={s: _metrics(node(checkpoints, s)) for s in steps},
    )


def _step_order(step: str) -> tuple[bool, float, tuple[tuple[int, int | str], ...]]:
    """Numbers by their value, before names."""
    number = re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", step, re.IGNORECASE)
    return number is None, float(step) if number else 0.0, natural(step)


def _architecture(f: Any) -> dict[str, Any]:
    dataset = node(f, "architecture")
    if dataset is None:
        raise CorruptFile("", "a canon file without an architecture")
    bounded(dataset)
    check_string(dataset)
    try:
        found = json.loads(text(dataset[()]))
        if isinstance(found, dict) and {"inputs", "ops", "outputs"} <= set(found):
            return found
    except (ValueError, RecursionError):
        pass
    raise CorruptFile("architecture", "is not a JSON object with inputs, ops and outputs")


def _metrics(group: Any) -> dict[str, float]:
    return {
        k: float(v) for k, v in group.attrs.items() if k != "step" and np.ndim(v) == 0 and np.asarray(v).dtype.kind in "fiu"
    }


def _some(steps: Sequence[str]) -> str:
    return ", ".join(steps) if len(steps) <= 8 else f"{', '.join(steps[:4])}, ..., {', '.join(steps[-2:])}"


def write(runs: Sequence[Run], path: Path, actions: Mapping[str, Mapping[str, Array]]) -> None:
    """Write checkpoints of one graph; each run's `checkpoint` is its step ("0" where it has none).

    Raises UsageError where steps repeat or graphs differ, WriteError.
    """
    import h5py

    first = runs[0].network
    steps = [run.checkpoint or "0" for run in runs]
    for step, run in zip(steps, runs, strict=True):
        check_name(step)
        if steps.count(step) > 1 or "/" in step:
            raise UsageError("", f"{step!r} cannot be the name of one checkpoint")
        if (
            run.network.ops != first.ops
            or dict(run.network.inputs) != dict(first.inputs)
            or run.network.outputs != first.outputs
        ):
            raise UsageError("", f"checkpoint {step!r} has another graph than {steps[0]!r}")
    with replacing(path) as temporary, h5py.File(temporary, "w", libver=("earliest", "v110")) as f:
        f.attrs["canon_format"] = VERSION
        f.attrs["created_by"] = f"canon {__version__}"
        f.attrs["activations_known"] = all(run.activations_known for run in runs)
        f.create_dataset("architecture", data=_json(first), dtype=h5py.string_dtype(), track_times=False)
        for step, run in sorted(zip(steps, runs, strict=True), key=lambda pair: _step_order(pair[0])):
            group = f.create_group(f"checkpoints/{step}")
            group.attrs["step"] = int(step) if step.isdigit() and len(step) < 19 else step
            for metric, value in sorted(run.metrics.get(step, {}).items()):
                group.attrs[metric] = float(value)
            for name, tensor in run.network.tensors.items():
                check_name(name)
                made = group.create_dataset(name, data=np.ascontiguousarray(tensor), track_times=False)
                if name in run.network.precision:
                    made.attrs[STORED_AS] = run.network.precision[name]
        for name, values in sorted(runs[0].probes.items()):
            check_name(name)
            f.create_dataset(f"probes/{name}", data=np.ascontiguousarray(values), track_times=False)
        write_arrays(f, "action", actions)


def _json(network: Network) -> str:
    ops = [
        {
            "kind": op.kind,
            "name": op.name,
            "inputs": list(op.inputs),
            "output": op.output,
            "params": dict(op.params),
            "attrs": dict(op.attrs),
        }
        for op in network.ops
    ]
    inputs = {v: list(shape) for v, shape in network.inputs.items()}
    whole = {"inputs": inputs, "ops": ops, "outputs": list(network.outputs), "tensors": list(network.tensors)}
    return json.dumps(whole, indent=1, allow_nan=False, ensure_ascii=False)
