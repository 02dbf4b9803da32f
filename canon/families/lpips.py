"""LPIPS (Zhang et al. 2018): weights of the differences between features, one layer of a network each, whose features are
its inputs here. The distance is the sum over layers of the mean over positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from canon.errors import ShapeConflict
from canon.families.draft import Draft
from canon.families.family import Family
from canon.families.steps import Affine, GlobalPool


@dataclass(frozen=True)
class Distances:
    """The weighted squared differences of each layer's features, and their sum."""

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        found = []
        for i in range(d.count("lin{}.model.")):
            name = f"lin{i}.model.1"
            shape = d.shape(f"{name}.weight")
            if len(shape) != 4 or (shape[0], *shape[2:]) != (1, 1, 1):
                raise ShapeConflict(f"{name}.weight", f"of shape {shape} is no weight a channel")
            x = d.input(f"squared differences {i}", (shape[1], None, None))
            found.append(GlobalPool().run(d, Affine(name, window=1).run(d, x, at), f"lin{i}."))
        return d.add("add", "distance", found) if len(found) > 1 else found[0]


FAMILIES = (Family("LPIPS", marks=(r"lin0\.model\.1\.weight", r"lin1\.model\.1\.weight"), steps=(Distances(),)),)
