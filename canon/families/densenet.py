"""DenseNet of torchvision (Huang et al. 2017), with the names of its layers from before and after 2019."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Act, Affine, Concat, GlobalPool, If, Image, Norm, Pool, Repeat, Steps, Within

RELU = Act("relu")
LAYER: Steps = (
    Norm("norm1|norm.1"), RELU, Affine("conv1|conv.1"), Norm("norm2|norm.2"), RELU, Affine("conv2|conv.2"),
)  # fmt: skip


def _stage(number: int) -> Steps:
    block = Repeat(f"features.denseblock{number}.denselayer{{}}.", (Concat(((), LAYER)),), start=1)
    front = f"features.transition{number}."
    between = Within((front,), "", (Norm("norm"), RELU, Affine("conv"), Pool("avg_pool", 2, 2)))
    return (If(f"features.denseblock{number}.denselayer1.norm1.weight|features.denseblock{number}.denselayer1.norm.1.weight",
               (block, If(f"{front}conv.weight", (between,)))),)  # fmt: skip


FAMILIES = (
    Family(
        "DenseNet (torchvision)",
        marks=(r"features\.conv0\.weight", r"features\.denseblock1\.denselayer1\.norm\.?1\.weight", r"features\.norm5\.weight"),
        steps=(
            Image("features.conv0"), Affine("features.conv0", stride=2, window=7), Norm("features.norm0"), RELU,
            Pool("max_pool", 3, 2, padding=1),
            *(step for number in range(1, 9) for step in _stage(number)),
            Norm("features.norm5"), RELU, GlobalPool(), If("classifier.weight", (Affine("classifier"),)),
        ),
    ),
)  # fmt: skip
