"""What `canon compare` prints: the spaces, the units that fit worst, the evidence, and the verdict last."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .console import Column, Page
from .text import some

if TYPE_CHECKING:
    from canon.compare import Comparison
    from canon.compare.result import File, SpaceFigures, UnitFigures

MANY_SPACES = 40
"""A terminal shows this many spaces; of more, the FARTHEST. Elsewhere all are listed."""
FARTHEST = 20
MANY_UNITS = 4096
"""Units up to which the report looks for those that fit worst without being asked to list them."""
WORST = 5
_ASIDE = {"dead", "constant", "negligible"}
"""Flags of units that count in no distance."""

CSV_HEADER = (
    "space", "a", "b", "distance", "distance_chance", "correlation", "correlation_chance", "scale",
    "runner_up", "runner_up_ratio", "flags",
)  # fmt: skip


def print_comparison(result: Comparison, units: bool, page: Page | None = None, told: Iterable[str] = ()) -> None:
    """Print a comparison on stdout. units: all of them, not only the worst; told: notes already given elsewhere."""
    page = page or Page()
    page.entry("a", _file(result.a))
    page.entry("b", _file(result.b))
    page.line()
    if result.spaces:
        _spaces(page, result)
        page.line()
        _units(page, result, units)
    _tensors(page, result)
    if result.worst is not None and result.same:
        page.entry("worst entry", _worst(result.worst))
    _evidence(page, result)
    page.entry("check", _check(result.check))
    if result.sampled:
        page.entry("sampled", _sampled(result.sampled))
    if result.partial:
        for key, value in result.partial.items():
            page.entry(key.replace("_", " "), _words(value))
    skip = set(told)
    for note in result.notes:
        if note not in skip:
            page.entry("note", note)
    page.line()
    style = "bold green" if result.same else "bold red" if result.verdict == "independent" else "bold yellow"
    page.sentence(verdict_line(result), style)


def verdict_line(result: Comparison) -> str:
    """The verdict as a sentence, with what it rests on, and for relatives the space that moved most."""
    line = f"{result.verdict}: {result.reason}"
    far = [(s.matched, s.name) for s in result.spaces if s.matched is not None]
    if result.verdict == "related" and far:
        most, name = max(far)
        line += f"; matched distance {distance(result.distance['matched'])}, and {name} moved most ({distance(most)})"
    return line


def distance(value: float | None) -> str:
    """A distance or a ratio: three decimals, or two digits of what would be lost in them."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.3f}" if 0.0005 <= abs(value) < 1e4 else f"{value:.1e}"


def _correlation(value: float | None) -> str:
    return "" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _file(file: File) -> str:
    step = f" at checkpoint {file.checkpoint}" if file.checkpoint else ""
    return f"{file.path}{step}: {file.format}, {file.parameters:,} parameters, {file.dtype}"


# spaces


def _spaces(page: Page, result: Comparison) -> None:
    shown = list(result.spaces)
    if page.terminal and len(shown) > MANY_SPACES:
        shown = _farthest(shown)
    chance = any(s.chance is not None for s in result.spaces)
    all_live = all(s.live == s.units for s in result.spaces)
    columns = [
        Column("space"),
        Column("units", right=True),
        Column("live", right=True, leaves=7 if all_live else 2),
        Column("moved", right=True, leaves=3),
        Column("raw", "distance", True, leaves=4),
        Column("normalised", "distance", True, leaves=6),
        Column("matched", "distance", True),
    ]
    if chance:
        columns += [
            Column("chance", "distance", True),
            Column("raw", "correlation", True, leaves=8),
            Column("matched", "correlation", True, leaves=5),
            Column("chance", "correlation", True, leaves=5),
        ]
    columns.append(Column("group", leaves=9))
    rows = [_space(s, chance) for s in shown]
    foot = 0
    if len(result.spaces) > 1:
        rows.append(_whole(result, chance))
        foot = 1
    left = page.table(columns, rows, foot)
    if len(shown) < len(result.spaces):
        rest = [s.matched for s in result.spaces if s not in shown and s.matched is not None]
        span = f", at matched distances up to {distance(max(rest))}" if rest else ""
        page.sentence(
            f"The {len(shown)} of {len(result.spaces)} spaces that are farthest apart; {len(result.spaces) - len(shown)}"
            f" more{span}. Piped or with --json, all are listed."
        )
    if any(c.header == "group" for c in left):
        page.entry("group", _groups(result.spaces))
    narrow = [c.title for c in left if c.header != "group" and not (c.header == "live" and all_live)]
    if narrow:
        page.entry("left out", f"at this width: {', '.join(narrow)}")
    d, chance_of = result.distance, result.distance.get("chance")
    raw = distance(d["raw"])
    page.entry("raw", f"{raw} as stored, which is not invariant: rescaling units changes no output, yet drives it to 1")
    gauge = " in the balanced gauge" if result.gauge == "balanced" else ""
    matched = f"{distance(d['matched'])} with units scaled alike{gauge} and paired (0 is the same, 1 is orthogonal)"
    if chance_of:
        matched += f"; shuffled weights come to {chance_of['mean']:.3f} +- {chance_of['sd']:.3f}"
    if d.get("lower_bound"):
        matched += f"; no pairing gets under {distance(d['lower_bound'])}"
    page.entry("matched", matched)


def _farthest(spaces: Sequence[SpaceFigures]) -> list[SpaceFigures]:
    """The spaces of the largest matched distance, in their own order."""
    order = sorted(range(len(spaces)), key=lambda i: -(spaces[i].matched or 0.0))[:FARTHEST]
    return [spaces[i] for i in sorted(order)]


def _space(s: SpaceFigures, chance: bool) -> list[object]:
    row: list[object] = [s.name, s.units, s.live, s.moved, distance(s.raw), distance(s.normalised), distance(s.matched)]
    if chance:
        beside = s.chance is not None  # no correlation is printed without chance
        row.append(distance(s.chance))
        row += [_correlation(s.correlation.get(k)) if beside else "" for k in ("raw", "matched", "chance")]
    return [*row, s.group]


def _whole(result: Comparison, chance: bool) -> list[object]:
    totals = [sum(getattr(s, k) or 0 for s in result.spaces) for k in ("units", "live", "moved")]
    d = result.distance
    row: list[object] = ["network", *totals, distance(d["raw"]), distance(d["normalised"]), distance(d["matched"])]
    if chance:
        row += [distance((d.get("chance") or {}).get("mean")), "", "", ""]
    return [*row, ""]


def _groups(spaces: Sequence[SpaceFigures]) -> str:
    names: dict[str, list[str]] = {}
    for s in spaces:
        names.setdefault(s.group, []).append(s.name)
    return "; ".join(f"{group}: {_spaces_named(found)}" for group, found in names.items())


def _spaces_named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{len(names)} spaces"


# units


def _units(page: Page, result: Comparison, every: bool) -> None:
    if not result.units:
        if any(s.group != "fixed" for s in result.spaces):
            page.entry("units", "too many to look at one by one unasked; --units lists them with their partners")
        return
    live = [u for u in result.units if not _ASIDE & set(u.flags)]
    aside = len(result.units) - len(live)
    beside = f" (and {aside} dead, constant or negligible)" if aside else ""
    worst = sorted(live, key=lambda u: -u.distance)[:WORST]
    if every:
        page.sentence(f"Units of a with their partners in b, as stored: {len(live)} live{beside}")
        _unit_table(page, result, result.units)
        page.line()
    elif result.same:
        fit = f"; the worst, {_unit(worst[0])}, to {distance(worst[0].distance)}" if worst else ""
        page.entry("units", f"all {len(live)} live ones found their partner{beside}{fit}")
    elif worst:
        page.sentence(f"Units of a that fit their partner in b worst, of {len(live)} live{beside}")
        _unit_table(page, result, worst)
        page.line()


def _unit(u: UnitFigures) -> str:
    return f"{u.space}[{u.a}] with b's [{u.b}]"


def _unit_table(page: Page, result: Comparison, units: Sequence[UnitFigures]) -> None:
    columns = [
        Column("space"),
        Column("a", right=True),
        Column("b", right=True),
        Column("distance", right=True),
        Column("chance", right=True, leaves=2),
        Column("runner-up", right=True),
        Column("ratio", right=True),
        Column("scale", right=True, leaves=1),
        Column("flags", leaves=3),
    ]
    chance = {s.name: s.chance for s in result.spaces}
    rows = []
    for u in units:
        rival = u.runner_up or {}
        row = [u.space, u.a, u.b, distance(u.distance), distance(chance.get(u.space)), rival.get("b")]
        rows.append([*row, distance(rival.get("ratio")), f"{u.scale:.3g}", ", ".join(u.flags)])
    filled = [i for i, c in enumerate(columns) if any(r[i] not in ("", None) for r in rows) or not c.leaves]
    if not any(u.runner_up for u in units):
        filled = [i for i in filled if columns[i].header not in ("runner-up", "ratio")]
    page.table([columns[i] for i in filled], [[r[i] for i in filled] for r in rows])
    if any(u.runner_up for u in units):
        page.sentence(
            "ratio: the partner's distance over the runner-up's; over 1, the runner-up is nearer, but fits another better"
        )


def units_csv(result: Comparison) -> str:
    """All units as CSV, every figure in full: one line a unit of A, in the order of A; empty where there is no figure.

    distance_chance, correlation_chance: those of the unit's space; runner_up_ratio: the partner's distance over the
    runner-up's; flags: separated by blanks.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    spaces = {s.name: s for s in result.spaces}
    for u in result.units:
        space = spaces.get(u.space)
        rival = u.runner_up or {}
        by_chance = (space.chance, space.correlation.get("chance")) if space else (None, None)
        writer.writerow((
            u.space, u.a, u.b, u.distance, by_chance[0], u.correlation, by_chance[1], u.scale,
            rival.get("b"), rival.get("ratio"), " ".join(u.flags),
        ))  # fmt: skip
    return text.getvalue()


# what else was found


def _tensors(page: Page, result: Comparison) -> None:
    counts: dict[str, int] = {}
    for t in result.tensors:
        counts[t.status] = counts.get(t.status, 0) + 1
    words = {"same": "same", "differs": "differ", "shape": "of another shape"}
    said = ", ".join(f"{n} {words.get(status, status)}" for status, n in sorted(counts.items(), key=lambda c: -c[1]))
    differ = sorted((t for t in result.tensors if t.status == "differs" and t.raw is not None), key=lambda t: -(t.raw or 0))
    if differ:
        shown = ", ".join(f"{_marked(t.a or '', t.statistics)} {distance(t.raw)}" for t in differ[:3])
        said += f"; most as stored: {shown}"
    for status in ("shape", "only in a", "only in b"):
        found = [_marked(t.a or t.b or "", t.statistics) for t in result.tensors if t.status == status]
        if found:
            said += f"; {words.get(status, status)}: {some(found)}"
    statistics = sum(t.statistics for t in result.tensors)
    if statistics:
        said += f"; * marks running statistics of batch norms, {statistics} in all"
    page.entry("tensors", said)


def _marked(name: str, statistics: bool) -> str:
    return f"{name}*" if statistics else name


def _worst(worst: Mapping[str, Any]) -> str:
    at = ", ".join(str(i) for i in worst["index"])
    return f"{worst['tensor']}[{at}] is off by {worst['deviation']:.2g} of its rounding bound"


def _evidence(page: Page, result: Comparison) -> None:
    if result.evidence is None:
        return
    from canon.compare.evidence import STORED_ORDER

    order, standing = result.evidence.get("stored_order"), result.evidence.get("standing_out")
    decided = False
    if order is not None:
        decided = order["z"] >= STORED_ORDER
        limit = f"the {STORED_ORDER:g} from which it shows common descent"
        said = f"over {limit}: units still stand where they stood" if decided else f"under {limit}"
        page.entry("evidence", f"stored order: z = {round(order['z'], 1) + 0.0:.1f}, {said}")
    if standing is not None:
        view = f", seen {standing['view']}" if standing.get("view") and standing["view"] != "joint" else ""
        side = "over" if standing["score"] >= standing["threshold"] else "under"
        page.entry(
            "" if order is not None else "evidence",
            f"standing out: score {standing['score']:.2f}, {side} the {standing['threshold']:.2f} from which it shows"
            f" common descent: {standing['share']:.0%} of {standing['units']} units have a partner clear of every rival"
            f" ({standing['chance']:.0%} on shuffled weights){view}",
        )
    elif decided:
        page.entry("", "standing out: not looked for, stored order decides")


def _check(check: Mapping[str, Any]) -> str:
    parts = []
    if check["outputs"] is not None:
        parts.append(f"outputs of a and b, run on {check['probes']} probes, {_agreement(check['outputs'])}")
    moved = [(side, check[f"moved_{side}"]) for side in ("a", "b") if check[f"moved_{side}"] is not None]
    if len(moved) == 2 and all(d <= 1 for _, d in moved):
        parts.append(f"a and b agree with their canonical forms to {moved[0][1]:.2g} and {moved[1][1]:.2g}")
    else:
        parts += [f"{side} and its canonical form {_agreement(d)}" for side, d in moved]
    if check["why"]:
        parts.append(check["why"])
    return "; ".join(parts) or "not run"


def _agreement(deviation: float) -> str:
    if deviation <= 1:
        return f"agree to {deviation:.2g} of the rounding bound"
    return f"differ, by {deviation:.2g} times the rounding bound"


def _sampled(sampled: Mapping[str, int]) -> str:
    sizes = sorted(set(sampled.values()))
    return f"chance and lower bound looked at {_words(sizes)} units each of {_spaces_named(list(sampled))}; --full looks at all"


def _words(value: object) -> str:
    if isinstance(value, list | tuple):
        return some([str(v) for v in value]) or "nothing"
    return str(value)
