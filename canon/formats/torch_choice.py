"""Which of the tensors of a torch file are the network: a state dict itself, or one among the parts of a checkpoint."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from canon.errors import CorruptFile, UsageError

FIRST = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights", "params")
"""Names under which checkpoints keep the network, the surest first."""
LAST = re.compile(r"ema|averag|shadow|teacher|target|swa")
"""Words in names of what is kept beside it."""
OTHER = re.compile(r"(optim|sched|scaler|amp$|rng|loss|metric|hparam|hyper_param|callback|loop).*", re.IGNORECASE)
"""Names under which checkpoints keep what is no network."""
DEEPEST = 6
LISTED = 4


@dataclass(frozen=True)
class Chosen:
    """tensors: name -> torch tensor; path: the keys that lead to them; key: the same as one word ("" at the top);
    keys: all places that hold tensors, the surest first.
    """

    tensors: Mapping[str, Any]
    path: tuple[Any, ...]
    key: str
    keys: tuple[str, ...]
    notes: tuple[str, ...]


def choose(found: Any, wanted: str | None) -> Chosen:
    """The network's tensors. Raises CorruptFile where there are none, UsageError for a key that is not there."""
    if is_tensor(found):
        return Chosen({"tensor": found}, (), "", ("",), ())
    places = {".".join(map(str, path)): (path, held) for path, held in _places(found, (), set())}
    if not places:
        raise CorruptFile("", f"a torch file without a tensor of a network: it holds a {type(found).__name__}")
    order = {key: i for i, key in enumerate(places)}

    def rank(key: str) -> tuple[bool, int, int]:
        last = key.rsplit(".", 1)[-1]
        return LAST.search(key.lower()) is not None, FIRST.index(last) if last in FIRST else len(FIRST), order[key]

    keys = sorted(order, key=rank)
    if wanted is not None and wanted not in keys:
        hint = f"It holds {_some(keys)}." if keys != [""] else "It holds one state dict, under no key."
        raise UsageError("", f"no checkpoint {wanted!r}", hint)
    key = keys[0] if wanted is None else wanted
    path, held = places[key]
    tensors = {str(name): t for name, t in _items(held) if is_tensor(t)}
    return Chosen(tensors, path, key, tuple(keys), tuple(_said(key, keys, ties(tensors))))


def _said(key: str, keys: list[str], tied: list[list[str]]) -> Iterator[str]:
    if len(keys) > 1:
        others = _some([other for other in keys if other != key])
        yield f"of {len(keys)} sets of tensors {key or 'the top'!r} is read; the others: {others}"
    elif key:
        yield f"the tensors are read from {key!r}"
    if tied:
        yield f"tied, one tensor under several names: {_some([' = '.join(names) for names in tied])}"


def _some(words: list[str]) -> str:
    return ", ".join(word or "the top" for word in words[:LISTED]) + (", ..." if len(words) > LISTED else "")


def is_tensor(value: Any) -> bool:
    """Whether a value is torch's, by what it can do: torch is not imported here."""
    return hasattr(value, "untyped_storage") and hasattr(value, "stride")


def _items(found: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a dict, places and values of a list."""
    return iter(found.items()) if isinstance(found, Mapping) else iter(enumerate(found))


def _places(found: Any, path: tuple[Any, ...], seen: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every dict or list that holds tensors of a network (floating point, and not a number alone), each once."""
    if not isinstance(found, Mapping | list | tuple) or len(path) > DEEPEST or id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, Mapping) and {"state", "param_groups"} <= set(found):
        return  # an optimizer
    if any(is_tensor(v) and v.ndim and v.is_floating_point() for _, v in _items(found)):
        yield path, found
    for key, value in _items(found):
        if not (isinstance(key, str) and OTHER.fullmatch(key)):
            yield from _places(value, (*path, key), seen)


def ties(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Names of one and the same tensor: the same storage, place, shape and strides."""
    found: dict[Any, list[str]] = {}
    for name, t in tensors.items():
        if t.numel():
            found.setdefault((t.data_ptr(), t.dtype, tuple(t.shape), t.stride()), []).append(name)
    return [names for names in found.values() if len(names) > 1]


# writing back


def put(found: Any, path: tuple[Any, ...], tensors: Mapping[str, Any]) -> Any:
    """The same nest with other tensors, by name, in what `path` leads to."""
    if is_tensor(found):
        return tensors["tensor"]
    if path:
        return _with(found, {path[0]: put(found[path[0]], path[1:], tensors)})
    return _with(found, {key: tensors[str(key)] for key, value in _items(found) if is_tensor(value)})


def _with(found: Any, new: Mapping[Any, Any]) -> Any:
    kind: Any = type(found)
    if not isinstance(found, Mapping):
        return kind(new.get(i, value) for i, value in enumerate(found))
    made = kind((key, new.get(key, value)) for key, value in found.items())
    if isinstance(made, OrderedDict):
        vars(made).update(vars(found))  # the versions of a module's layers
    return made


def without_optimizer(found: Any) -> tuple[Any, list[str]]:
    """A checkpoint without the state of its optimizer, and under what keys it was."""
    if not isinstance(found, Mapping):
        return found, []
    gone = [key for key in found if isinstance(key, str) and re.match("optim", key, re.IGNORECASE)]
    kind: Any = type(found)
    return (kind((k, v) for k, v in found.items() if k not in gone), gone) if gone else (found, [])
