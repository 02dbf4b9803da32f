"""Strangers whose unit numbers are no longer exchangeable: sorted, in canon's canonical order, or aligned to each other.

    OMP_NUM_THREADS=1 PYTHONPATH=data:. python data/calibration/orders.py

Stored order takes unit numbers of separate runs for exchangeable. Prints what becomes of Z, and of the word, where
something has put the units in order. One process, about two minutes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
from families import FAMILIES, SEEDS, line
from numpy.typing import NDArray
from weigh import Said, run, weigh

from canon.run import Run
from canon.transform.moves import align, canonicalize
from train import Net

NAMES = (
    "digits-48-32-gelu", "digits-96-48-hot", "digits-32x6", "digits-32x2-tanh", "teacher20-64x2-sgd-hot",
    "teacher8-48x3", "teacher2-32x3-tanh", "teacher30-12x4",
)  # fmt: skip
Key = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]
KEYS: dict[str, Key] = {
    "norm of incoming": lambda kernel, _: np.linalg.norm(kernel, axis=0),
    "norm of outgoing": lambda _, after: np.linalg.norm(after, axis=1),
    "product of both": lambda kernel, after: np.linalg.norm(kernel, axis=0) * np.linalg.norm(after, axis=1),
    "first weight": lambda kernel, _: kernel[0],
}


def main() -> None:
    """Print one line for each way."""
    said: dict[str, list[Said]] = {}
    for index, family in enumerate(FAMILIES):
        if family.name not in NAMES:
            continue
        task, nets = family.task(), []
        for seed in range(SEEDS):
            rng = np.random.default_rng([index, seed])
            nets.append(line(family, task, family.fresh(rng), rng, whole=False)["base"])
        plain = [run(net, "net") for net in nets]
        ways = {"as they are": plain}
        ways |= {f"sorted by {name}": [run(_sorted(net, key), "net") for net in nets] for name, key in KEYS.items()}
        for gauge in ("incoming", "balanced"):
            ways[f"canonicalize, {gauge}"] = [r.with_network(canonicalize(r.network, gauge).network) for r in plain]
        for name, runs in ways.items():
            said.setdefault(name, []).extend(weigh(a, b) for a, b in combinations(runs, 2))
        said.setdefault("align", []).extend(weigh(a, _aligned(a, b)) for a, b in combinations(plain, 2))
    print("| strangers | pairs | Z | called related | undecided | independent |\n|---|---|---|---|---|---|")
    for name, all_ in said.items():
        words, z = Counter(s.word for s in all_), [s.z for s in all_]
        counts = " | ".join(str(words[w]) for w in ("related", "undecided", "independent"))
        print(f"| {name} | {len(all_)} | {min(z):.1f} to {max(z):.1f} | {counts} |")


def _aligned(a: Run, b: Run) -> Run:
    return b.with_network(align(a.network, b.network).network)


def _sorted(net: Net, key: Key) -> Net:
    net = copy.deepcopy(net)
    for here, after in pairwise(net):
        order = np.argsort(key(here.weights["kernel"], after.weights["kernel"]))
        here.weights = {name: w[..., order] for name, w in here.weights.items()}
        after.weights["kernel"] = after.weights["kernel"][order]
    return net


if __name__ == "__main__":
    main()
