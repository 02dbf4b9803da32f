"""bfloat16 in HDF5, which has no word for it: two bytes without a type, as Keras writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from canon.formats.common import node
from canon.formats.common_layout import Stack
from canon.precision import BFLOAT16
from canon.run import Run, Stored


def with_precision(f: Any, run: Run) -> Run:
    """The run read from an open HDF5 file, with the tensors marked that the file holds in bfloat16."""
    found = {tensor: BFLOAT16 for tensor, place in run.layout.items() if any(map(_is_bfloat16, _datasets(f, place)))}
    if not found:
        return run
    networks = [replace(network, precision=found) for network in (run.network, *run.alternatives)]
    return replace(run, network=networks[0], alternatives=tuple(networks[1:]))


def _datasets(f: Any, place: Stored) -> list[Any]:
    return [node(f, part.path) for part in (place.parts if isinstance(place, Stack) else (place,))]


def _is_bfloat16(dataset: Any) -> bool:
    return dataset is not None and dataset.dtype.kind == "V"
