"""The order of layers where a file does not keep it: the one in which their widths fit, if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from canon.formats.common_chain import Part
from canon.ops.base import Array

TRIED = 50_000
"""Partial orders of layers looked at before an order is given up."""
DEEPEST = 200


def only_order(parts: Sequence[Part], tensors: Mapping[str, Array], line_of: Callable[[str], str]) -> list[Part] | None:
    """The one order of layers whose widths fit one after the other; None for none and for several.

    line_of: what names have in common whose layers keep their order, which their numbers tell.
    """
    queues: dict[str, list[Part]] = {}
    for part in parts:
        queues.setdefault(line_of(part.name), []).append(part)
    lines = list(queues.values())
    found: list[list[Part]] = []
    looked = 0

    def extend(taken: tuple[int, ...], order: list[Part], width: int, flat: bool) -> bool:
        """Whether to go on looking."""
        nonlocal looked
        looked += 1
        if len(order) == len(parts):
            found.append(list(order))
        if len(found) > 1 or looked > TRIED:
            return False
        for i, line in enumerate(lines):
            if taken[i] == len(line):
                continue
            part = line[taken[i]]
            takes, gives, dense = widths(part, tensors)
            fits = not order or takes == width or (dense and not flat and width > 0 and takes % width == 0)
            if not fits or (flat and not dense and "mean" not in part.roles):
                continue
            further = (*taken[:i], taken[i] + 1, *taken[i + 1 :])
            if not extend(further, [*order, part], gives, dense or (flat and bool(order))):
                return False
        return True

    if len(parts) > DEEPEST:  # the search goes as deep, and so deep a network is ambiguous unless all is of one class
        return list(parts) if len(lines) == 1 else None
    extend((0,) * len(lines), [], 0, False)
    return found[0] if len(found) == 1 and looked <= TRIED else None


def widths(part: Part, tensors: Mapping[str, Array]) -> tuple[int, int, bool]:
    """What a layer takes in and gives out, and whether it is dense."""
    shapes = {role: tensors[t].shape for role, t in part.roles.items()}
    if "embeddings" in shapes:
        return -1, shapes["embeddings"][1], False
    if "recurrent_kernel" in shapes:
        return int(shapes["kernel"][0]), int(shapes["recurrent_kernel"][0]), False
    if "kernel" in shapes:
        kernel = shapes["kernel"]
        return (kernel[1], kernel[0], len(kernel) == 2) if len(kernel) >= 2 else (-1, -1, False)
    if "depthwise" in shapes:
        out = shapes["depthwise"][0]
        return out, shapes["pointwise"][0] if "pointwise" in shapes else out, False
    width = int(np.prod(next(iter(shapes.values()))))
    return width, width, False
