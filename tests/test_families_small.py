"""Families of small networks: policies of stable-baselines3, MTCNN, LPIPS, LoRA adapters; their blocks are written out here.

Names and shapes as stable-baselines3 and its contrib package 2.9.2, facenet_pytorch 2.6.0, lpips 0.1.4 and peft 0.21.2 have
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_nets import assert_same, distance, outputs, read_state
from torch.nn import functional as F

from canon.compare import compare
from canon.families import Nearest, recognise
from canon.formats import read
from canon.symmetry import Use, derive
from canon.transform import teleport

State = dict[str, torch.Tensor]
Tensor = torch.Tensor


def state(said: str, seed: int = 0) -> State:
    """Random tensors: "layer=5x3" is a weight of that shape, and a bias; "name:5x3" one tensor of that very name."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for word in said.split():
        name, sign, shape = word.partition("=" if "=" in word else ":")
        sizes = tuple(map(int, shape.split("x")))
        fan_in = max(int(np.prod(sizes[1:])), 1)
        noise = 1.3 * torch.randn(sizes, generator=generator, dtype=torch.float64) / fan_in**0.5
        found[f"{name}.weight" if sign == "=" else name] = noise
        if sign == "=":
            found[f"{name}.bias"] = 0.3 * torch.randn(sizes[:1], generator=generator, dtype=torch.float64)
    return found


def rows(s: State, front: str, x: Tensor, act: Callable[[Tensor], Tensor], last: bool = False) -> Tensor:
    """Dense layers in a row, numbered by twos."""
    numbers = sorted(int(key.removeprefix(front).split(".")[1]) for key in s if key.startswith(f"{front}.") and "weight" in key)
    for i in numbers:
        x = F.linear(x, s[f"{front}.{i}.weight"], s[f"{front}.{i}.bias"])
        x = act(x) if last or i != numbers[-1] else x
    return x


def dense(s: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])


def pixels(s: State, front: str, x: Tensor) -> Tensor:
    for i, stride in ((0, 4), (2, 2), (4, 1)):
        x = torch.relu(F.conv2d(x, s[f"{front}.cnn.{i}.weight"], s[f"{front}.cnn.{i}.bias"], stride))
    return torch.relu(dense(s, f"{front}.linear.0", x.flatten(1)))


PPO = "mlp_extractor.policy_net.0=6x5 mlp_extractor.value_net.0=7x5 mlp_extractor.value_net.2=4x7 action_net=3x6 value_net=1x4"
CNN = "{0}.cnn.0=4x3x8x8 {0}.cnn.2=6x4x4x4 {0}.cnn.4=6x6x3x3 {0}.linear.0=8x294"
CRITIC = "{0}.qf0.0=7x8 {0}.qf0.2=6x7 {0}.qf0.4=1x6 {0}.qf1.0=7x8 {0}.qf1.2=6x7 {0}.qf1.4=1x6"
CRITICS = f"{CRITIC.format('critic')} {CRITIC.format('critic_target')}"
X, A = torch.linspace(-1, 1, 15, dtype=torch.float64).sin().reshape(3, 5), torch.linspace(-1, 1, 9).double().reshape(3, 3)
IMAGE = torch.linspace(0, 99, 3 * 3 * 84 * 84, dtype=torch.float64).sin().reshape(3, 3, 84, 84)


def ppo(s: State, act: Any) -> list[Tensor]:
    policy = rows(s, "mlp_extractor.policy_net", X, act, last=True)
    found = [dense(s, "action_net", policy), dense(s, "value_net", rows(s, "mlp_extractor.value_net", X, act, last=True))]
    if s.get("log_std", X[0]).ndim == 2:
        found.append(policy**2 @ s["log_std"].exp() ** 2)
    return found


def ppo_of_pixels(s: State, act: Any) -> list[Tensor]:
    return [dense(s, "action_net", pixels(s, "pi_features_extractor", IMAGE)),
            dense(s, "value_net", pixels(s, "vf_features_extractor", IMAGE))]  # fmt: skip


def critics(s: State, act: Any) -> list[Tensor]:
    both = torch.cat([X, A], 1)
    return [rows(s, f"{front}.qf{i}", both, act) for front in ("critic", "critic_target") for i in (0, 1)]


def sac(s: State, act: Any) -> list[Tensor]:
    latent = rows(s, "actor.latent_pi", X, act, last=True)
    return [*critics(s, act), dense(s, "actor.mu", latent), dense(s, "actor.log_std", latent)]


def td3(s: State, act: Any) -> list[Tensor]:
    return [*critics(s, act), *(torch.tanh(rows(s, f"{front}.mu", X, act)) for front in ("actor", "actor_target"))]


ACTOR = "{0}.mu.0=7x5 {0}.mu.2=6x7 {0}.mu.4=3x6"
POLICIES: dict[str, tuple[str, Callable[[State, Any], list[Tensor]]]] = {
    "actor-critic": (PPO, ppo),
    "actor-critic, noise": (f"log_std:3 {PPO}", ppo),
    "actor-critic, noise by state": (f"log_std:6x3 {PPO}", ppo),
    "actor-critic of pixels": (
        " ".join(CNN.format(f"{f}features_extractor") for f in ("", "pi_", "vf_"))
        + " action_net=4x8 value_net=1x8",
        ppo_of_pixels,
    ),
    "dqn": (
        " ".join(f"{f}.q_net.0=7x5 {f}.q_net.2=6x7 {f}.q_net.4=4x6" for f in ("q_net", "q_net_target")),
        lambda s, act: [rows(s, f"{f}.q_net", X, act) for f in ("q_net", "q_net_target")],
    ),
    "qr-dqn": (
        " ".join(f"{f}.quantile_net.0=7x5 {f}.quantile_net.2=8x7" for f in ("quantile_net", "quantile_net_target")),
        lambda s, act: [rows(s, f"{f}.quantile_net", X, act) for f in ("quantile_net", "quantile_net_target")],
    ),
    "sac": (f"actor.latent_pi.0=7x5 actor.latent_pi.2=6x7 actor.mu=3x6 actor.log_std=3x6 {CRITICS}", sac),
    "td3": (f"{ACTOR.format('actor')} {ACTOR.format('actor_target')} {CRITICS}", td3),
    "ars": ("action_net.0=7x5 action_net.2=3x7", lambda s, act: [rows(s, "action_net", X, act)]),
    "ars, linear": ("action_net.0.weight:3x5", lambda s, act: [X @ s["action_net.0.weight"].T]),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_policies(name: str, tmp_path: Path) -> None:
    said, wanted = POLICIES[name]
    s = state(said)
    if "pixels" in name:  # the extractors are one module under two of their names
        s.update({key: s[key.removeprefix("pi_")] for key in s if key.startswith("pi_")})
    inputs = {"observation": (IMAGE if "pixels" in name else X).numpy(), "action": A.numpy()}
    run = read_state(tmp_path, s, activation="tanh")
    assert (run.graph, run.activations_known) == ("family", True)
    assert_same(outputs(run, inputs), [y.numpy() for y in wanted(s, torch.tanh)])
    if name in ("ars, linear", "actor-critic of pixels"):
        return
    other = read_state(tmp_path, s, activation="relu")
    assert distance(outputs(other, inputs)[0], wanted(s, torch.tanh)[0].numpy()) > 1e-3
    unknown = read_state(tmp_path, s)
    assert (unknown.graph, unknown.activations_known) == ("family", False)
    assert any("--activation" in note for note in unknown.notes)


def test_what_is_no_part_of_a_policy_is_said_and_what_is_moves(tmp_path: Path) -> None:
    run = read_state(tmp_path, state(f"log_std:3 {PPO}"), activation="tanh")
    assert "log_std" not in run.network.tensors
    assert any("log_std" in note for note in run.notes)
    run = read_state(tmp_path, state(f"log_std:6x3 {PPO}"), activation="tanh")
    symmetry = derive(run.network)
    assert symmetry.axes["log_std"][0].axis == Use("mlp_extractor.policy_net.0", 6)
    moved = teleport(run.network, 3)
    assert np.abs(moved.network.tensors["log_std"] - run.network.tensors["log_std"]).max() > 0.1
    before, after = (outputs(run.with_network(n), {"observation": X.numpy()}) for n in (run.network, moved.network))
    assert_same(after, before)


# MTCNN, LPIPS


def pnet(s: State, x: Tensor) -> list[Tensor]:
    def layer(i: int, x: Tensor) -> Tensor:
        return F.prelu(F.conv2d(x, s[f"conv{i}.weight"], s[f"conv{i}.bias"]), s[f"prelu{i}.weight"])

    x = layer(3, layer(2, F.max_pool2d(layer(1, x), 2, 2, ceil_mode=True)))
    faces, boxes = (F.conv2d(x, s[f"conv4_{i}.weight"], s[f"conv4_{i}.bias"]) for i in (1, 2))
    return [boxes, faces.softmax(1)]


def onet(s: State, x: Tensor) -> list[Tensor]:
    for i, pool in ((1, 3), (2, 3), (3, 2), (4, 0)):
        x = F.prelu(F.conv2d(x, s[f"conv{i}.weight"], s[f"conv{i}.bias"]), s[f"prelu{i}.weight"])
        x = F.max_pool2d(x, pool, 2, ceil_mode=True) if pool else x
    x = F.prelu(dense(s, "dense5", x.permute(0, 3, 2, 1).flatten(1)), s["prelu5.weight"])
    return [dense(s, "dense6_2", x), dense(s, "dense6_3", x), dense(s, "dense6_1", x).softmax(1)]


PNET = ("conv1=10x3x3x3 prelu1.weight:10 conv2=16x10x3x3 prelu2.weight:16 conv3=32x16x3x3 prelu3.weight:32 conv4_1=2x32x1x1 "
        "conv4_2=4x32x1x1")  # fmt: skip
ONET = ("conv1=8x3x3x3 prelu1.weight:8 conv2=8x8x3x3 prelu2.weight:8 conv3=8x8x3x3 prelu3.weight:8 conv4=6x8x2x2 "
        "prelu4.weight:6 dense5=9x54 prelu5.weight:9 dense6_1=2x9 dense6_2=4x9 dense6_3=10x9")  # fmt: skip


@pytest.mark.parametrize(("said", "net", "size"), [(PNET, pnet, (17, 20)), (ONET, onet, (48, 48))], ids=["p", "o"])
def test_mtcnn(said: str, net: Callable[[State, Tensor], list[Tensor]], size: tuple[int, int], tmp_path: Path) -> None:
    s = state(said)
    x = torch.linspace(0, 50, 6 * size[0] * size[1], dtype=torch.float64).cos().reshape(2, 3, *size)
    run = read_state(tmp_path, s)
    assert run.activations_known
    assert_same(outputs(run, {"image": x.numpy()}), [y.numpy() for y in net(s, x)])


def test_lpips(tmp_path: Path) -> None:
    s = state("lin0.model.1.weight:1x4x1x1 lin1.model.1.weight:1x6x1x1")
    features = [torch.rand(2, n, k, k, dtype=torch.float64) for n, k in ((4, 6), (6, 3))]
    wanted = sum(F.conv2d(x, s[f"lin{i}.model.1.weight"]).mean((2, 3)) for i, x in enumerate(features))
    run = read_state(tmp_path, s)
    assert_same(outputs(run, {f"squared differences {i}": x.numpy() for i, x in enumerate(features)}), [wanted])


# LoRA

FRONT = "base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.weight"
LORA = " ".join(
    f"{FRONT.format(i, name, 'A')}:3x8 {FRONT.format(i, name, 'B')}:{n}x3" for i in (0, 1) for name, n in (("q", 8), ("v", 4))
)
TABLE = "base_model.model.model.embed_tokens.lora_embedding_{0}"
CONFIG = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}


def test_an_adapter_is_as_many_small_networks(tmp_path: Path) -> None:
    s = state(f"{LORA} {TABLE.format('A')}:3x20 {TABLE.format('B')}:8x3 base_model.model.score.weight:2x8")
    names = [key.removesuffix(".lora_A.weight") for key in sorted(s) if key.endswith("lora_A.weight")]
    x = torch.linspace(-2, 2, 16, dtype=torch.float64).reshape(2, 8)
    tokens = torch.tensor([[1, 5, 7], [0, 19, 2]])
    inputs = {f"{name}/input": x.numpy() for name in (*names, "base_model.model.score")}
    inputs["base_model.model.model.embed_tokens/tokens"] = tokens.numpy()
    for config, factor in ((None, 1.0), (CONFIG, 2.0), ({**CONFIG, "use_rslora": True}, 6 / 3**0.5)):
        a, b = (s[TABLE.format(part)] for part in "AB")
        table = factor * (b @ a).T[tokens]
        pairs = [factor * x @ s[f"{n}.lora_A.weight"].T @ s[f"{n}.lora_B.weight"].T for n in names]
        wanted = [table, *pairs, x @ s["base_model.model.score.weight"].T]
        run = read_state(tmp_path / str(factor), s, config)
        assert run.graph == "family"
        assert any("lora_alpha" in note for note in run.notes) == (config is None)
        assert_same(outputs(run, inputs), [y.numpy() for y in wanted])


def test_adapters_that_add_the_same_are_equivalent(tmp_path: Path) -> None:
    s = state(LORA)
    other, changed = dict(s), dict(s)
    for i, key in enumerate(key for key in s if "lora_A" in key):
        pair = key.replace("lora_A", "lora_B")
        g = state("g:3x3", seed=i + 1)["g"]
        other[key], other[pair] = g @ s[key], s[pair] @ torch.linalg.inv(g)
        changed[pair] = s[pair] * (1.01 if i == 2 else 1.0)
    a, b, c = (read_state(tmp_path / name, x) for name, x in (("a", s), ("b", other), ("c", changed)))
    assert compare(a, b).verdict == "equivalent"
    assert compare(a, c).verdict not in ("identical", "equivalent")


def test_the_configuration_of_an_adapter_lies_beside_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "adapter.npz", **{key: t.numpy() for key, t in state(LORA).items()})
    (tmp_path / "adapter_config.json").write_text('{"r": 3, "lora_alpha": 12}')
    factors = {op.attrs["factor"] for op in read(tmp_path / "adapter.npz").network.ops if op.kind == "rescale"}
    assert factors == {4.0}


def test_what_an_adapter_may_hold_besides_falls_back() -> None:
    shapes = {key: tuple(t.shape) for key, t in state(LORA).items()}
    key = FRONT.format(0, "q", "magnitude_vector")
    found = recognise({**shapes, key: (8,)})
    assert isinstance(found, Nearest)
    assert found.key == key
    del shapes[FRONT.format(0, "q", "B")]
    found = recognise(shapes)
    assert isinstance(found, Nearest)
    assert found.key == FRONT.format(0, "q", "B")
