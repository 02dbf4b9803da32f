"""ResNet, ResNeXt and wide ResNet of torchvision (He et al. 2016; Xie et al. 2017; Zagoruyko, Komodakis 2016)."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Act, Affine, GlobalPool, If, Image, Norm, Pool, Repeat, Steps, Sum

RELU = Act("relu")


def _block(stride: int) -> Steps:
    basic = (Affine("conv1", stride), Norm("bn1"), RELU, Affine("conv2"), Norm("bn2"))
    bottleneck = (Affine("conv1"), Norm("bn1"), RELU, Affine("conv2", stride), Norm("bn2"), RELU, Affine("conv3"), Norm("bn3"))
    skip = (If("downsample.0.weight", (Affine("downsample.0", stride, padding=0), Norm("downsample.1"))),)
    return (Sum((If("conv3.weight", bottleneck, basic),), skip), RELU)


def _stage(number: int) -> Repeat:
    return Repeat(f"layer{number}.{{}}.", _block(1), first=_block(1 if number == 1 else 2))


FAMILIES = (
    Family(
        "ResNet (torchvision)",
        marks=(r"conv1\.weight", r"bn1\.running_mean", r"layer1\.0\.conv1\.weight", r"layer4\.0\.bn1\.weight"),
        steps=(
            Image("conv1"), Affine("conv1", stride=2, window=7), Norm("bn1"), RELU, Pool("max_pool", 3, 2, padding=1),
            *map(_stage, (1, 2, 3, 4)),
            GlobalPool(), If("fc.weight", (Affine("fc"),)),
        ),
    ),
)  # fmt: skip
