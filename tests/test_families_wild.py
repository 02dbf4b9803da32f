"""State dicts that no one on this project made: each is of a family, or falls back with its reason; outputs by torch.

CANON_REAL_FILES: their folder; CANON_REAL_OUTPUTS: outputs computed by the frameworks, one archive a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_nets import assert_same, outputs

from canon.errors import NotFinite
from canon.families import Family, Known, recognise
from canon.families.draft import Draft
from canon.families.steps import Act, Affine, Image, Norm, Output, Plain, Pool, Repeat, Steps, Sum
from canon.formats import read
from canon.network import Network

FILES, OUTPUTS = (os.environ.get(name) for name in ("CANON_REAL_FILES", "CANON_REAL_OUTPUTS"))
pytestmark = pytest.mark.skipif(not FILES, reason="CANON_REAL_FILES is not set")
CLOSE = 1e-5
"""Of the largest output: torch computed in float32."""

KNOWN = {
    "rl-agents/a2c__*": ("actor-critic policy (stable-baselines3)", "tanh"),
    "rl-agents/ars__*": ("ARS policy (stable-baselines3 contrib)", "relu"),
    "pypi-facenet/pnet.pt": ("MTCNN P-Net (facenet_pytorch)", None),
    "pypi-facenet/rnet.pt": ("MTCNN R-Net (facenet_pytorch)", None),
    "pypi-lpips/*.pth": ("LPIPS", None),
}
"""Patterns of files, the family, and the activation that their source has."""
UNKNOWN = ("pt-alphazero/*.pth", "pypi-attacut/*.pth", "pypi-silero/*.safetensors", "torch-in-h5-mcnn/final*.h5")


def paths(*patterns: str) -> list[Path]:
    return sorted(p for pattern in patterns for p in Path(FILES or "nowhere").glob(pattern)) if FILES else []


def oracle(path: Path) -> dict[str, Any]:
    found = Path(OUTPUTS or "nowhere") / f"{path.parent.name}__{path.name}.npz"
    if not found.is_file():
        return {}
    with np.load(found) as stored:
        return dict(stored)


def of(path: Path) -> tuple[str, str | None]:
    return next(known for pattern, known in KNOWN.items() if path.match(pattern))


def test_the_files_are_there() -> None:
    assert len(paths(*KNOWN)) == 29
    assert len(paths(*UNKNOWN)) == 8
    if OUTPUTS:
        assert sum(bool(oracle(path)) for path in paths(*KNOWN)) == 26


@pytest.mark.parametrize("path", paths(*KNOWN), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_of_a_family(path: Path) -> None:
    family, activation = of(path)
    run = read(path, activation=activation)
    assert (run.graph, run.activations_known) == ("family", True)
    assert any(f"read as {family}" in note for note in run.notes)
    if found := oracle(path):
        wanted = [found[name] for name in ("y0", "y1") if name in found and name in ("y0", "y1")[: len(run.network.outputs)]]
        given = {next(iter(run.network.inputs)): found["x0"].astype(np.float64)}
        assert_same(outputs(run, given)[: len(wanted)], wanted, CLOSE, varied=1e-8)


@pytest.mark.parametrize("path", paths(*UNKNOWN), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_of_none(path: Path) -> None:
    run = read(path)
    assert run.graph == "none"
    assert any("no chain of layers" in note for note in run.notes)


# networks whose source is public, but that are no family: a table here reads them as well

RELU = Act("relu")
POOLED: Steps = (RELU, Pool("max_pool", 2, 2))
BLOCK: Steps = (Sum((Affine("conv1"), Norm("bn1"), RELU, Affine("conv2"), Norm("bn2"))), RELU)
DIGITS = Family(
    "digits",
    marks=(r"layer_1\.0\.weight",),
    steps=(
        Image("layer_1.0", 28), Affine("layer_1.0", padding=0), *POOLED, Affine("layer_2.0", padding=0), *POOLED,
        Plain("flatten"), Affine("fc_1"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """The input: 6 x 7 places."""

    def run(self, d: Draft, x: str, at: str) -> str:
        return d.input("board", (d.shape("input_conv.conv.weight")[1], 6, 7))


CONNECT = Family(
    "connect four",
    marks=(r"input_conv\.conv\.weight",),
    steps=(
        Board(), Affine("input_conv.conv"), Norm("input_conv.bn"), RELU, Repeat("residual_tower.blocks.{}.", BLOCK),
        Output((
            Affine("policy_head.conv"), Norm("policy_head.bn"), RELU, Plain("flatten"), Affine("policy_head.fc"),
            Plain("softmax", {"axis": -1}),
        )),
        Output((
            Affine("value_head.conv"), Norm("value_head.bn"), RELU, Plain("flatten"), Affine("value_head.fc1"), RELU,
            Affine("value_head.fc2"), Act("tanh"),
        )),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    "path", paths("pt-gradcam/mnist_*.pt", "pt-alphazero/*.pth"), ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_of_a_table_written_here(path: Path) -> None:
    run = read(path)
    stored = dict(run.network.tensors)
    known = recognise({name: t.shape for name, t in stored.items()}, families=(DIGITS, CONNECT))
    assert isinstance(known, Known)
    network = Network({name: stored[name] for name in known.sources}, known.ops, known.inputs, known.outputs)
    found = oracle(path)
    if path.name == "model_0.pth":  # diverged in training
        with pytest.raises(NotFinite):
            network.check_finite()
        return
    if found:
        given = {next(iter(network.inputs)): found["x0"].astype(np.float64)}
        wanted = [found[f"y{i}"] for i in range(len(network.outputs))]
        assert_same(outputs(run.with_network(network), given), wanted, CLOSE, varied=1e-8)
