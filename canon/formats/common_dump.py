"""A network's tensors under a state dict's names: what is left of a run where only arrays can be kept."""

from __future__ import annotations

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


def lost(run: Run) -> tuple[str, ...]:
    """What a dump by name does not keep, a line each."""
    kept = ["arrays alone are kept: no graph, no nonlinearities, no strides, no epsilon of batch norms"]
    if run.probes:
        kept.append("the probes stored with the run are left out")
    if len(run.checkpoints) > 1:
        kept.append(f"one checkpoint of {len(run.checkpoints)} is written: {run.checkpoint}")
    return tuple(kept)
