"""EfficientNet B0 to B7 and V2 of torchvision (Tan, Le 2019 and 2021).

Strides are those of the published networks, stage by stage. The epsilon of batch norms is 1e-5 up to B4 and 1e-3 from B5 on,
whose first stage has three blocks or more, and in V2, whose first stage has no depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.families.draft import Shapes
from canon.families.family import Family
from canon.families.mobilenet import Inverted
from canon.families.steps import Act, Affine, GlobalPool, Image, Norm, Repeat, Residual
from canon.families.told import Told

STRIDES = (1, 2, 2, 2, 1, 2, 1)


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    fused = len(shapes["features.1.0.block.0.0.weight"]) == 4 and shapes["features.1.0.block.0.0.weight"][1] > 1
    return {"eps": 1e-3 if fused or "features.1.2.block.0.0.weight" in shapes else 1e-5}


def _family(name: str, stages: int) -> Family:
    def stage(number: int, stride: int) -> Repeat:
        first, rest = ((Residual((Inverted("silu", s, ("silu", "sigmoid"), "eps"),), s),) for s in (stride, 1))
        return Repeat(f"features.{number}.{{}}.", rest, first=first)

    last = stages + 1
    return Family(
        name,
        marks=(r"features\.1\.0\.block\.0\.0\.weight", rf"features\.{last}\.0\.weight", r"classifier\.1\.weight"),
        steps=(
            Image("features.0.0"), Affine("features.0.0", stride=2, window=3), Norm("features.0.1", eps="eps"), Act("silu"),
            *(stage(i, stride) for i, stride in enumerate(STRIDES[:stages], 1)),
            Affine(f"features.{last}.0"), Norm(f"features.{last}.1", eps="eps"), Act("silu"), GlobalPool(),
            Affine("classifier.1"),
        ),
        settle=_settle,
    )  # fmt: skip


FAMILIES = (_family("EfficientNet (torchvision)", 7), _family("EfficientNet V2 S (torchvision)", 6))
