"""VGG and AlexNet of torchvision (Simonyan, Zisserman 2015; Krizhevsky 2014): which layers pool is told by the gaps in the
numbers of those that have weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from canon.errors import ShapeConflict
from canon.families.draft import Draft
from canon.families.family import Family
from canon.families.steps import Act, Affine, Image, Norm, Plain, Pool, spelled

RELU = Act("relu")


@dataclass(frozen=True)
class Features:
    """Convolutions, each with a batch norm if one is there, and a ReLU; a pooling where a number more is left out, and at the
    end. side: of the image that comes out of them.
    """

    side: int

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        keys = {key: re.fullmatch(r"features\.([0-9]{1,4})\.weight", key) for key in d.shapes}
        found = {int(m[1]): len(d.shape(key)) for key, m in keys.items() if m}
        convolutions = sorted(i for i, rank in found.items() if rank == 4)
        poolings = 1
        plan = []
        for i, following in zip(convolutions, [*convolutions[1:], None], strict=True):
            norm = i + 1 in found
            gap = 3 + norm if following is None else following - i
            if gap not in (2 + norm, 3 + norm):
                raise ShapeConflict(f"features.{following}.weight", f"comes {gap} after features.{i}.weight")
            plan.append((i, norm, gap == 3 + norm))
            poolings += gap == 3 + norm and following is not None
        x = Image("features.0", self.side * 2**poolings).run(d, x, at)
        for i, norm, pool in plan:
            x = Affine(f"features.{i}", window=3).run(d, x, at)
            x = Norm(f"features.{i + 1}").run(d, x, at) if norm else x
            x = RELU.run(d, x, f"features.{i}.")
            x = Pool("max_pool", 2, 2).run(d, x, f"features.{i}.") if pool else x
        return x


@dataclass(frozen=True)
class Classifier:
    """Dense layers with a ReLU after each but the last. numbers: theirs."""

    numbers: tuple[int, ...]

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        x = Plain("flatten").run(d, x, at)
        for i in self.numbers:
            name = spelled(d, at, f"classifier.{i}")
            x = Affine(name).run(d, x, at)
            x = RELU.run(d, x, f"{name}.") if i != self.numbers[-1] else x
        return x


_POOL = Pool("max_pool", 3, 2)

FAMILIES = (
    Family(
        "VGG (torchvision)",
        marks=(r"features\.0\.weight", r"classifier\.0\.weight", r"classifier\.3\.weight", r"classifier\.6\.weight"),
        steps=(Features(side=7), Classifier((0, 3, 6))),
        notes=("images of the size of which the pooling before its dense layers leaves every position",),
    ),
    Family(
        "AlexNet (torchvision)",
        marks=(r"features\.0\.weight", r"features\.10\.weight", r"classifier\.1\.weight", r"classifier\.4\.weight"),
        steps=(
            Image("features.0", 224),
            Affine("features.0", stride=4, padding=2, window=11), RELU, _POOL, Affine("features.3", window=5), RELU, _POOL,
            Affine("features.6", window=3), RELU, Affine("features.8", window=3), RELU, Affine("features.10", window=3), RELU,
            _POOL, Classifier((1, 4, 6)),
        ),
        notes=("images of 224 x 224, of which the pooling before its dense layers leaves every position",),
    ),
)  # fmt: skip
