"""A network's tensors under a state dict's names: what is left of a run where only arrays can be kept."""

from __future__ import annotations

from pathlib import Path

from canon.formats.common_layout import Stack, as_place
from canon.formats.common_write import outgoing
from canon.network import Network
from canon.ops.base import Array
from canon.run import Run

NAMES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "mean": "running_mean",
    "variance": "running_var",
    "table": "weight",
    "recurrent_kernel": "recurrent_weight",
}
"""Roles as torch calls them; other roles keep their name."""


def dumped(network: Network) -> dict[str, Array]:
    """Every tensor by a dotted name: the layer's, and what it is to the layer. Kernels are (out, in, *window), as canon's."""
    found: dict[str, Array] = {}
    for name, tensor in network.tensors.items():
        role = next((role for _, role in network.uses.get(name, ())), name.rsplit("/", 1)[-1].rsplit(".", 1)[-1])
        at = max(name.rfind("/"), name.rfind("."))
        layer = name[:at].replace("/", ".") if at > 0 else name
        plain = f"{layer}.{NAMES.get(role, role)}"
        if any(op.kind == "conv_transpose" for op, _ in network.uses.get(name, ())) and role == "kernel":
            tensor = tensor.swapaxes(0, 1)  # torch keeps these (in, out, *window)
        key, k = plain, 1
        while key in found:
            key, k = f"{plain}_{k}", k + 1
        found[key] = tensor
    return found


def entries(run: Run) -> dict[str, tuple[Array, str]]:
    """What a state dict of the run holds: by name, every array and the type it is to have.

    A run of a known family keeps the names and the layout of its file, so that what reads such files reads this one.
    """
    network = run.network
    if run.graph != "family" or set(run.layout) != set(network.tensors):
        kinds = map(network.stored_type, network.tensors)
        return {key: (t, kind) for (key, t), kind in zip(dumped(network).items(), kinds, strict=True)}
    shapes: dict[str, tuple[int, ...]] = {}
    for stored in run.layout.values():
        for place in stored.parts if isinstance(stored, Stack) else (as_place(stored),):
            shape = place.shape or ()
            if place.cut is not None:
                axis, _, stop = place.cut
                before = shapes.get(place.path, shape)[axis]
                shape = (*shape[:axis], max(stop, before), *shape[axis + 1 :])
            shapes |= dict.fromkeys((place.path, *place.also), shape)
    shapes |= {lengths.path: lengths.shape for lengths in run.lengths.values()}
    found = outgoing(run, Path(run.path), shapes.get)
    return {_key(path): (values(), network.stored_type(name)) for path, (name, values) in found.items()}


def _key(path: str) -> str:
    """The name that a state dict has for what lies at a path of a container."""
    return path.strip("/").removesuffix(".npy")


def lost(run: Run) -> tuple[str, ...]:
    """What a dump by name does not keep, a line each."""
    kept = ["arrays alone are kept: no graph, no nonlinearities, no strides, no epsilon of batch norms"]
    if run.graph == "family":
        kept = ["parameters alone are kept, as its file names and stores them: no buffers, and no config.json beside it"]
    elif run.lengths:
        kept.append("kernels under weight norm are written as one tensor each, without lengths and directions")
    if run.probes:
        kept.append("the probes stored with the run are left out")
    if len(run.checkpoints) > 1:
        kept.append(f"one checkpoint of {len(run.checkpoints)} is written: {run.checkpoint}")
    return tuple(kept)
