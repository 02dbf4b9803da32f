"""Pictures of a similarity: the map of layers, and for each pair its unit correlations and how matched units stand to chance.

Needs matplotlib, the extra `plot`; imported only where a picture is drawn. The same result gives the same bytes.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canon.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from canon.similarity import Similarity
    from canon.similarity.units import Units

KINDS = (".svg", ".png", ".pdf")
MOST_PAIRS = 8
"""Pairs whose units are drawn; of more, the first."""
_NUMBERED = 16
"""Layers on the longer side up to which the map carries its numbers."""
_HAIRLINE = 64
"""Units up to which ticks number them all the way."""


def check(target: str) -> None:
    """Raise UsageError for a file that is no picture by its ending, MissingExtra where matplotlib is not installed."""
    if Path(target).suffix.lower() not in KINDS:
        raise UsageError("--plot", f"{target!r} ends in none of {', '.join(KINDS)}", "The ending says what is drawn.")
    if find_spec("matplotlib") is None:
        raise MissingExtra("--plot", "pictures need matplotlib, which is not installed", "pip install 'canonform[plot]'")


def draw(result: Similarity, target: str) -> None:
    """Draw the result into a file, which is replaced whole or not at all. Raises WriteError."""
    import matplotlib as mpl

    from canon.formats.common_write import replacing

    kind = Path(target).suffix.lower().removeprefix(".")
    settings = {"svg.hashsalt": "canon", "font.size": 8, "axes.titlesize": 9, "figure.dpi": 150, "svg.fonttype": "none"}
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with mpl.rc_context(settings), replacing(Path(target)) as temporary:
        figure = _figure(result)
        figure.savefig(temporary, format=kind, metadata=metadata)


def _figure(result: Similarity) -> Figure:
    from matplotlib.figure import Figure

    tables = result.units[:MOST_PAIRS]
    rows, columns = len(result.a.layers), len(result.b.layers)
    cell = 0.45 if max(rows, columns) <= _NUMBERED else 0.16
    names = [0.075 * max(len(layer.name) for layer in side.layers) for side in (result.a, result.b)]
    top = max(rows * cell + names[1] + 1.1, 2.6)
    across = max(columns * cell + names[0] + 1.6, 4.5)
    wide = max(across, 10.5 if tables else 0.0)
    figure = Figure(figsize=(wide, top + 3.4 * len(tables)), layout="constrained")
    parts = figure.subfigures(1 + len(tables), 1, height_ratios=[top, *[3.4] * len(tables)], squeeze=False)[:, 0]
    _map(parts[0].subfigures(1, 2, width_ratios=[across, wide - across])[0] if wide > across + 0.1 else parts[0], result)
    for part, table in zip(parts[1:], tables, strict=True):
        _pair(part, result, table)
    _settle(figure)
    return figure


def _settle(figure: Figure) -> None:
    """Lay the figure out once and round where things lie: the layout's solver differs from run to run by rounding."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        place = axes.get_position(original=True)
        axes.set_position([round(v, 4) for v in place.bounds])


def _map(part: Any, result: Similarity) -> None:
    import numpy as np

    from canon.similarity import MEASURES

    measure = MEASURES[result.lead]
    rows, columns = ([layer.name for layer in side.layers] for side in (result.a, result.b))
    values = np.full((len(rows), len(columns)), np.nan)
    for pair in result.layers:
        value = pair.measures[result.lead].value
        if value is not None:
            values[rows.index(pair.a), columns.index(pair.b)] = value
    axes = part.subplots()
    known = values[np.isfinite(values)]
    low, high = (min(known.min(initial=0.0), 0.0), max(known.max(initial=0.0), measure.best, 1e-12))
    shades = "viridis_r" if measure.distance else "viridis"
    image = axes.imshow(values, cmap=shades, vmin=low, vmax=high)
    axes.set_xticks(range(len(columns)), columns, rotation=90 if max(map(len, columns)) > 4 else 0)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(f"b: {Path(result.b.path).name}")
    axes.set_ylabel(f"a: {Path(result.a.path).name}")
    axes.set_title(f"{measure.title}, {result.samples:,} samples\n(ringed: the best of its row, if beyond chance)")
    for a, b in sorted(result.marked):
        axes.add_patch(_ring(columns.index(b), rows.index(a)))
    if max(len(rows), len(columns)) <= _NUMBERED:
        for (y, x), value in np.ndenumerate(values):
            if np.isfinite(value):
                shade = (value - low) / (high - low)
                dark = shade > 0.4 if measure.distance else shade < 0.6
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", color="white" if dark else "black", fontsize=7)
    part.colorbar(image, ax=axes, label=measure.name, shrink=0.8)


def _ring(x: int, y: int) -> Any:
    """A frame around one block of the map."""
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="#d62728", linewidth=1.6)


def _pair(part: Any, result: Similarity, table: Units) -> None:
    axes = part.subplots(1, 3, width_ratios=[1, 1, 1.15])
    order_a, order_b = table.order
    _correlations(axes[0], table, range(len(order_a)), range(len(order_b)), "units as they stand")
    image = _correlations(axes[1], table, order_a, order_b, "units of b beside their partners")
    part.colorbar(image, ax=axes[:2].tolist(), label="Pearson's r", shrink=0.75, location="left")
    axes[0].set_ylabel(f"a: {table.a}, unit")
    axes[1].set_ylabel("in the order of a's matched units")
    for one in axes[:2]:
        one.set_xlabel(f"b: {table.b}, unit" if one is axes[0] else "partner in b; those left over last")
    _curve(axes[2], table)
    part.suptitle(f"{table.a} of {Path(result.a.path).name}  with  {table.b} of {Path(result.b.path).name}", fontsize=9)


def _correlations(axes: Axes, table: Units, rows: Any, columns: Any, title: str) -> Any:
    shown = table.correlations[list(rows)][:, list(columns)]
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_title(title)
    if max(shown.shape) > _HAIRLINE:
        axes.locator_params(nbins=5)
    return image


def _curve(axes: Axes, table: Units) -> None:
    import numpy as np

    ranks = np.arange(1, len(table.curve) + 1)
    if table.band is not None:
        axes.fill_between(ranks, *table.band, color="0.75", label="chance: 95% of permutations", linewidth=0)
    if table.threshold is not None:
        axes.axhline(table.threshold, color="0.45", linestyle=":", linewidth=1, label=f"beyond chance: {table.threshold:.2f}")
    marker = "o" if len(ranks) <= _HAIRLINE else None
    axes.plot(ranks, table.curve, color="#1f77b4", marker=marker, markersize=2.5, label="matched units")
    axes.set_ylim(min(0.0, float(table.curve.min(initial=0.0))) - 0.05, 1.05)
    axes.set_xlim(0, len(ranks) + 1)
    axes.set_xlabel("matched pairs, best first")
    axes.set_ylabel("|r|" if table.unsigned else "r")
    axes.set_title(f"{len(table.both)} of {len(ranks)} found on both sides")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=6.5, frameon=False, columnspacing=1.0)
