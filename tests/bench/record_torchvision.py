"""Writes tests/torchvision_nets.json again: names, shapes and outputs of torchvision's own networks.

    python tests/bench/record_torchvision.py

torchvision is too heavy to be a dependency of the tests, so what it computes is recorded once: small networks with weights
that a formula gives (filled), on an input that it gives too, and of full-size networks the names and shapes alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vgg import VGG, make_layers
from torchvision.models.vision_transformer import VisionTransformer

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_families_torchvision import FILE, filled, pixels


def vgg(norm: bool) -> torch.nn.Module:
    """Narrow, with small dense layers behind the usual pooling."""
    made = VGG(make_layers([4, "M", 6, "M", 6, 8, "M", 8, "M", 8, "M"], batch_norm=norm), num_classes=5)
    for i, (inner, outer) in {0: (8 * 49, 12), 3: (12, 12), 6: (12, 5)}.items():
        made.classifier[i] = torch.nn.Linear(inner, outer)
    return made


def alexnet() -> torch.nn.Module:
    """With small dense layers."""
    made = models.alexnet(num_classes=5)
    for i, (inner, outer) in {1: (256 * 36, 12), 4: (12, 12), 6: (12, 5)}.items():
        made.classifier[i] = torch.nn.Linear(inner, outer)
    return made


def convnext() -> torch.nn.Module:
    """Four stages of one or two blocks."""
    widths = [(8, 12, 2), (12, 16, 1), (16, 20, 1), (20, None, 1)]
    return ConvNeXt([CNBlockConfig(*width) for width in widths], num_classes=5)


def efficientnet(fused: bool, first: int) -> torch.nn.Module:
    """first: blocks of the first stage; the epsilon is that of the published networks with as many."""
    plain = [(1, 3, 1, first), (6, 3, 2, 2), (6, 5, 2, 1), (6, 3, 2, 1), (6, 5, 1, 1), (6, 5, 2, 1), (6, 3, 1, 1)]
    widths = (8, 8, 16, 16, 24, 24, 24, 32)
    kinds = [FusedMBConvConfig] * 3 + [MBConvConfig] * 3 if fused else [MBConvConfig] * 7
    setting = [
        kind(1 if i == 0 else 4 if fused else expand, kernel, stride, widths[i], widths[i + 1], layers)
        for i, (kind, (expand, kernel, stride, layers)) in enumerate(zip(kinds, plain, strict=False))
    ]
    norm = partial(torch.nn.BatchNorm2d, eps=1e-3 if fused or first > 2 else 1e-5)
    return EfficientNet(setting, dropout=0.0, num_classes=5, norm_layer=norm)


SMALL: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, int], dict[str, Any]]] = {
    "resnet, basic": (lambda: ResNet(BasicBlock, [2, 1, 1, 1], num_classes=5), (45, 40), {}),
    "resnet, bottleneck": (lambda: ResNet(Bottleneck, [1, 2, 1, 1], num_classes=5), (33, 40), {}),
    "resnext": (lambda: ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5, groups=4, width_per_group=8), (33, 40), {}),
    "vgg": (lambda: vgg(False), (224, 224), {}),
    "vgg, batch norms": (lambda: vgg(True), (224, 224), {}),
    "alexnet": (alexnet, (224, 224), {}),
    "densenet": (lambda: DenseNet(4, (2, 3, 2, 2), 8, num_classes=5), (64, 70), {}),
    "mobilenet v2": (lambda: models.mobilenet_v2(width_mult=0.1, num_classes=5), (64, 50), {}),
    "mobilenet v3 large": (lambda: models.mobilenet_v3_large(width_mult=0.1, num_classes=5), (64, 50), {}),
    "mobilenet v3 small": (lambda: models.mobilenet_v3_small(width_mult=0.1, num_classes=5), (64, 50), {}),
    "efficientnet": (lambda: efficientnet(False, 1), (40, 33), {}),
    "efficientnet, from b5 on": (lambda: efficientnet(False, 3), (40, 33), {}),
    "efficientnet v2": (lambda: efficientnet(True, 2), (40, 33), {}),
    "squeezenet 1.0": (lambda: models.squeezenet1_0(num_classes=5), (70, 64), {}),
    "squeezenet 1.1": (lambda: models.squeezenet1_1(num_classes=5), (65, 64), {}),
    "shufflenet": (lambda: models.ShuffleNetV2([2, 2, 1], [8, 8, 16, 24, 32], num_classes=5), (64, 50), {}),
    "convnext": (convnext, (64, 70), {}),
    "vit": (lambda: VisionTransformer(32, 8, 2, 3, 12, 24, num_classes=5), (32, 32), {"heads": 3}),
}  # fmt: skip
FULL: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            "resnet18", "resnet50", "vgg16_bn", "densenet121", "mobilenet_v2", "mobilenet_v3_large", "convnext_tiny",
            "efficientnet_v2_s",
        )
    },
    "vit_b_16": {"heads": 12},
}  # fmt: skip


def shapes(state: dict[str, torch.Tensor]) -> str:
    """One word a tensor: its name without the layer's where that is the last one's, and its shape."""
    words, last = [], ""
    for name, t in state.items():
        layer, _, role = name.rpartition(".")
        words.append((role if layer == last else f"{layer}:{role}") + "=" + "x".join(map(str, t.shape)))
        last = layer
    return " ".join(words)


def main() -> None:
    """Record."""
    found: dict[str, Any] = {"torchvision": torchvision.__version__.partition("+")[0], "small": {}, "full": {}}
    for name, (make, size, told) in SMALL.items():
        model = make().double().eval()
        state = {key: t for key, t in model.state_dict().items() if t.is_floating_point()}
        with torch.no_grad():
            for key, t in state.items():
                t.copy_(torch.from_numpy(filled(key, tuple(t.shape))))
            y = model(torch.from_numpy(pixels((2, 3, *size)))).numpy()
        assert y.std() > 1e-3 * np.abs(y).max(), name
        found["small"][name] = {"shapes": shapes(state), "size": size, "told": told, "y": y.tolist()}
    for name, told in FULL.items():
        with torch.device("meta"):
            state = models.get_model(name).state_dict()
        kept = {key: t for key, t in state.items() if t.is_floating_point()}
        found["full"][name] = {"shapes": shapes(kept), "told": told, "parameters": sum(t.numel() for t in kept.values())}
    FILE.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
