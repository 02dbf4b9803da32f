"""The three networks of MTCNN in facenet_pytorch (Zhang et al. 2016): P-Net, R-Net and O-Net."""

from __future__ import annotations

from canon.families.family import Family
from canon.families.steps import Affine, Image, Output, Plain, Pool, PRelu, Step, Steps


def _layer(number: int, window: int, pool: tuple[int, int] | None) -> Steps:
    """A convolution without padding, a slope a channel, and a pooling (its window, its stride)."""
    pooling: Steps = () if pool is None else (Pool("max_pool", *pool, ceil=True),)
    return (Affine(f"conv{number}", padding=0, window=window), PRelu(f"prelu{number}"), *pooling)


def _outputs(kind: str, last: int, axis: int) -> Steps:
    """Where the face is, whether it is one, and where its parts are."""
    found: list[Step] = [Output((Affine(f"{kind}{last}_2"),))]
    if last == 6:
        found.append(Output((Affine(f"{kind}{last}_3"),)))
    return (*found, Output((Affine(f"{kind}{last}_1"), Plain("softmax", {"axis": axis}))))


def _dense(number: int) -> Steps:
    """Positions are flattened width first, as the network was taken over from another framework."""
    return (Plain("permute", {"dims": [2, 1, 0]}), Plain("flatten"), Affine(f"dense{number}"), PRelu(f"prelu{number}"))


def _marks(*names: str) -> tuple[str, ...]:
    return tuple(rf"{name}\.weight" for name in names)


FAMILIES = (
    Family(
        "MTCNN P-Net (facenet_pytorch)",
        marks=_marks("conv1", "prelu1", "conv3", "conv4_1", "conv4_2"),
        steps=(
            Image("conv1"), *_layer(1, 3, (2, 2)), *_layer(2, 3, None), *_layer(3, 3, None), *_outputs("conv", 4, 0),
        ),
    ),
    Family(
        "MTCNN R-Net (facenet_pytorch)",
        marks=_marks("conv1", "prelu1", "conv3", "dense4", "dense5_1", "dense5_2"),
        steps=(
            Image("conv1", 24), *_layer(1, 3, (3, 2)), *_layer(2, 3, (3, 2)), *_layer(3, 2, None), *_dense(4),
            *_outputs("dense", 5, -1),
        ),
    ),
    Family(
        "MTCNN O-Net (facenet_pytorch)",
        marks=_marks("conv1", "prelu1", "conv4", "dense5", "dense6_1", "dense6_3"),
        steps=(
            Image("conv1", 48), *_layer(1, 3, (3, 2)), *_layer(2, 3, (3, 2)), *_layer(3, 3, (2, 2)), *_layer(4, 2, None),
            *_dense(5), *_outputs("dense", 6, -1),
        ),
    ),
)  # fmt: skip
