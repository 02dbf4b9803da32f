"""Families to calibrate on: five strangers of one task each, and for two of them what descends from them.

Which nets are relatives is known because they were made here: everything that was trained on from, or cut, rounded or
noised out of, a net of one seed shares its initialisation; nets of other seeds, and students, share only the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from nets import How, Task, convolutional, dense, digits, outputs, teacher, trained

from train import Net, softmax

SEEDS, BASES = 5, 2
NOISES = (0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Family:
    """sizes: of the input, the layers and the output; activation: or "conv"; task: makes the data; how: None where
    nothing is trained.
    """

    name: str
    sizes: tuple[int, ...]
    activation: str
    task: Callable[[], Task]
    how: How | None

    def fresh(self, rng: np.random.Generator) -> Net:
        """A new initialisation."""
        make = convolutional if self.activation == "conv" else partial(dense, activation=self.activation)
        return make(rng, self.sizes)


@dataclass(frozen=True)
class Pair:
    """Two nets of a family by name, and whether one descends from what the other descends from."""

    related: bool
    a: str
    b: str


_FLAT, _IMAGES = partial(digits, images=False), partial(digits, images=True)

FAMILIES = (
    Family("digits-8", (64, 8, 10), "relu", _FLAT, How("adam", 5e-3, 30)),
    Family("digits-8x3-tanh", (64, 8, 8, 8, 10), "tanh", _FLAT, How("adam", 5e-3, 30)),
    Family("digits-16x2", (64, 16, 16, 10), "relu", _FLAT, How("adam", 3e-3, 30)),
    Family("digits-32x2-tanh", (64, 32, 32, 10), "tanh", _FLAT, How("adam", 2e-3, 30)),
    Family("digits-64-sgd", (64, 64, 10), "relu", _FLAT, How("sgd", 0.05, 30)),
    Family("digits-48-32-gelu", (64, 48, 32, 10), "gelu", _FLAT, How("adam", 2e-3, 30)),
    Family("digits-96-48-hot", (64, 96, 48, 10), "relu", _FLAT, How("adam", 1e-2, 30)),
    Family("digits-32x6", (64, *[32] * 6, 10), "relu", _FLAT, How("adam", 2e-3, 30)),
    Family("digits-512", (64, 512, 10), "relu", _FLAT, How("adam", 1e-3, 20)),
    Family("digits-conv-16-24", (1, 16, 24, 10), "conv", _IMAGES, How("adam", 5e-3, 12)),
    Family("teacher20-64x2-sgd-hot", (20, 64, 64, 5), "relu", partial(teacher, 20, 5, True, 0), How("sgd", 0.2, 30)),
    Family("teacher4-64x2-tanh", (4, 64, 64, 2), "tanh", partial(teacher, 4, 2, False, 1), How("adam", 3e-3, 40)),
    Family("teacher2-32x3-tanh", (2, 32, 32, 32, 1), "tanh", partial(teacher, 2, 1, False, 2), How("adam", 3e-3, 40)),
    Family("teacher8-48x3", (8, 48, 48, 48, 3), "relu", partial(teacher, 8, 3, False, 3), How("adam", 2e-3, 30)),
    Family("teacher40-128x2-gelu", (40, 128, 128, 10), "gelu", partial(teacher, 40, 10, True, 4), How("adam", 1e-3, 20)),
    Family("digits-24x2-tanh-hot", (64, 24, 24, 10), "tanh", _FLAT, How("adam", 2e-2, 30)),
    Family("digits-64x2-sgd-hot", (64, 64, 64, 10), "relu", _FLAT, How("sgd", 0.3, 30)),
    Family("digits-128-32-long", (64, 128, 32, 10), "relu", _FLAT, How("adam", 3e-3, 100)),
    Family("teacher3-16x2-tanh", (3, 16, 16, 2), "tanh", partial(teacher, 3, 2, False, 5), How("adam", 5e-3, 60)),
    Family("teacher6-256-hot", (6, 256, 4), "relu", partial(teacher, 6, 4, True, 6), How("adam", 1e-2, 30)),
    Family("teacher30-12x4", (30, 12, 12, 12, 12, 6), "relu", partial(teacher, 30, 6, True, 7), How("adam", 3e-3, 40)),
    Family("digits-conv-32x2", (1, 32, 32, 10), "conv", _IMAGES, How("adam", 5e-3, 5)),
    Family("untrained-32x2", (20, 32, 32, 5), "relu", _FLAT, None),
    Family("untrained-128x2-tanh", (30, 128, 128, 10), "tanh", _FLAT, None),
)


def make(family: Family, index: int) -> tuple[dict[str, Net], list[Pair]]:
    """All nets of a family by name, and the pairs to compare. index: of the family, for its seeds."""
    nets: dict[str, Net] = {}
    kin: list[dict[str, Net]] = []
    task = family.task() if family.how else None
    for seed in range(SEEDS):
        rng = np.random.default_rng([index, seed])
        start = family.fresh(rng)
        if task is None:
            own = {"base": start, **{f"noise-{s}": noised(start, s, rng) for s in (*NOISES, 1.0)}}
        else:
            own = line(family, task, start, rng, seed < BASES)
        nets |= {f"{seed}:{name}": net for name, net in own.items()}
        kin.append(own)
    return nets, _pairs(kin, index)


def line(family: Family, task: Task, start: Net, rng: np.random.Generator, whole: bool) -> dict[str, Net]:
    """What one seed becomes, and what is made of that."""
    assert family.how is not None
    how, classes = family.how, task.classes
    third = trained(start, task.own, classes, how, 1 / 3, rng)
    base = trained(third, task.own, classes, how, 2 / 3, rng)
    if not whole:
        return {"base": base}
    x, y = task.own
    random_labels = (x, y[rng.permutation(len(y))])
    head = copy.deepcopy(base)
    head[-1].weights = family.fresh(rng)[-1].weights
    other_way = (x, y[:, rng.permutation(y.shape[1])]) if classes else (x, -y)
    student_of = outputs(base, x)
    pruned = _each(base, _without_half)
    return {
        "base": base,
        "start": start,
        "third": third,
        "branch": trained(third, task.own, classes, how, 2 / 3, rng),
        "branch-hot": trained(third, task.other, classes, how, 2 / 3, rng, hotter=3),
        "tuned": trained(base, task.other, classes, how, 1 / 3, rng),
        "tuned-hot": trained(base, task.other, classes, how, 2, rng, hotter=2),
        "new-head": trained(head, other_way, classes, how, 1 / 3, rng),
        "same-start": trained(start, task.own, classes, how, 1, rng),
        "same-start-other": trained(start, task.other, classes, how, 1, rng),
        "same-start-random": trained(start, random_labels, classes, how, 1, rng),
        "pruned": pruned,
        "pruned-tuned": trained(pruned, task.own, classes, how, 1 / 3, rng),
        "bits-8": _each(base, partial(_rounded, bits=8)),
        "bits-4": _each(base, partial(_rounded, bits=4)),
        **{f"noise-{s}": noised(base, s, rng) for s in NOISES},
        "student": trained(family.fresh(rng), (x, softmax(student_of) if classes else student_of), classes, how, 1, rng),
    }


AMONG = (
    ("branch", "same-start"),
    ("branch", "branch-hot"),
    ("tuned", "noise-0.2"),
    ("tuned-hot", "start"),
    ("new-head", "pruned-tuned"),
    ("same-start", "same-start-random"),
    ("bits-4", "tuned-hot"),
    ("same-start-other", "branch-hot"),
    ("pruned", "noise-0.1"),
)
"""Relatives of one net, compared with each other."""
ACROSS = 28
"""Pairs drawn from the relatives of one net and those of another."""


def _pairs(kin: list[dict[str, Net]], index: int) -> list[Pair]:
    out = []
    for seed, own in enumerate(kin):
        out += [Pair(True, f"{seed}:base", f"{seed}:{name}") for name in own if name not in ("base", "student")]
        out += [Pair(True, f"{seed}:{a}", f"{seed}:{b}") for a, b in AMONG if a in own and b in own]
    strangers = [(f"{i}:base", f"{j}:base") for i, j in combinations(range(len(kin)), 2)]
    for seed in range(BASES):
        if "student" in kin[seed]:
            strangers += [(f"{seed}:base", f"{seed}:student"), (f"{1 - seed}:base", f"{seed}:student")]
    strangers += [(f"0:{name}", f"1:{name}") for name in kin[0] if name != "base"]
    rng = np.random.default_rng([11, index])
    for _ in range(ACROSS - len(kin[0]) + 1):
        strangers.append((f"0:{rng.choice(list(kin[0]))}", f"1:{rng.choice(list(kin[1]))}"))
    return out + [Pair(False, a, b) for a, b in dict.fromkeys(strangers)]


def noised(net: Net, share: float, rng: np.random.Generator) -> Net:
    """Normal noise on every weight, of a share of the deviation of its tensor."""
    return _each(net, lambda w: w + share * w.std() * rng.normal(size=w.shape))


def _each(net: Net, change: Callable[[np.ndarray], np.ndarray]) -> Net:
    """Every kernel and bias changed; what belongs to batch norms stays."""
    net = copy.deepcopy(net)
    for layer in net:
        for name in ("kernel", "bias"):
            if name in layer.weights:
                layer.weights[name] = change(layer.weights[name]).astype(np.float32)
    return net


def _without_half(w: np.ndarray) -> np.ndarray:
    return np.where(np.abs(w) < np.median(np.abs(w)), 0, w) if w.ndim > 1 else w


def _rounded(w: np.ndarray, bits: int) -> np.ndarray:
    step = np.abs(w).max() / (2 ** (bits - 1) - 1)
    return np.round(w / step) * step if step else w
