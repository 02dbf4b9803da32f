"""Copies planted in full-size networks of known families: whether they are found, to the last unit, and in what time.

    python tests/bench/planted.py [NAME ...]

Names and shapes are torchvision's (tests/torchvision_nets.json), numbers random, running statistics too; each copy is a
random member of the whole group (relabelled, scales exp(N(0, 0.7^2)), flipped, turned), stored in float32.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_families_torchvision import RECORDED, run_of, unpacked

from canon.action import random_action
from canon.compare.comparing import make_pair
from canon.network import Network
from canon.symmetry import derive


def single(network: Network) -> Network:
    """The network stored in float32."""
    return network.with_tensors({n: np.asarray(t, np.float32) for n, t in network.tensors.items()})


def main(names: list[str]) -> None:
    """Print a line a network."""
    for name, said in RECORDED["full"].items():
        if names and name not in names:
            continue
        said = said if isinstance(said, dict) else {"shapes": said, "told": {}}
        net = single(run_of(unpacked(said["shapes"]), **said.get("told", {})).network)
        g = random_action(derive(net), net, np.random.default_rng(3), 0.7)
        other = single(g(net))
        start = time.perf_counter()
        pair = make_pair(net, other)[0]
        worst = np.inf
        tried = 0
        for make in pair.candidates():
            tried += 1
            state = make()
            if state is not None:
                sums, found = pair.prove(state)
                worst = found.deviation
                if worst <= 1:
                    break
        seconds = time.perf_counter() - start
        back = ~g
        right = total = 0
        for space, perm in state.perms.items():
            if space in back.perms and back.perms[space].shape == perm.shape and not pair.symmetry.spaces[space].linear:
                live = np.ones(perm.shape, bool) if perm.ndim > 1 else ~pair.a.dead[space]
                right += int((perm == back.perms[space])[live].sum())
                total += int(live.sum())
        gaps = [float(np.sqrt(s["dd"].sum() / max((s["aa"] + s["bb"]).sum(), 1e-300))) for s in sums.values()]
        print(
            f"{name:20} {net.parameters:12,} parameters  worst entry {worst:8.2g} of its bound  partners {right} of {total}"
            f"  distance {max(gaps):.1e}  {seconds:6.1f} s  way {tried}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
