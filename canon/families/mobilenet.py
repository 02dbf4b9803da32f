"""MobileNet V2 and V3 of torchvision (Sandler et al. 2018; Howard et al. 2019).

Strides and nonlinearities are those of the published networks, block by block; widths may be any.
"""

from __future__ import annotations

from dataclasses import dataclass

from canon.errors import ShapeConflict
from canon.families.draft import Draft
from canon.families.family import Family
from canon.families.steps import Act, Affine, Gate, GlobalPool, If, Image, Norm, Residual, Steps, Within

RELU6 = Act("relu6")
STRIDES_V2 = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)

_R, _H = "relu", "hard_swish"
LARGE = ((_R, 1), (_R, 2), (_R, 1), (_R, 2), (_R, 1), (_R, 1), (_H, 2), (_H, 1), (_H, 1), (_H, 1), (_H, 1), (_H, 1), (_H, 2),
         (_H, 1), (_H, 1))  # fmt: skip
SMALL = ((_R, 2), (_R, 2), (_R, 1), (_H, 2), (_H, 1), (_H, 1), (_H, 1), (_H, 1), (_H, 2), (_H, 1), (_H, 1))
"""Nonlinearity and stride of each block of V3."""


@dataclass(frozen=True)
class Inverted:
    """Convolutions block.0, block.1 ... with batch norms, the last without a nonlinearity; squeeze-excitation where one of them
    is two layers fc1 and fc2. The stride is that of the convolution with a window.

    squeeze: the nonlinearities inside the squeeze-excitation.
    """

    act: str
    stride: int
    squeeze: tuple[str, str]
    eps: float | str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        n = d.count(f"{at}block.{{}}.")
        if not n:
            raise ShapeConflict(f"{at}block.0.0.weight", "is not there")
        for k in range(n):
            front = f"{at}block.{k}."
            if d.has(f"{front}fc1.weight"):
                inner, outer = (Act(name) for name in self.squeeze)
                gate = Gate((GlobalPool(keepdims=True), Affine("fc1"), inner, Affine("fc2"), outer))
                x = gate.run(d, x, front)
                continue
            window = max(d.shape(f"{front}0.weight")[2:], default=1)
            x = Affine("0", self.stride if window > 1 else 1).run(d, x, front)
            x = Norm("1", eps=self.eps).run(d, x, front)
            x = Act(self.act).run(d, x, front) if k < n - 1 or n == 1 else x
        return x


def _v2(number: int, stride: int) -> Within:
    narrow: Steps = (Affine("0.0", stride), Norm("0.1"), RELU6, Affine("1"), Norm("2"))
    wide: Steps = (Affine("0.0"), Norm("0.1"), RELU6, Affine("1.0", stride), Norm("1.1"), RELU6, Affine("2"), Norm("3"))
    block = Within(("conv.",), "", (If("3.weight", wide, narrow),))
    return Within((f"features.{number}.",), "", (Residual((block,), stride),))


def _v3(name: str, blocks: tuple[tuple[str, int], ...]) -> Family:
    last = len(blocks) + 1
    return Family(
        name,
        marks=(r"features\.1\.block\.0\.0\.weight", rf"features\.{last}\.0\.weight", r"classifier\.3\.weight"),
        steps=(
            Image("features.0.0"), Affine("features.0.0", stride=2, window=3), Norm("features.0.1", eps=1e-3), Act(_H),
            *(
                Within((f"features.{i}.",), "", (Residual((Inverted(act, stride, ("relu", "hard_sigmoid"), 1e-3),), stride),))
                for i, (act, stride) in enumerate(blocks, 1)
            ),
            Affine(f"features.{last}.0"), Norm(f"features.{last}.1", eps=1e-3), Act(_H), GlobalPool(),
            Affine("classifier.0"), Act(_H), Affine("classifier.3"),
        ),
    )  # fmt: skip


FAMILIES = (
    Family(
        "MobileNet V2 (torchvision)",
        marks=(r"features\.1\.conv\.0\.0\.weight", r"features\.18\.0\.weight", r"classifier\.1\.weight"),
        steps=(
            Image("features.0.0"), Affine("features.0.0", stride=2, window=3), Norm("features.0.1"), RELU6,
            *(_v2(i, stride) for i, stride in enumerate(STRIDES_V2, 1)),
            Affine("features.18.0"), Norm("features.18.1"), RELU6, GlobalPool(), Affine("classifier.1"),
        ),
    ),
    _v3("MobileNet V3 large (torchvision)", LARGE),
    _v3("MobileNet V3 small (torchvision)", SMALL),
)  # fmt: skip
