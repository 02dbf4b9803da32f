"""How Keras since 2.12 lays weights out: groups named after classes and counted, variables by number, no order stored.

layers/dense_1/vars/0        the second Dense of the model, its kernel
layers/lstm/cell/vars/2      the bias of an LSTM's cell
layers/functional/layers/... a model in the model; 2.12 and 2.13 say _layer_checkpoint_dependencies for layers
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from canon.errors import CorruptFile
from canon.formats.common import is_real, natural, node, walk
from canon.formats.keras_assign import Weights
from canon.formats.keras_call import plural
from canon.formats.keras_groups import Entry
from canon.formats.keras_specs import Spec, parse

ROOTS = ("layers", "_layer_checkpoint_dependencies")


def root(group: Any) -> Any:
    """The group of a model's layers, or None."""
    return next((found for name in ROOTS if (found := node(group, name)) is not None), None)


def variables(group: Any) -> list[Entry]:
    """The variables of one group in their order, numbers counted as numbers."""
    import h5py

    found = node(group, "vars") if group is not None else None
    if not isinstance(found, h5py.Group):
        return []
    return [Entry(name, dataset) for name in sorted(found, key=natural)
            if isinstance(dataset := node(found, name), h5py.Dataset)]  # fmt: skip


def assign(specs: Sequence[Spec], model: Any) -> Weights:
    """The weights of each layer by role; model: the file, or the group of a model inside it.

    Raises CorruptFile naming the layer where configuration and file do not agree.
    """
    found = dict(_layers(specs, model))
    if not any(found.values()):
        raise CorruptFile("", "not one parameter of the file belongs to a layer of its configuration")
    taken = {entry.path for roles in found.values() for entry in roles.values()}
    for _, dataset in walk(root(model)):
        if dataset.name not in taken and is_real(dataset.dtype):
            raise CorruptFile(dataset.name, "is a weight that no layer of the configuration takes")
    return found


def _layers(specs: Sequence[Spec], model: Any) -> Iterator[tuple[str, dict[str, Entry]]]:
    layers = root(model)
    count: dict[str, int] = {}
    for spec in specs:
        snake = snake_case(spec.stored)
        k = count[snake] = count.get(snake, -1) + 1
        key = f"{snake}_{k}" if k else snake
        if spec.cls == "InputLayer":
            continue
        group = node(layers, key) if layers is not None else None
        if spec.timed:
            group = node(group, "layer") if group is not None else None
        if spec.is_model:
            yield from _layers(parse(spec.cfg, f"{spec.path}/"), group)
        else:
            yield spec.path, _own(spec, group, key)


def _own(spec: Spec, group: Any, key: str) -> dict[str, Entry]:
    wanted = spec.layer.places(spec.cfg)
    if not any(roles for _, roles in wanted):  # a class that canon does not know, or one without weights
        entries = [Entry(path, dataset) for path, dataset in (walk(group) if group is not None else ())]
        return dict(zip(spec.layer.named((), entries) or (), entries, strict=False))
    found: dict[str, Entry] = {}
    for path, roles in wanted:
        here = node(group, path) if path and group is not None else group
        entries = variables(here)
        if len(entries) != len(roles):
            raise CorruptFile(
                f"layer {spec.path!r}",
                f"holds {plural(len(entries), 'weight')} under {'/'.join(p for p in (key, path) if p)}, "
                f"its configuration asks for {', '.join(roles) or 'none'}",
            )
        found.update(zip(roles, entries, strict=True))
    return found


def snake_case(cls: str) -> str:
    """A class's name as Keras writes it in paths: Conv2DTranspose is conv2d_transpose."""
    apart = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", cls))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", apart).lower()
