"""Zoos of known content, and how long they take. Not part of the test run.

    python tests/bench/zoo.py truth [--files 2000]      copies in a zoo of trained nets: what is missed, what is false
    python tests/bench/zoo.py scan [--files 10000]      a scan of 36 kB files against reading their bytes
    python tests/bench/zoo.py figures                   a fingerprint against sha256 of the same bytes, 1 MB and more
    python tests/bench/zoo.py many [--files 1000000]    candidates and a query among so many fingerprints, with memory

`truth` trains networks on data/digits.npz (MLPs of several widths, CNNs with batch norm; the transformer blocks beside them
are random), and makes of each what tests/zoo_files.py makes, one more step of training included; it is checked against
nothing but how each file was made.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[2]
sys.path[:0] = [str(HERE / "tests"), str(HERE / "data")]

from blocks import transformer  # noqa: E402
from keras_files import mlp as write_mlp  # noqa: E402
from zoo_files import Zoo, cast, disguised, fill, other_numbers, spoil  # noqa: E402

from canon.formats import read  # noqa: E402
from canon.network import Network  # noqa: E402
from canon.zoo import Index, Processes, query, scan  # noqa: E402
from canon.zoo.candidates import Prints, crowded  # noqa: E402
from canon.zoo.fingerprint import ORDER, PATHS, Figures, Fingerprint, fingerprint  # noqa: E402
from canon.zoo.places import Place  # noqa: E402
from canon.zoo.plans import Plans  # noqa: E402
from canon.zoo.reading import Record, sort_of  # noqa: E402
from keras import save  # noqa: E402
from train import cnn, mlp, train  # noqa: E402

SIZES = ((64, 48, 32, 10), (64, 24, 24, 24, 10), (64, 96, 10))


def network_of(net: Any) -> Network:
    """A trained net as canon reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.h5"
        save(net, path, functional=net[0].kind == "Conv2D")
        return read(path).network


def base(i: int, flat: Any, square: Any, labels: Any) -> tuple[str, Network, Network | None]:
    """(name, network, the same one step of training later)."""
    rng = np.random.default_rng([7, i])
    kind = i % 6
    if kind == 5:
        return f"block-{i}", cast(transformer(seed=i), np.float32), None
    net = cnn(rng) if kind == 4 else mlp(rng, SIZES[kind % 3], "tanh" if kind == 3 else "relu")
    x = square if kind == 4 else flat
    train(net, x, labels, rng, 15, 2e-3)
    later = copy.deepcopy(net)
    train(later, x[:64], labels[:64], rng, 1, 1e-3)
    return f"{'cnn' if kind == 4 else 'mlp'}-{i}", network_of(net), network_of(later)


def truth(args: argparse.Namespace) -> None:
    """Make a zoo, look for copies, and check every group."""
    digits = np.load(HERE / "data" / "digits.npz")
    flat, square, labels = (digits[n] for n in ("flat", "square", "labels"))
    with tempfile.TemporaryDirectory() as name:
        zoo = Zoo(Path(name) / "zoo")
        start, i = time.perf_counter(), 0
        while len(zoo.of) + len(zoo.half) < args.files:
            label, network, later = base(i, flat, square, labels)
            rng = np.random.default_rng([8, i])
            fill(zoo, label, network, rng, disguises=4)
            if later is not None:
                zoo.add(f"{label}/later", later, f"{label} later")
                zoo.add(f"{label}/later-moved", disguised(later, rng), f"{label} later")
            i += 1
        spoiled = spoil(zoo.folder)
        files = len(zoo.of) + len(zoo.half)
        print(f"{files} files of {i} networks, and {len(spoiled)} that hold none; made in {time.perf_counter() - start:.0f} s")
        result, seconds = dedup(zoo.folder)
        known = {**zoo.of, **zoo.half}

        def inside(path: str) -> str:
            return str(Path(path).relative_to(zoo.folder))

        sure, false = set(), []
        joined: dict[str, str] = {}
        for group in result["groups"]:
            keep = inside(group["keep"])
            members = {keep}
            for link in group["links"]:
                path = inside(link["path"])
                if link["kind"] in ("identical", "equivalent"):
                    members.add(path)
                    if known[path] != known[keep]:
                        false.append((keep, path, link["kind"]))
                elif link["kind"] == "same-to-precision":
                    joined[path] = keep
                    if path not in zoo.half or not zoo.of[keep].startswith(zoo.half[path]):
                        false.append((keep, path, link["kind"]))
            if len(members) > 1:
                sure.add(frozenset(members))
        wanted = zoo.copies()
        print(f"groups of copies: {len(wanted)} made, {len(wanted & sure)} found whole")
        print(f"missed or split: {[sorted(g) for g in wanted - sure][:5] or 'none'}")
        print(f"false links: {false[:5] or 'none'}")
        print(f"casts: {len(zoo.half)} made, {len(joined)} found by the network they come from")
        told = {inside(u["path"]) for u in result["unreadable"]}
        print(f"unreadable: {len(told)}, {'as made' if told == set(spoiled) else 'NOT as made'}")
        functions = sum(link["kind"] == "same-function" for g in result["groups"] for link in g["links"])
        print(f"same function (noise of a millionth, within the bound of the outputs): {functions}")
        print(f"canon dedup: {seconds:.1f} s, {files / seconds:.0f} files/s; largest process {peak():.0f} MB")


def dedup(folder: Path) -> tuple[dict[str, Any], float]:
    """The answer of the command, and its seconds."""
    words = [sys.executable, "-c", "import sys; from canon_cli.main import main; sys.exit(main())"]
    start = time.perf_counter()
    done = subprocess.run([*words, "dedup", str(folder), "--json", "-", "--quiet"], capture_output=True, check=False)
    seconds = time.perf_counter() - start
    assert done.returncode == 1, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, seconds


def peak() -> float:
    """Of this process and those it has waited for, MB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1000


def scanning(args: argparse.Namespace) -> None:
    """A scan against reading bytes, in turn, with all in the system's cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "zoo"
        folder.mkdir()
        first = write_mlp(folder / "000000.h5", (30, 70, 40, 20))
        for i in range(1, args.files):
            other_numbers(first, folder / f"{i:06}.h5", i)
        size = first.stat().st_size
        print(f"{args.files} files of {size / 1000:.0f} kB")
        for jobs in (1, 2):
            ratios = []
            for _ in range(args.rounds):
                start = time.perf_counter()
                for entry in sorted(os.scandir(folder), key=lambda e: e.name):
                    with open(entry.path, "rb") as f:
                        f.read()
                plain = time.perf_counter() - start
                start = time.perf_counter()
                with Index() as index:
                    scan([str(folder)], index, Processes(jobs))
                taken = time.perf_counter() - start
                ratios.append(taken / plain)
            print(
                f"{jobs} processes: bytes {plain * 1e6 / args.files:.0f} us a file, scan {taken * 1e6 / args.files:.0f} us a file; "
                f"ratio {statistics.median(ratios):.1f} ({', '.join(f'{r:.1f}' for r in ratios)}); largest process {peak():.0f} MB"
            )


def figured(args: argparse.Namespace) -> None:
    """The path kernel of networks in memory against sha256 of as many bytes; and all of a fingerprint."""
    for width in (512, 1024, 2048, 4096):
        with tempfile.TemporaryDirectory() as name:
            path = write_mlp(Path(name) / "a.h5", (64, width, width, width, 10))
            network, data = read(path).network, path.read_bytes()
        plans = Plans(probes=False)
        _, plan = plans.fingerprint(network)
        stacked = {n: t[None] for n, t in network.tensors.items()}
        from canon.zoo.steps import Inputs

        assert plan.paths is not None
        every = plan.paths
        timed = {
            "sha256": lambda: hashlib.sha256(data).digest(),
            "even powers": lambda: every.run(Inputs(stacked, {}, np.full(1, 1e-6))),
            "fingerprint": lambda: plans.fingerprint(network),
        }
        if plan.paths.keys == (2, 4):
            from canon.symmetry import derive
            from canon.zoo.graphs import path_kernel

            whole = path_kernel(network, derive(network), stored=True)
            timed["all powers"] = lambda: whole.run(Inputs(stacked, {}, np.full(1, 1e-6)))
        found = {label: best(run, args.rounds) for label, run in timed.items()}
        sha = found.pop("sha256")
        print(
            f"{len(data) / 1e6:.1f} MB: sha256 {sha * 1e3:.2f} ms; " + ", ".join(f"{n} {t / sha:.2f}" for n, t in found.items())
        )


def best(run: Callable[[], object], rounds: int) -> float:
    """The least seconds of several runs."""
    times = []
    for _ in range(3 * rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def many(args: argparse.Namespace) -> None:
    """An index filled with made-up fingerprints of one structure, copies among them."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        asked = write_mlp(Path(name) / "asked.h5", (30, 70, 40, 20))
        copy_ = Path(name) / "copy.h5"
        from canon.formats import write

        run = read(asked)
        write(run.with_network(disguised(run.network, rng)), copy_, "canon")
        own, sort = fingerprint(run.network), sort_of(run)
        index = Index(Path(name) / "index")
        start = time.perf_counter()
        scan([str(copy_)], index)
        count = len(own.figures.values)
        width = len(own.order.values)
        for begin in range(0, args.files, 50_000):
            n = min(50_000, args.files - begin)
            values = np.array(own.figures.values) + rng.normal(0, 0.1, (n, count))
            values[: n // 1000] = values[n // 1000 : 2 * (n // 1000)]  # a copy for one in a thousand
            order = rng.normal(0, 1, (n, width))
            records = []
            for j in range(n):
                place = Place(f"/made/{begin + j}", 36_000, 1)
                print_ = Fingerprint(
                    own.structure,
                    Figures(PATHS, tuple(values[j].tolist()), own.figures.room),
                    Figures(""),
                    f"{begin + j:x}",
                    Figures(ORDER, tuple(order[j].tolist())),
                )
                records.append(Record(place, f"{begin + j:064x}", sort, (print_,)))
            index.found([r.place for r in records])
            index.store(records)
        filled = time.perf_counter() - start
        start = time.perf_counter()
        index.choose()
        chosen = time.perf_counter() - start
        (structure,) = {s for s, kinds in index.structures() if kinds.get(PATHS, 0) > 1}
        start = time.perf_counter()
        near = sum(len(p) for p in crowded(index.prints(structure, PATHS, wide=False)))
        windows = time.perf_counter() - start
        memory = peak()
        print(
            f"{args.files:,} fingerprints: written in {filled:.0f} s, {Path(index.path).stat().st_size / 1e9:.2f} GB; "
            f"contents told apart {chosen:.1f} s; {near:,} near another, found in {windows:.1f} s from the file; {memory:.0f} MB"
        )
        parts = list(index.prints(structure, PATHS, wide=False))
        whole = Prints.joined(parts, count)
        start = time.perf_counter()
        again = sum(len(p) for p in crowded([whole.sorted()]))
        print(f"in memory: {time.perf_counter() - start:.1f} s, {again:,} near another")
        index.close()
        with Index(Path(name) / "index") as index:
            for relatives in (0, 0, 10):
                start = time.perf_counter()
                answer = query(str(asked), index, relatives)
                took = time.perf_counter() - start
                assert [c.file.place.path for c in answer.copies] == [str(copy_)]
                print(f"query: {took:.2f} s, the copy found, {answer.not_looked_at:,} not looked at (relatives {relatives})")


def main() -> None:
    """Pick what to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("truth", "scan", "figures", "many"))
    parser.add_argument("--files", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.files is None:
        args.files = {"truth": 2000, "scan": 10_000, "many": 1_000_000}.get(args.what, 0)
    {"truth": truth, "scan": scanning, "figures": figured, "many": many}[args.what](args)


if __name__ == "__main__":
    main()
