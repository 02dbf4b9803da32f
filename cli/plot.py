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
_TITLE, _LETTER = 0.55, 0.067
"""Inches that the map's title takes, and a letter of a layer's name."""
_PAIR = (10.5, 3.5)
"""Inches across and down that a pair's row takes."""
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


class _Sheet:
    """A figure on which axes are placed in inches from the top left: the same everywhere, to the last digit."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes there."""
        across, down = self.width, self.height
        return self.figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))

    def title(self, left: float, top: float, text: str) -> None:
        """A line of text there."""
        self.figure.text(left / self.width, 1 - top / self.height, text, fontsize=9, fontweight="bold", va="top")


def _figure(result: Similarity) -> Figure:
    tables = result.units[:MOST_PAIRS]
    rows, columns = len(result.a.layers), len(result.b.layers)
    cell = 0.45 if max(rows, columns) <= _NUMBERED else 0.16
    left, below = (0.65 + _LETTER * max(len(layer.name) for layer in side.layers) for side in (result.a, result.b))
    size = (columns * cell, rows * cell)
    top = max(_TITLE + size[1] + below, 2.6)
    wide = max(left + size[0] + 1.5, _PAIR[0] if tables else 5.0)
    sheet = _Sheet(wide, top + _PAIR[1] * len(tables))
    _map(sheet, result, left, size)
    if len(result.units) > MOST_PAIRS:
        more = f"Units of the first {MOST_PAIRS} of {len(result.units)} pairs; --layers picks others."
        sheet.figure.text(0.3 / wide, 1 - (top - 0.1) / sheet.height, more, va="bottom")
    for k, table in enumerate(tables):
        _pair(sheet, result, table, top + k * _PAIR[1])
    return sheet.figure


def _map(sheet: _Sheet, result: Similarity, left: float, size: tuple[float, float]) -> None:
    import numpy as np

    from canon.similarity import MEASURES

    measure = MEASURES[result.lead]
    rows, columns = ([layer.name for layer in side.layers] for side in (result.a, result.b))
    values = np.full((len(rows), len(columns)), np.nan)
    for pair in result.layers:
        value = pair.measures[result.lead].value
        if value is not None:
            values[rows.index(pair.a), columns.index(pair.b)] = value
    axes = sheet.axes(left, _TITLE, *size)
    known = values[np.isfinite(values)]
    low, high = (min(known.min(initial=0.0), 0.0), max(known.max(initial=0.0), measure.best, 1e-12))
    shades = "viridis_r" if measure.distance else "viridis"
    image = axes.imshow(values, cmap=shades, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90 if max(map(len, columns)) > 4 else 0)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(f"b: {Path(result.b.path).name}")
    axes.set_ylabel(f"a: {Path(result.a.path).name}")
    axes.set_title(
        f"{measure.title}, {result.samples:,} samples\n(ringed: the best of its row, if beyond chance)", loc="left", x=-0.02
    )
    for a, b in sorted(result.marked):
        axes.add_patch(_ring(columns.index(b), rows.index(a)))
    if max(len(rows), len(columns)) <= _NUMBERED:
        for (y, x), value in np.ndenumerate(values):
            if np.isfinite(value):
                shade = (value - low) / (high - low)
                dark = shade > 0.4 if measure.distance else shade < 0.6
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", color="white" if dark else "black", fontsize=7)
    bar = sheet.axes(left + size[0] + 0.2, _TITLE, 0.13, max(size[1], 0.8))
    sheet.figure.colorbar(image, cax=bar, label=measure.name)


def _ring(x: int, y: int) -> Any:
    """A frame around one block of the map."""
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="#d62728", linewidth=1.6)


def _pair(sheet: _Sheet, result: Similarity, table: Units, top: float) -> None:
    order_a, order_b = table.order
    sheet.title(0.3, top + 0.1, f"{table.a} of {Path(result.a.path).name}  with  {table.b} of {Path(result.b.path).name}")
    stored = sheet.axes(0.75, top + 0.6, 2.3, 2.3)
    _correlations(stored, table, range(len(order_a)), range(len(order_b)), "units as they stand")
    stored.set_ylabel("unit of a")
    stored.set_xlabel("unit of b")
    paired = sheet.axes(3.6, top + 0.6, 2.3, 2.3)
    image = _correlations(paired, table, order_a, order_b, "units of b beside their partners")
    paired.set_ylabel("unit of a, matched first")
    paired.set_xlabel("its partner in b; those left over last")
    sheet.figure.colorbar(image, cax=sheet.axes(6.05, top + 0.6, 0.1, 2.3), label="Pearson's r")
    _curve(sheet.axes(7.5, top + 0.6, 2.75, 2.05), table)


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
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize=6.5, frameon=False, columnspacing=1.0)
