"""Policies of stable-baselines3 and its contrib package (Raffin et al. 2021): A2C, PPO, ARS, DQN, QR-DQN, SAC, TQC, TD3, DDPG.

Which nonlinearity stands between dense layers is in no policy file: --activation tells it. Images go through the convolutions
of Mnih et al. (2015), whose ReLUs are part of the class, as is the tanh after the actions of TD3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from canon.errors import ShapeConflict
from canon.families.attending import Keep, Recall
from canon.families.draft import Draft, Shapes
from canon.families.family import Family
from canon.families.steps import Act, Affine, If, Output, Plain, Step, Steps, follow
from canon.families.told import Told

RELU = Act("relu")
OBSERVATION = "observation"


def _settle(told: Told, shapes: Shapes) -> Mapping[str, Any]:
    return {"activation": told.known()}


def _numbers(d: Draft, front: str) -> list[int]:
    """The numbers of the layers that have weights in a row of layers."""
    pattern = re.escape(front) + r"\.([0-9]{1,4})\.weight"
    return sorted(int(m[1]) for key in d.shapes if (m := re.fullmatch(pattern, key)))


@dataclass(frozen=True)
class Layers:
    """Dense layers in a row with the nonlinearity after each; last: after the last one as well. None where there are none."""

    front: str
    last: bool = False

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        numbers = _numbers(d, at + self.front)
        for i in numbers:
            x = Affine(f"{self.front}.{i}").run(d, x, at)
            x = Act("activation").run(d, x, f"{at}{self.front}.{i}.") if self.last or i != numbers[-1] else x
        return x


@dataclass(frozen=True)
class Observation:
    """The input: an image where the extractor has convolutions, which follow; else as many numbers as the first of some layers
    reads, less the actions of a critic.

    extractor: its front, "" for none; first: names of layers, of which the first that is there reads it.
    """

    extractor: str
    first: tuple[str, ...]

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        cnn = f"{at}{self.extractor}.cnn"
        if not (self.extractor and d.has(f"{cnn}.0.weight")):
            keys = [f"{at}{name}.weight" for name in self.first]
            return d.input(OBSERVATION, d.shape(next((key for key in keys if d.has(key)), keys[0]))[1:])
        linear = f"{at}{self.extractor}.linear.0"
        channels, width = d.shape(f"{cnn}.4.weight")[0], d.shape(f"{linear}.weight")[1]
        side = isqrt(width // channels)
        if side * side * channels != width:
            raise d.unfit(f"{linear}.weight", "images that are no squares")
        strides = ((0, 4, 8), (2, 2, 4), (4, 1, 3))
        for _, stride, window in reversed(strides):
            side = (side - 1) * stride + window
        x = d.input(OBSERVATION, (d.shape(f"{cnn}.0.weight")[1], side, side))
        for i, stride, window in strides:
            x = follow(d, x, f"{cnn}.", (Affine(str(i), stride, padding=0, window=window), RELU))
        return follow(d, Plain("flatten").run(d, x, f"{cnn}."), "", (Affine(linear), RELU))


@dataclass(frozen=True)
class Same:
    """Tensors that are those of another front, if they are equal."""

    front: str
    other: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        for key in [key for key in d.shapes if key.startswith(self.front)]:
            other = self.other + key.removeprefix(self.front)
            if d.has(other) and d.shape(other) == d.shape(key):
                d.copies[d.tensor(key)] = d.tensor(other)
        return x


@dataclass(frozen=True)
class Noise:
    """The variance of actions where it depends on the state (gSDE), given out; else it is no part of a forward pass."""

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        if d.has("log_std") and len(d.shape("log_std")) == 2:
            d.output(d.add("state_noise", "log_std", [x], {"log_std": d.tensor("log_std")}))
        return x


@dataclass(frozen=True)
class Critics:
    """Values of observations and actions: one row of layers for each critic, each given out."""

    front: str

    def run(self, d: Draft, x: str, at: str) -> str:
        """See `Step`."""
        n = d.count(f"{at}{self.front}.qf{{}}.")
        if not n:
            raise ShapeConflict(f"{at}{self.front}.qf0.0.weight", "is not there")
        read, seen = d.shape(f"{at}{self.front}.qf0.0.weight")[1], d.width(x)
        if read <= seen:
            raise d.unfit(f"{at}{self.front}.qf0.0.weight", f"observations and actions are expected, and the first are {seen}")
        both = d.add("concat", f"{at}{self.front}/input", [x, d.input("action", (read - seen,))], axis=-1)
        for i in range(n):
            d.output(Layers(f"{self.front}.qf{i}").run(d, both, at))
        return x


def _values(front: str, inner: str) -> Steps:
    """A row of layers to the value of each action, and its target."""
    rows: list[Step] = []
    for part in (front, f"{front}_target"):
        layers: Steps = (Observation(f"{part}.features_extractor", (f"{part}.{inner}.0",)), Layers(f"{part}.{inner}"))
        rows.append(If(f"{part}.{inner}.0.weight", (Output(layers),)))
    return tuple(rows)


def _actor(*first: str) -> Observation:
    return Observation("", first)


COPIES = ("pi_features_extractor.", "features_extractor.")
VALUE_FEATURES = "vf_features_extractor"

FAMILIES = (
    Family(
        "actor-critic policy (stable-baselines3)",
        marks=(r"action_net\.weight", r"value_net\.weight"),
        steps=(
            Same(*COPIES),
            Observation("features_extractor", ("mlp_extractor.shared_net.0", "mlp_extractor.policy_net.0", "action_net")),
            Layers("mlp_extractor.shared_net", last=True), Keep("features"),
            Layers("mlp_extractor.policy_net", last=True), Output((Affine("action_net"),)), Keep("policy"),
            Recall("features"),
            If(f"{VALUE_FEATURES}.cnn.0.weight", (Observation(VALUE_FEATURES, ()), Same(f"{VALUE_FEATURES}.", COPIES[1]))),
            Layers("mlp_extractor.value_net", last=True), Output((Affine("value_net"),)),
            Recall("policy"), Noise(),
        ),
        settle=_settle,
        buffers=(r"log_std",),
    ),
    Family(
        "ARS policy (stable-baselines3 contrib)",
        marks=(r"action_net(\.0)?\.weight",),
        steps=(
            _actor("action_net.0", "action_net"), Layers("action_net"), If("action_net.weight", (Affine("action_net"),)),
        ),
        settle=_settle,
        notes=("actions before they are squashed, where the policy does that",),
    ),
    Family(
        "DQN policy (stable-baselines3)", marks=(r"q_net\.q_net\.0\.weight",), steps=_values("q_net", "q_net"), settle=_settle
    ),
    Family(
        "QR-DQN policy (stable-baselines3 contrib)",
        marks=(r"quantile_net\.quantile_net\.0\.weight",),
        steps=_values("quantile_net", "quantile_net"),
        settle=_settle,
    ),
    Family(
        "SAC or TQC policy (stable-baselines3)",
        marks=(r"actor\.mu\.weight", r"actor\.log_std\.weight", r"critic\.qf0\.0\.weight"),
        steps=(
            _actor("actor.latent_pi.0", "actor.mu"), Critics("critic"),
            If("critic_target.qf0.0.weight", (Critics("critic_target"),)),
            Layers("actor.latent_pi", last=True), Output((Affine("actor.mu"),)), Output((Affine("actor.log_std"),)),
        ),
        settle=_settle,
        notes=("actions before they are squashed",),
    ),
    Family(
        "TD3 or DDPG policy (stable-baselines3)",
        marks=(r"actor\.mu\.0\.weight", r"critic\.qf0\.0\.weight"),
        steps=(
            _actor("actor.mu.0"), Critics("critic"), If("critic_target.qf0.0.weight", (Critics("critic_target"),)),
            Output((Layers("actor.mu"), Act("tanh"))),
            If("actor_target.mu.0.weight", (Output((Layers("actor_target.mu"), Act("tanh"))),)),
        ),
        settle=_settle,
    ),
)  # fmt: skip
