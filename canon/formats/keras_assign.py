"""Which weight of an HDF5 file belongs to which layer of its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from canon.errors import CorruptFile
from canon.formats.keras_call import plural
from canon.formats.keras_groups import Entry
from canon.formats.keras_layer import STATISTICS
from canon.formats.keras_specs import Spec, leaves

Weights = dict[str, dict[str, Entry]]
"""By layer's path and role."""


def assign(specs: Sequence[Spec], groups: Mapping[str, Sequence[Entry]]) -> Weights:
    """The weights of each layer by role, from the file's groups.

    Raises CorruptFile naming the layer where configuration and file do not agree.
    """
    named = {spec.name for spec in specs}
    for name, entries in groups.items():
        if entries and name not in named:
            raise CorruptFile(f"layer {name!r}", f"has {plural(len(entries), 'weight')} and is not in the configuration")
    found: Weights = {}
    for spec in specs:
        entries = groups.get(spec.name, ())
        if spec.is_model:
            found.update(nested(spec, list(leaves([spec])), entries))
        elif spec.cls != "InputLayer":
            found[spec.path] = own(spec, entries)
    if not any(found.values()):
        raise CorruptFile("", "not one parameter of the file belongs to a layer of its configuration")
    return found


def own(spec: Spec, entries: Sequence[Entry]) -> dict[str, Entry]:
    """The weights of one layer by role."""
    wanted = spec.layer.weights(spec.cfg)
    roles = spec.layer.named(wanted, entries)
    if roles is None:
        held = _listed([e.role for e in entries])
        raise CorruptFile(
            f"layer {spec.path!r}",
            f"holds {plural(len(entries), 'weight')} ({held}), its configuration asks for {_listed(wanted)}",
        )
    return dict(zip(roles, entries, strict=True))


def _listed(roles: Sequence[str]) -> str:
    return ", ".join(roles) or "none"


def nested(model: Spec, inner: Sequence[Spec], entries: Sequence[Entry]) -> Weights:
    """All weights below a model lie in one group: found by layer name, else by Keras's order."""
    by_name: dict[str, list[Entry]] = {spec.path: [] for spec in inner}
    for entry in entries:
        takers = [spec for spec in inner if spec.name in entry.parts[:-1]]
        if len(takers) == 1:
            by_name[takers[0].path].append(entry)
    if sum(map(len, by_name.values())) == len(entries):
        roles = {spec.path: spec.layer.named(spec.layer.weights(spec.cfg), by_name[spec.path]) for spec in inner}
        if all(r is not None for r in roles.values()):
            return {p: dict(zip(roles[p] or (), own, strict=True)) for p, own in by_name.items()}
    for order in _orders(inner):
        if len(order) == len(entries) and all(r.split("/")[-1] == e.role for (_, r), e in zip(order, entries, strict=True)):
            found: Weights = {spec.path: {} for spec in inner}
            for (path, role), entry in zip(order, entries, strict=True):
                found[path][role] = entry
            return found
    total = sum(len(spec.layer.weights(spec.cfg)) for spec in inner)
    raise CorruptFile(
        f"layer {model.path!r}",
        f"is a model whose {plural(len(entries), 'weight')} do not go with its layers, which ask for {total}",
    )


def _orders(inner: Sequence[Spec]) -> Iterator[list[tuple[str, str]]]:
    """Keras lists what is trained before what is not; some versions list layer by layer."""
    every = [(spec, role) for spec in inner for role in spec.layer.weights(spec.cfg)]

    def held(spec: Spec, role: str) -> bool:
        return role in STATISTICS or spec.cfg.get("trainable") is False

    yield [(s.path, r) for s, r in every if not held(s, r)] + [(s.path, r) for s, r in every if held(s, r)]
    yield [(s.path, r) for s, r in every if r not in STATISTICS] + [(s.path, r) for s, r in every if r in STATISTICS]
    yield [(s.path, r) for s, r in every]
