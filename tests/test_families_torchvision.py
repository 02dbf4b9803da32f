"""Families of torchvision: its own outputs, recorded once with weights that a formula gives, and names and shapes in full.

tests/bench/record_torchvision.py wrote torchvision_nets.json; torchvision itself is not needed here.
"""

from __future__ import annotations

import json
import re
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from family_nets import assert_same, distance, outputs
from numpy.typing import NDArray

from canon.errors import UsageError
from canon.families import FAMILIES, Known, Nearest, recognise
from canon.families.family import draw
from canon.formats.common import Request
from canon.formats.common_named import Named, read_named
from canon.network import Network
from canon.run import Run

Floats = NDArray[np.float64]
FILE = Path(__file__).parent / "torchvision_nets.json"


def noise(name: str, n: int) -> Floats:
    """n numbers between -1 and 1 that look random, from a name: the same everywhere."""
    mixed = (np.arange(n, dtype=np.uint64) * 2654435761 + crc32(name.encode())) % 2**32
    mixed = (mixed ^ (mixed >> np.uint64(15))) * 2246822519 % 2**32
    return mixed / 2.0**31 - 1.0


def filled(name: str, shape: tuple[int, ...]) -> Floats:
    """The values of a tensor, of a size that keeps those of the network of order one."""
    z = noise(name, prod(shape)).reshape(shape)
    if name.endswith("running_var"):
        return 1.5 + z
    if len(shape) < 2 or name.endswith("layer_scale"):
        return 0.3 * z + float("weight" in name)
    return z * (2.5 / prod(shape[1:])) ** 0.5


def pixels(shape: tuple[int, ...]) -> Floats:
    """The input."""
    return 1.7 * noise("pixels", prod(shape)).reshape(shape)


def unpacked(said: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes as the file has them."""
    found, layer = {}, ""
    for word in said.split(" "):
        name, _, shape = word.partition("=")
        front, colon, role = name.rpartition(":")
        layer = front if colon else layer
        found[f"{layer}.{role}" if layer else role] = tuple(map(int, shape.split("x")))
    return found


RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def run_of(shapes: dict[str, tuple[int, ...]], **told: Any) -> Run:
    held = {name: Named(name, shape, np.dtype(np.float64), partial(filled, name, shape)) for name, shape in shapes.items()}
    return read_named(held, "test", Path("net"), Request(options=told))


@pytest.mark.parametrize("name", RECORDED["small"])
def test_computes_what_torchvision_computed(name: str) -> None:
    said = RECORDED["small"][name]
    run = run_of(unpacked(said["shapes"]), **said["told"])
    assert (run.graph, run.activations_known) == ("family", True)
    assert_same(outputs(run, {"image": pixels((2, 3, *said["size"]))}), [said["y"]])


@pytest.mark.parametrize("name", RECORDED["full"])
def test_full_size_networks_are_known_by_names_and_shapes(name: str) -> None:
    said = RECORDED["full"][name]
    shapes = unpacked(said["shapes"])
    known = recognise(shapes, None, said["told"])
    assert isinstance(known, Known)
    assert name.startswith(known.family.partition(" ")[0].lower())
    assert {key for source in known.sources.values() for key in source.keys} == set(shapes)
    # arrays without memory: the shapes of every value follow
    blank = {t: np.broadcast_to(np.float32(0), size) for t, size in known.sizes.items()}
    network = Network(blank, known.ops, known.inputs, known.outputs)
    assert network.parameters == said["parameters"]
    assert network.shapes[network.outputs[0]] == (1000,)
    fits = [f.name for f in FAMILIES if f.may_be(shapes) and isinstance(draw(f, shapes, None, said["told"]), Known)]
    assert fits == [known.family]


def test_heads_are_asked_for() -> None:
    shapes = unpacked(RECORDED["small"]["vit"]["shapes"])
    with pytest.raises(UsageError, match="do not tell heads"):
        run_of(shapes)
    said = RECORDED["small"]["vit"]
    wrong = run_of(shapes, heads=4)
    assert distance(outputs(wrong, {"image": pixels((2, 3, *said["size"]))})[0], said["y"]) > 1e-3
    with pytest.raises(UsageError, match="5 heads"):
        run_of(shapes, heads=5)


@pytest.mark.parametrize(
    ("name", "key", "shape", "first"),
    [
        ("resnet, basic", "conv1.weight", (64, 3, 3, 3), "conv1.weight"),  # another stem: its stride cannot be told
        ("resnet, basic", "layer1.0.se.fc1.weight", (4, 64, 1, 1), "layer1.0.se.fc1.weight"),
        ("resnet, basic", "layer3.0.bn2.weight", (255,), "layer3.0.bn2"),
        ("vgg", "features.2.weight", (6, 4, 3, 3), "features.3.weight"),  # no layer between the two
        ("vgg", "features.3.weight", (6, 4, 5, 5), "features.3.weight"),
        ("densenet", "features.transition1.conv.weight", (8, 17, 1, 1), "features.transition1.conv"),
        ("mobilenet v2", "features.3.conv.1.0.weight", (9, 1, 3, 3), "features.3.conv.1.0"),
        ("vit", "encoder.pos_embedding", (1, 15, 12), "encoder.pos_embedding"),
        ("squeezenet 1.1", "features.0.weight", (64, 3, 7, 7), "features.0.weight"),
    ],
)
def test_what_does_not_fit_is_named(name: str, key: str, shape: tuple[int, ...], first: str) -> None:
    shapes = unpacked(RECORDED["small"][name]["shapes"])
    found = recognise({**shapes, key: shape}, None, RECORDED["small"][name]["told"])
    assert isinstance(found, Nearest)
    assert found.key.startswith(first)


def test_older_names() -> None:
    """DenseNet before 2019 and ViT before 2022 named some layers otherwise."""
    for name, pattern, old in (
        ("densenet", r"(norm|conv)([12])\.(weight|bias|running_\w+)$", r"\1.\2.\3"),
        ("vit", r"mlp\.(0|3)\.", lambda m: f"mlp.linear_{1 if m[1] == '0' else 2}."),
    ):
        said = RECORDED["small"][name]
        names = {key: re.sub(pattern, old, key) if "dense" in key or "mlp" in key else key for key in unpacked(said["shapes"])}
        assert list(names) != list(names.values())
        shapes = {names[key]: shape for key, shape in unpacked(said["shapes"]).items()}
        known = recognise(shapes, None, said["told"])
        assert isinstance(known, Known)
        assert len(known.sources) == len(shapes)
