"""What `canon similarity` prints: the map of layers, each pair's measures beside chance, and a line to remember last."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .console import Cell, Column, Page
from .text import some

if TYPE_CHECKING:
    from canon.similarity import Figure, Similarity
    from canon.similarity.result import LayerFigures, SideInfo
    from canon.similarity.units import Unit, Units

MANY_PAIRS = 6
"""Pairs of layers up to which a terminal shows each with all its figures; of more, one line. Elsewhere all are shown."""
CSV_HEADER = (
    "layer_a", "layer_b", "a", "b", "correlation", "distance", "threshold", "found", "scale",
    "runner_up", "runner_up_ratio", "active_a", "active_b", "flags",
)  # fmt: skip


def print_similarity(result: Similarity, units: bool, page: Page | None = None, told: Iterable[str] = ()) -> None:
    """Print a result on stdout. units: the tables of units too; told: notes already given elsewhere."""
    page = page or Page()
    page.entry("a", _side(result.a))
    page.entry("b", _side(result.b))
    for path in result.references:
        page.entry("reference", path)
    page.entry("samples", _samples(result))
    page.line()
    _map(page, result)
    if page.terminal and len(result.detailed) > MANY_PAIRS:
        page.line()
        _pairs(page, result)
    else:
        for pair in result.detailed:
            page.line()
            _pair(page, result, pair)
    for table in result.units:
        page.line()
        _units(page, table, every=units)
    page.line()
    skip = set(told)
    for note in result.notes:
        if note not in skip:
            page.entry("note", note)
    if result.notes:
        page.line()
    page.sentence(summary(result), "bold")


def _side(side: SideInfo) -> str:
    about = "".join(f"{word}; " for word in (_about(side),) if word)
    return f"{side.path}: {about}{side.origin}"


def _about(side: SideInfo) -> str:
    step = side.about.get("checkpoint")
    return f"{side.about.get('format', '')}{f' at checkpoint {step}' if step else ''}"


def _samples(result: Similarity) -> str:
    checked = {"same probes": "the same on both sides", "agree": "their names agree on both sides"}
    said = f"{result.samples:,}, {checked.get(result.identity or '', 'taken to be the same on both sides')}"
    if any(layer.positions > 1 for side in (result.a, result.b) for layer in side.layers):
        said += f"; {result.positions}"
    return said


# the map


def _map(page: Page, result: Similarity) -> None:
    from canon.similarity import MEASURES

    measure = MEASURES[result.lead]
    rows, columns = ([layer.name for layer in side.layers] for side in (result.a, result.b))
    found = {(p.a, p.b): p.measures[result.lead] for p in result.layers}
    cells = [[_cell(found.get((x, y)), (x, y) in result.marked) for y in columns] for x in rows]
    page.sentence(f"{measure.name} ({measure.title}), layers of a down, of b across; * the best of its row, if beyond chance")
    page.heat(rows, columns, cells)


def _cell(figure: Figure | None, marked: bool) -> Cell | None:
    if figure is None:
        return None
    if figure.value is None:
        return Cell("--", 0.0)
    shade = figure.calibrated if figure.calibrated is not None else figure.value
    return Cell(f"{figure.value:.2f}" if abs(figure.value) < 1000 else f"{figure.value:.0e}", min(max(shade, 0.0), 1.0), marked)


# pairs


def _pairs(page: Page, result: Similarity) -> None:
    """Many pairs, a line each."""
    names = list(dict.fromkeys(name for pair in result.detailed for name in pair.measures))
    columns = [Column("layers")]
    for k, name in enumerate(names):
        columns += [Column("value", name, True, leaves=k), Column("calibrated", name, True, leaves=len(names) + k)]
    columns.append(Column("largest p", right=True))
    rows = []
    for pair in result.detailed:
        row: list[object] = [pair.a if pair.a == pair.b else f"{pair.a} with {pair.b}"]
        for name in names:
            f = pair.measures.get(name)
            row += ["", ""] if f is None else [number(f.value), number(f.calibrated)]
        known = [f.p for f in pair.measures.values() if f.p is not None]
        rows.append([*row, _p(max(known)) if known else ""])
    left = page.table(columns, rows)
    if left:
        page.entry("left out", f"at this width: {', '.join(column.title for column in left)}")
    page.sentence("calibrated: 0 at chance, 1 at the same; piped or with --json, every figure is listed")


def _pair(page: Page, result: Similarity, pair: LayerFigures) -> None:
    from canon.similarity import MEASURES

    page.sentence(f"{pair.a} of a with {pair.b} of b", "bold")
    chance = any(f.chance is not None for f in pair.measures.values())
    reference = bool(result.references)
    columns = [Column("measure"), Column("value", right=True)]
    if chance:
        columns += [
            Column("mean", "chance", True),
            Column("sd", "chance", True, leaves=2),
            Column("z", right=True, leaves=3),
            Column("p", right=True),
            Column("calibrated", right=True),
        ]
    if reference:
        columns.append(Column("reference", right=True))
    rows = []
    for name, f in pair.measures.items():
        row: list[object] = [name, number(f.value)]
        if chance:
            row += [
                number((f.chance or {}).get("mean")),
                number((f.chance or {}).get("sd")),
                _z(f.z),
                _p(f.p),
                number(f.calibrated),
            ]
        if reference:
            row.append(_reference(f))
        rows.append(row)
    left = page.table(columns, rows)
    if left:
        page.entry("left out", f"at this width: {', '.join(column.title for column in left)}")
    for name, f in pair.measures.items():
        if f.why:
            page.entry("", f"{name} {f.why}")
    between = _between(pair)
    if between:
        page.entry("", between)
    smaller = [name for name, f in pair.measures.items() if MEASURES[name].distance and f.value is not None]
    if smaller:
        page.entry("", f"smaller is more alike: {', '.join(smaller)}")


def _reference(f: Figure) -> str:
    values = [v for v in f.reference.values() if v is not None]
    if not values:
        return ""
    if len(values) == 1:
        return number(values[0])
    return f"{number(min(values))} to {number(max(values))}"


def number(value: float | None) -> str:
    """Three decimals, or two digits of what would be lost in them."""
    if value is None:
        return ""
    if value == 0 or abs(value) < 5e-9:  # what is left of a distance of zero
        return "0"
    return f"{value + 0.0:.3f}" if 0.0005 <= abs(value) < 1e4 else f"{value:.1e}"


def _z(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if abs(value) < 1e4 else f"{value:.0e}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


# units


def _units(page: Page, table: Units, every: bool) -> None:
    page.sentence(f"Units of {table.a} of a with their partners in {table.b} of b", "bold")
    if every:
        columns = [
            Column("a", right=True),
            Column("b", right=True),
            Column("r", right=True),
            Column("runner-up", right=True, leaves=3),
            Column("ratio", right=True, leaves=3),
            Column("a", "active", True, leaves=2),
            Column("b", "active", True, leaves=2),
            Column("found", leaves=0),
            Column("flags", leaves=4),
        ]
        page.table(columns, [_unit(u) for u in table.units])
        page.sentence(
            "ratio: the partner's distance over the runner-up's; over 1, the runner-up is nearer, but fits another better"
        )
    beyond = "" if table.threshold is None else f" and correlated beyond chance ({table.threshold:.2f})"
    signs = ", signs aside" if table.unsigned else ""
    live = [u for u in table.units if u.correlation is not None]
    page.entry(
        "both", f"{len(table.both)} of {len(live)} pairs: each other's best{signs},{beyond.removeprefix(' and')}".rstrip(",")
    )
    for side, name in ((0, "a only"), (1, "b only")):
        numbers = [str(i) for i in table.only(side)]
        if numbers:
            page.entry(name, some(numbers, 24))


def _unit(u: Unit) -> list[object]:
    rival = u.runner_up or {}
    active = ["" if share is None else f"{share:.0%}" for share in u.active]
    aside = u.correlation is None and any(flag.startswith(("dead", "constant")) for flag in u.flags)
    where = "both" if u.found else "" if aside else "no"
    r = "" if u.correlation is None else f"{u.correlation + 0.0:.3f}"
    return [
        "" if u.a is None else u.a,
        "" if u.b is None else u.b,
        r,
        rival.get("b", ""),
        number(float(rival["ratio"])) if rival else "",
        *active,
        where,
        ", ".join(u.flags),
    ]


def units_csv(result: Similarity) -> str:
    """All units as CSV, every figure in full: a line a unit of a, then those of b without a partner, pair by pair of layers.

    threshold: the correlation beyond chance; found: 1 where the unit is on both sides; flags: separated by blanks, each with
    its side after an underscore.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for table in result.units:
        for u in table.units:
            rival = u.runner_up or {}
            flags = " ".join(flag.replace(" ", "_") for flag in u.flags)
            writer.writerow((
                table.a, table.b, u.a, u.b, u.correlation, u.distance, table.threshold, int(u.found), u.scale,
                rival.get("b"), rival.get("ratio"), *u.active, flags,
            ))  # fmt: skip
    return text.getvalue()


# the last line


def summary(result: Similarity) -> str:
    """What to remember: whether layers find their namesakes, and how they match between chance and the references."""
    names = {layer.name for layer in result.b.layers}
    with_namesake = [one for one in result.best if one.a in names]
    if with_namesake:
        hits = sum(one.a == one.b and (one.a, one.b) in result.marked for one in with_namesake)
        head = f"{hits} of {len(with_namesake)} layers of a are most like the layer of b of the same name"
    else:
        head = f"most alike: {some([f'{one.a} and {one.b}' for one in result.best], 6)}" if result.best else "nothing to say"
    told = [(name, f) for pair in _main(result) for name, f in [_telling(pair)] if f is not None]
    if not told or len({name for name, _ in told}) > 1:
        return head
    values = _span([f.value for _, f in told])
    others = "references" if len(result.references) > 1 else "reference"
    ends: list[tuple[str, list[float | None]]] = [
        ("chance", [f.chance["mean"] for _, f in told if f.chance is not None]),
        (others, [v for _, f in told for v in f.reference.values()]),
    ]
    beside = "".join(f", {what} {_span(found)}" for what, found in ends if _span(found))
    return f"{head}; {told[0][0]} {values}{beside}"


def _span(values: Iterable[float | None]) -> str:
    found = [f"{v + 0.0:.2f}" for v in sorted(v for v in values if v is not None)]
    return "" if not found else found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _main(result: Similarity) -> Sequence[LayerFigures]:
    """Of each layer of a the pair with its namesake, or the first there is."""
    out: dict[str, LayerFigures] = {}
    for pair in result.detailed:
        if pair.a not in out or pair.a == pair.b:
            out[pair.a] = pair
    return list(out.values())


def _telling(pair: LayerFigures) -> tuple[str, Figure | None]:
    """The measure that tells most to whoever reads one only: the matched correlation, or else the first there is."""
    known = {name: f for name, f in pair.measures.items() if f.value is not None}
    name = next((n for n in known if n.startswith("matching")), next(iter(known), ""))
    return name, known.get(name)


def _between(pair: LayerFigures) -> str:
    """The value between its two ends, in a sentence; "" where one of them is not known."""
    name, f = _telling(pair)
    reference = _span(f.reference.values()) if f is not None else ""
    if f is None or f.value is None or f.chance is None or not reference:
        return ""
    others = "the other networks'" if len(f.reference) > 1 else "the other network's"
    return f"{name}: between chance {f.chance['mean']:.2f} and {others} {reference}: {f.value:.3f}"
