"""ConvNeXt of torchvision (Liu et al. 2022)."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Act, Affine, GlobalPool, Image, Norm, Plain, Repeat, Scale, Steps, Sum, Within

FIRST, LAST = Plain("permute", {"dims": [2, 0, 1]}), Plain("permute", {"dims": [1, 2, 0]})
"""Channels moved to the front, and to the end."""


def _norm(name: str, axis: int) -> Norm:
    return Norm(name, "layer_norm", 1e-6, axis=axis)


BLOCK: Steps = (
    Sum((
        Affine("block.0", window=7), LAST, _norm("block.2", -1), Affine("block.3"), Act("gelu"), Affine("block.5"), FIRST,
        Scale("layer_scale"),
    )),
)  # fmt: skip


def _stage(number: int) -> Steps:
    down = Within((f"features.{number - 1}.",), "", (_norm("0", 0), Affine("1", stride=2, padding=0, window=2)))
    return (*((down,) if number > 1 else ()), Repeat(f"features.{number}.{{}}.", BLOCK))


FAMILIES = (
    Family(
        "ConvNeXt (torchvision)",
        marks=(r"features\.0\.0\.weight", r"features\.1\.0\.layer_scale", r"features\.7\.0\.block\.0\.weight"),
        steps=(
            Image("features.0.0"), Affine("features.0.0", stride=4, padding=0, window=4), _norm("features.0.1", 0),
            *(step for number in (1, 3, 5, 7) for step in _stage(number)),
            GlobalPool(), _norm("classifier.0", -1), Affine("classifier.2"),
        ),
    ),
)  # fmt: skip
