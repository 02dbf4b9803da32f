"""Names without what wrappers of modules put in front of them: data parallel, compiled, sharded, checkpointed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Words by which torch's wrappers hold the module they wrap. `model` is none: it is a name that people give."""
MOST = 3
"""Places named in a note."""

T = TypeVar("T")


def unwrapped(named: Mapping[str, T]) -> tuple[dict[str, T], tuple[str, ...]]:
    """The same under names without wrappers, in any nesting, and a line on each that was left out.

    A wrapper goes only where every name of its module carries it: all of them at the front, all that begin with
    "features." for "features.module.". So no two names fall together.
    """
    split = {name: name.split(".") for name in named}
    below: dict[str, set[str]] = {}
    for parts in split.values():
        at = ""
        for part in parts[:-1]:
            below.setdefault(at, set()).add(part)
            at += f"{part}."
        below.setdefault(at, set()).add("")  # a tensor lies here
    wraps = {at for at, parts in below.items() if len(parts) == 1 and parts <= WRAPPERS}
    if not wraps:
        return dict(named), ()
    found: dict[str, T] = {}
    where: dict[str, None] = {}
    front = ""
    for name, value in named.items():
        parts, at, kept = split[name], "", []
        for part in parts[:-1]:
            if at not in wraps:
                kept.append(part)
            elif kept:
                where[f"{part!r} under {'.'.join(kept)!r}"] = None
            else:
                front = f"{at}{part}."
            at += f"{part}."
        found[".".join([*kept, parts[-1]])] = value
    notes = [f"every name begins with {front!r}, which is left out"] if front else []
    if where:
        more = f" and {len(where) - MOST} more" if len(where) > MOST else ""
        notes.append(f"wrappers are left out of names: {', '.join(list(where)[:MOST])}{more}")
    return found, tuple(notes)
