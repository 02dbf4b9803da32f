"""What `canon dedup` and `canon query` print: groups with what each member is to the file kept, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .console import Page

MANY = 20
"""Unreadable files that a terminal lists; elsewhere all are."""
Result = Mapping[str, Any]


def print_groups(result: Result, page: Page | None = None) -> None:
    """Print the result of dedup on stdout."""
    page = page or Page()
    for group in result["groups"]:
        page.line(f"{group['kind']}, {_files(len(group['members']))}, {size(group['bytes_saved'])} to save")
        page.entry("  keep", f"{group['keep']} ({group['why']})", 22)
        for link in group["links"]:
            page.entry(f"  {link['kind']}", f"{link['path']}{_distance(link)}", 22)
        page.line()
    for pair in result["related"]:
        page.entry(pair["kind"], f"{pair['a']} and {pair['b']}{_distance(pair)}", 20)
    for name in result["names"]:
        page.entry("one file", f"{name['path']} is {name['of']}")
    _listed(page, "unreadable", [f"{u['path']}: {u['error']}" for u in result["unreadable"]])
    _listed(page, "not compared", [f"{p['a']} and {p['b']}: {p['why']}" for p in result["not_compared"]])
    if result["related"] or result["names"] or result["unreadable"] or result["not_compared"]:
        page.line()
    page.sentence(_summary(result), "bold")


def _summary(result: Result) -> str:
    groups = result["groups"]
    copies = sum(len(g["links"]) for g in groups)
    said = f"{_files(result['files'])}, {size(result['bytes'])}: "
    if groups:
        saved = size(sum(g["bytes_saved"] for g in groups))
        said += f"{copies} {_many('copy', 'copies', copies)} in {len(groups)} {_many('group', 'groups', len(groups))}"
        said += f", {saved} to save"
    else:
        said += "no copies"
    if result["unreadable"]:
        said += f"; {len(result['unreadable'])} unreadable"
    if result["not_looked_at"]:
        said += f"; {result['not_looked_at']:,} pairs of one architecture not looked at for a common descent"
    return said


def print_plan(action: Result, will: bool, page: Page | None = None) -> None:
    """Print what --action hardlink would do."""
    page = page or Page()
    page.line()
    for step in action["steps"]:
        note = "" if step["same_bytes"] else " (other bytes: the old file moves beside the log)"
        page.entry("link", f"{step['path']} -> {step['keep']}{note}")
    for left in action["left"]:
        page.entry("leave", f"{left['path']}: {left['why']}")
    steps = len(action["steps"])
    said = f"{_files(steps)} to link, {size(action['bytes_saved'])} to save"
    page.sentence(said if will or not steps else f"{said}; nothing was changed: --yes does it", "bold")


def print_done(action: Result, page: Page | None = None) -> None:
    """Print what became of a plan."""
    page = page or Page()
    failed = [d for d in action["done"] if d["why"]]
    _listed(page, "left", [f"{d['path']}: {d['why']}" for d in failed])
    linked = len(action["done"]) - len(failed)
    page.sentence(f"{_files(linked)} linked; canon dedup --undo {action['log']} takes it back", "bold")


def print_undone(result: Result, page: Page | None = None) -> None:
    """Print what became of an undoing."""
    page = page or Page()
    failed = [u for u in result["undone"] if u["why"]]
    _listed(page, "left", [f"{u['path']}: {u['why']}" for u in failed])
    page.sentence(f"{_files(len(result['undone']) - len(failed))} restored", "bold")


def print_answer(result: Result, page: Page | None = None) -> None:
    """Print the answer of a query."""
    page = page or Page()
    for link in result["copies"]:
        page.entry(link["kind"], f"{link['path']}{_distance(link)}", 20)
    for other in result["related"]:
        page.entry("related", f"{other['path']}{_distance(other)}", 20)
    _listed(page, "not compared", [f"{p['path']}: {p['why']}" for p in result["not_compared"]])
    copies, related = len(result["copies"]), len(result["related"])
    said = f"{result['files']:,} files in the index: {copies or 'no'} {_many('copy', 'copies', copies)}"
    said += f", {related} related" if related else ""
    if result["not_looked_at"]:
        said += f"; {result['not_looked_at']:,} of its architecture are no copies, and were not looked at for a common descent"
    page.sentence(said, "bold")


def _listed(page: Page, label: str, lines: Sequence[str]) -> None:
    shown = lines if not page.terminal or len(lines) <= MANY else lines[: MANY - 1]
    for line in shown:
        page.entry(label, line, 14)
    if len(shown) < len(lines):
        page.entry(label, f"and {len(lines) - len(shown):,} more (--json lists all)", 14)


def _distance(link: Result) -> str:
    return f", distance {link['distance']:.2g}" if link["distance"] else ""


def _files(count: int) -> str:
    return f"{count:,} {_many('file', 'files', count)}"


def _many(one: str, several: str, count: int) -> str:
    return one if count == 1 else several


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.2g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
