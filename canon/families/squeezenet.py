"""SqueezeNet 1.0 and 1.1 of torchvision (Iandola et al. 2016)."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Act, Affine, Concat, GlobalPool, Image, Pool, Within

RELU = Act("relu")
POOL = Pool("max_pool", 3, 2, ceil=True)


def _fire(number: int) -> Within:
    branches = tuple((Affine(name), RELU) for name in ("expand1x1", "expand3x3"))
    return Within((f"features.{number}.",), "", (Affine("squeeze"), RELU, Concat(branches)))


def _family(name: str, window: int, pools: tuple[int, ...]) -> Family:
    """pools: the numbers of the poolings among the layers."""
    return Family(
        name,
        marks=(
            r"features\.0\.weight",
            *(rf"features\.{n}\.squeeze\.weight" for n in range(3, 13) if n not in pools),
            r"classifier\.1\.weight",
        ),
        steps=(
            Image("features.0"), Affine("features.0", stride=2, padding=0, window=window), RELU, POOL,
            *(POOL if n in pools else _fire(n) for n in range(3, 13)),
            Affine("classifier.1"), RELU, GlobalPool(),
        ),
    )  # fmt: skip


FAMILIES = (_family("SqueezeNet 1.0 (torchvision)", 7, (6, 11)), _family("SqueezeNet 1.1 (torchvision)", 3, (5, 8)))
