"""Measures the evidence of common descent on nets whose descent is known, and prints the tables of README.md.

    OMP_NUM_THREADS=1 PYTHONPATH=data:. python data/calibration/make.py

Trains every family of `families.py`, has canon compare all its pairs, as stored and with the second net disguised, and
writes `pairs.csv`, one line for each pair. Needs scikit-learn, for its digits. Two processes,
sixteen minutes.
"""

from __future__ import annotations

import csv
import multiprocessing
import time
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from families import FAMILIES, make
from weigh import Said, cosine, disguised, run, weigh

from canon.compare.evidence import FEWEST

HERE = Path(__file__).parent
FOUND = ("equivalent", "same-to-precision", "same-function", "related")
WORDS = ("related", "undecided", "independent")


@dataclass(frozen=True)
class Row:
    """One pair. cosine: of the nets as stored, in the balanced gauge."""

    family: str
    related: bool
    a: str
    b: str
    cosine: float
    stored: Said
    disguised: Said


def main() -> None:
    """Measure all, write, print."""
    begin = time.perf_counter()
    largest = sorted(range(len(FAMILIES)), key=lambda i: -sum(FAMILIES[i].sizes))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        done = dict(pool.imap_unordered(_family, largest))
    rows = [row for i in range(len(FAMILIES)) for row in done[i]]
    _write(rows)
    _table(rows)
    _families(rows)
    _misses(rows)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")


def _family(index: int) -> tuple[int, list[Row]]:
    begin = time.perf_counter()
    family = FAMILIES[index]
    nets, pairs = make(family, index)
    runs = {name: run(net, name) for name, net in nets.items()}
    rng = np.random.default_rng([13, index])
    rows = []
    for pair in pairs:
        a, b = runs[pair.a], runs[pair.b]
        moved = run(disguised(nets[pair.b], rng), pair.b)
        rows.append(Row(family.name, pair.related, pair.a, pair.b, cosine(a, b), weigh(a, b), weigh(a, moved)))
    print(f"{family.name}: {len(nets)} nets, {len(rows)} pairs, {time.perf_counter() - begin:.0f} s", flush=True)
    return index, rows


def _write(rows: list[Row]) -> None:
    with (HERE / "pairs.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["family", "related", "a", "b", "cosine", "stored", "z", "disguised", "z", "score"])
        for r in rows:
            score = "" if r.disguised.score is None else f"{r.disguised.score:.2f}"
            said = (r.stored.word[0], f"{r.stored.z:.1f}", r.disguised.word[0], f"{r.disguised.z:.1f}", score)
            out.writerow([r.family, int(r.related), r.a, r.b, f"{r.cosine:.2f}", *said])


def _word(said: Said) -> str:
    return "related" if said.word in FOUND else said.word


def _table(rows: list[Row]) -> None:
    print("\n| truth | pairs | related | undecided | independent | Z | score / asked |\n|---|---|---|---|---|---|---|")
    for truth in (True, False):
        for form in ("stored", "disguised"):
            said: list[Said] = [getattr(r, form) for r in rows if r.related == truth]
            words = Counter(map(_word, said))
            z = [s.z for s in said]
            shares = [s.score / s.threshold for s in said if s.score is not None and s.threshold]
            name = f"{'related' if truth else 'independent'}, {'as ' if form == 'stored' else ''}{form}"
            counts = " | ".join(str(words[w]) for w in WORDS)
            print(
                f"| {name} | {len(said)} | {counts} | {min(z):.1f} to {max(z):.1f} | {min(shares):.2f} to {max(shares):.2f} |"
            )


def _families(rows: list[Row]) -> None:
    print(
        "\n| family | related: found as stored | disguised: found, undecided, independent | least Z as stored "
        "| independent: called related, undecided, independent | largest score / asked | seconds |\n"
        "|---|---|---|---|---|---|---|"
    )
    for family in dict.fromkeys(r.family for r in rows):
        kin = [r for r in rows if r.family == family and r.related]
        strangers = [s for r in rows if r.family == family and not r.related for s in (r.stored, r.disguised)]
        hidden, apart = (Counter(map(_word, x)) for x in ([r.disguised for r in kin], strangers))
        shares = [s.score / s.threshold for s in strangers if s.score is not None and s.threshold]
        seconds = np.median([r.disguised.seconds for r in rows if r.family == family])
        print(
            f"| {family} | {sum(_word(r.stored) == 'related' for r in kin)} of {len(kin)} "
            f"| {', '.join(str(hidden[w]) for w in WORDS)} | {min(r.stored.z for r in kin):.1f} "
            f"| {', '.join(str(apart[w]) for w in WORDS)} | {max(shares):.2f} | {seconds:.2f} |"
        )


def _misses(rows: list[Row]) -> None:
    print("\n| family | pair | cosine | as stored (Z) | disguised (score, asked, units) |\n|---|---|---|---|---|")
    narrow: Counter[str] = Counter()
    for r in rows:
        wrong = {_word(s) for s in (r.stored, r.disguised)}
        if wrong == {"related"} if r.related else "related" not in wrong:
            continue
        if r.related and r.disguised.units is not None and r.disguised.units < FEWEST:
            narrow[r.family] += 1
            continue
        _, _, score, asked, units, *_ = astuple(r.disguised)
        weighed = "" if score is None else f" ({score:.2f}, {asked:.2f}, {units})"
        print(
            f"| {r.family}{'' if r.related else ' FALSE'} | {r.a}, {r.b} | {r.cosine:.2f} "
            f"| {r.stored.word} ({r.stored.z:.1f}) | {r.disguised.word}{weighed} |"
        )
    for family, count in narrow.items():
        print(f"| {family} | {count} pairs of fewer than {FEWEST} units | | undecided | undecided |")


if __name__ == "__main__":
    main()
