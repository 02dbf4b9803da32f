"""How fast canon's measures are beside netrep, repsim and ckatorch, where these are installed; ratios, in one run.

    python tests/bench/similarity.py                the table
    python tests/bench/similarity.py --rounds 9     medians over more rounds
    python tests/bench/similarity.py --large        what 10,000 x 2,048 against the same takes, in time and memory

Each tool gets the same float64 arrays and gives one number; the tools take turns within a round, and the median of the
rounds counts. Threads are whatever numpy and torch take by default. repsim's canonical correlations run once: they take
minutes. netrep is on no index: where a folder with its source is on PYTHONPATH, it takes part.

Measured 2026-12-01 on two cores that others used too, one thread each, ratios of medians: CKA at 10,000 x 512 against netrep
11, against ckatorch 53 (unbiased 44), of 4 x 4 layers against netrep 15; at 2,000 x 512 CKA against netrep 2.4, against
repsim 51, CCA against repsim 626. All values agree to 1e-13. Float64 products bound the CKA of one pair: netrep's take 10
times as many operations. 10,000 x 2,048 against the same: 98 s with 19 permutations, 870 MB.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from canon.similarity import measure

Timed = Callable[[np.ndarray, np.ndarray], float]


def peers() -> dict[str, dict[str, tuple[str, Timed]]]:
    """measure -> tool -> (canon's name of it, the call)."""
    out: dict[str, dict[str, tuple[str, Timed]]] = {"CKA": {}, "unbiased CKA": {}, "CCA": {}, "PWCCA": {}, "Procrustes": {}}
    if found := module("netrep.metrics"):
        out["CKA"]["netrep"] = ("cka_biased", lambda x, y: float(np.cos(found.LinearCKA().score(x, y))))
        if hasattr(found, "LinearMetric"):
            shape = found.LinearMetric
            out["Procrustes"]["netrep"] = ("angular_shape", lambda x, y: float(shape(alpha=1.0).fit_score(x, y)))
    if repsim := module("repsim"):
        out["CKA"]["repsim"] = ("cka_biased", lambda x, y: float(repsim.cka([x, y], "linear", "gretton")[0, 1]))
        out["CCA"]["repsim"] = ("cca", lambda x, y: float(repsim.cca([x, y], "pillai")[0, 1]))
        out["PWCCA"]["repsim"] = ("pwcca", lambda x, y: float(repsim.pwcca([x, y])[0, 1]))
    if (core := module("ckatorch.core")) and (torch := module("torch")):

        def cka(x: np.ndarray, y: np.ndarray, unbiased: bool) -> float:
            return float(core.cka_base(torch.from_numpy(x), torch.from_numpy(y), "linear", unbiased=unbiased))

        out["CKA"]["ckatorch"] = ("cka_biased", lambda x, y: cka(x, y, False))
        out["unbiased CKA"]["ckatorch"] = ("cka", lambda x, y: cka(x, y, True))
    return out


def module(name: str) -> object:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def inputs(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Two related layers."""
    r = np.random.default_rng(0)
    x = r.standard_normal((n, d))
    return x, x @ r.standard_normal((d, d)) / d**0.5 + r.standard_normal((n, d))


def compared(n: int, d: int, rounds: int) -> None:
    """A line for each measure and tool."""
    x, y = inputs(n, d)
    for name, tools in peers().items():
        for tool, (own, call) in tools.items():
            slow = tool == "repsim" and name in ("CCA", "PWCCA")  # minutes
            if slow and n * d > 2000 * 512:
                continue
            ours, theirs, values = [], [], (0.0, 0.0)
            for _ in range(1 if slow else rounds):
                before = time.perf_counter()
                theirs_value = call(x, y)
                between = time.perf_counter()
                theirs.append(between - before)
                values = (measure(own, x, y), theirs_value)
                ours.append(time.perf_counter() - between)
            if slow:  # canon alone takes more rounds: one is noise
                for _ in range(rounds):
                    before = time.perf_counter()
                    measure(own, x, y)
                    ours.append(time.perf_counter() - before)
            apart = abs(values[0] - values[1])
            print(
                f"{n:6,} x {d:5,}  {name:13} {tool:9} {median(theirs):9.3f} s  canon {median(ours):7.3f} s"
                f"  ratio {median(theirs) / median(ours):8.1f}  values apart {apart:.0e}",
                flush=True,
            )


def many_layers(n: int, d: int, layers: int) -> None:
    """All pairs of several layers: canon centres and squares each of them once."""
    from canon.similarity.layer import layer
    from canon.similarity.measures import MEASURES
    from canon.similarity.pair import Pair

    found = module("netrep.metrics")
    if not found:
        return
    sides = [[inputs(n, d)[k] + 0.1 * i for i in range(layers)] for k in (0, 1)]
    before = time.perf_counter()
    made = [[layer("x", x) for x in side] for side in sides]
    ours = [[MEASURES["cka_biased"].of(Pair(a, b)) for b in made[1]] for a in made[0]]
    between = time.perf_counter()
    theirs = [[float(np.cos(found.LinearCKA().score(x, y))) for y in sides[1]] for x in sides[0]]
    after = time.perf_counter()
    apart = np.abs(np.array(ours) - np.array(theirs)).max()
    print(
        f"{n:6,} x {d:5,}  CKA, {layers} x {layers} layers  netrep {after - between:6.2f} s  canon {between - before:6.2f} s"
        f"  ratio {(after - between) / (between - before):6.1f}  values apart {apart:.0e}"
    )


def large() -> None:
    """Two files of 10,000 samples of 2,048 units through the command, with its default measures and null."""
    import h5py

    from canon_cli.main import main

    with TemporaryDirectory() as folder:
        words = []
        for k, values in enumerate(inputs(10_000, 2048)):
            words.append(str(Path(folder) / f"{k}.h5"))
            with h5py.File(words[-1], "w") as f:
                f["layer"] = values.astype(np.float32)
        del values
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = time.perf_counter()
        main(["similarity", *words, "--activations", "layer"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{time.perf_counter() - before:.0f} s, {peak / 1024:,.0f} MB at most ({start / 1024:,.0f} MB to make the files)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    if args.large:
        large()
    else:
        compared(2000, 512, args.rounds)
        compared(10_000, 512, args.rounds)
        many_layers(10_000, 512, 4)
