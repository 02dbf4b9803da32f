"""Back to the stored types, and the proof that what will be written computes the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from canon.compare.check import Agreement, agree, probes, run_on
from canon.compare.comparing import rounding
from canon.errors import NumericError
from canon.network import Network
from canon.ops.base import Array
from canon.precision import BFLOAT16, as_stored


def cast(network: Network, like: Network) -> Network:
    """Every tensor in the type it was stored in. Raises NumericError where a value leaves that type's range."""
    out: dict[str, Array] = {}
    precision: dict[str, str] = {}
    for name, t in network.tensors.items():
        wanted = like.stored_type(name) if name in like.tensors else like.main_type
        if wanted == BFLOAT16:
            precision[name] = wanted
        elif t.dtype == np.dtype(wanted):
            out[name] = t
            continue
        with np.errstate(over="ignore", under="ignore"):
            stored = as_stored(t, wanted)
        if not np.isfinite(stored).all():
            raise NumericError(
                name,
                f"values as large as {np.abs(t).max():.3g} do not fit {wanted}",
                "Convert the file to a wider type first.",
            )
        out[name] = stored
    return replace(network, tensors=out, precision=precision)


def proved(original: Network, moved: Network, seed: int) -> Agreement:
    """Run both; raises NumericError when they do not compute the same."""
    sets = probes(original, None, seed)
    order = list(original.inputs)
    found = agree(run_on(original, sets, order), run_on(moved, sets, order), rounding(moved), sets)
    if found.deviation is not None and found.deviation > 1:
        raise NumericError(
            "",
            f"the moved network's outputs differ by {found.deviation:.3g} times the rounding bound: nothing was written",
            "Please report this file's architecture.",
        )
    return found
