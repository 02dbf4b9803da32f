"""Known families: the graph of a state dict from its names and shapes alone, one small table a family.

A table (resnet.py, bert.py ...) lists steps (steps.py, attending.py) that name the file's tensors; what they cannot tell is
settled from the config.json beside the file, or an option, and asked for where neither is there (told.py). A file is of a
family only if every key is accounted for: used by a step, or a buffer of that family. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from canon.families import (
    bert,
    convnext,
    densenet,
    efficientnet,
    gpt2,
    llama,
    lora,
    lpips,
    mobilenet,
    mtcnn,
    policies,
    resnet,
    shufflenet,
    squeezenet,
    t5,
    vgg,
    vit,
)
from canon.families.draft import Shapes, Source
from canon.families.family import Family, Known, Nearest, draw

__all__ = ["FAMILIES", "Family", "Known", "Nearest", "Source", "recognise"]

FAMILIES: tuple[Family, ...] = (
    *resnet.FAMILIES, *vgg.FAMILIES, *densenet.FAMILIES, *mobilenet.FAMILIES, *efficientnet.FAMILIES, *convnext.FAMILIES,
    *squeezenet.FAMILIES, *shufflenet.FAMILIES, *vit.FAMILIES, *bert.FAMILIES, *gpt2.FAMILIES, *llama.FAMILIES, *t5.FAMILIES,
    *policies.FAMILIES, *lora.FAMILIES, *mtcnn.FAMILIES, *lpips.FAMILIES,
)  # fmt: skip


def recognise(
    shapes: Shapes,
    config: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    families: Sequence[Family] = FAMILIES,
    blank: bool = False,
) -> Known | Nearest | None:
    """The graph of a state dict, or the family that it comes nearest to, or None where it is like none of them.

    shapes: its keys, in the file's order, each with the shape of its array; config: the config.json beside it;
    options: what was told, by name (heads, kv_heads, eps, activation, rope_theta, rope_layout, model_type);
    blank: leave blank what is not told, where the tensors alone are wanted and their graph comes from elsewhere.
    Raises UsageError for what only config.json or an option can tell, naming it and both ways.
    """
    nearest: Nearest | None = None
    for family in families:
        if not family.may_be(shapes):
            continue
        found = draw(family, shapes, config, options or {}, blank)
        if isinstance(found, Known):
            return found
        if nearest is None or found.used > nearest.used:
            nearest = found
    return nearest
