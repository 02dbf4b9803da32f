"""ShuffleNet V2 of torchvision (Ma et al. 2018)."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Act, Affine, Concat, GlobalPool, Half, Image, Norm, Plain, Pool, Repeat, Steps, Within

RELU = Act("relu")
SHUFFLE = Plain("channel_shuffle", {"groups": 2, "axis": 0})


def _right(stride: int) -> Steps:
    layers = (Affine("0"), Norm("1"), RELU, Affine("3", stride), Norm("4"), Affine("5"), Norm("6"), RELU)
    return (Within(("branch2.",), "", layers),)


LEFT: Steps = (Within(("branch1.",), "", (Affine("0", 2), Norm("1"), Affine("2"), Norm("3"), RELU)),)

FAMILIES = (
    Family(
        "ShuffleNet V2 (torchvision)",
        marks=(r"conv1\.0\.weight", r"stage2\.0\.branch1\.0\.weight", r"stage4\.0\.branch2\.0\.weight", r"conv5\.0\.weight"),
        steps=(
            Image("conv1.0"), Affine("conv1.0", stride=2, window=3), Norm("conv1.1"), RELU, Pool("max_pool", 3, 2, padding=1),
            *(
                Repeat(
                    f"stage{n}.{{}}.",
                    (Concat(((Half(second=False),), (Half(second=True), *_right(1)))), SHUFFLE),
                    first=(Concat((LEFT, _right(2))), SHUFFLE),
                )
                for n in (2, 3, 4)
            ),
            Affine("conv5.0"), Norm("conv5.1"), RELU, GlobalPool(), Affine("fc"),
        ),
    ),
)  # fmt: skip
