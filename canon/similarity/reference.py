"""The yardstick of other networks: what the same measures give between a and, say, the same architecture from another seed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

from canon.errors import NumericError
from canon.similarity.activations import Source
from canon.similarity.layer import Layer
from canon.similarity.measures import MEASURES
from canon.similarity.null import Figure
from canon.similarity.result import LayerFigures
from canon.similarity.sums import Names, Sides, Tell


def with_reference(
    pairs: Sequence[LayerFigures], a: Source, references: Sequence[Source], kept: dict[str, Layer] | None, tell: Tell
) -> tuple[LayerFigures, ...]:
    """The pairs with each detailed figure's value on every reference: a's layer against the reference's layer of b's name,
    or of its own.
    """
    out = list(pairs)
    for source in references:
        tell(f"the reference {source.path}")
        wanted: dict[int, Names] = {}
        for k, pair in enumerate(out):
            name = next((n for n in (pair.b, pair.a) if n in source.layers), None)
            if pair.detailed and name is not None and a.layers[pair.a].positions == source.layers[name].positions:
                wanted[k] = (pair.a, name)
        if not wanted:
            continue
        sides = Sides(a, source, tell, kept=kept)
        places = iter(wanted)
        for _, both in sides.pairs(list(wanted.values())):
            k = next(places)
            found: dict[str, Figure] = {}
            for name, figure in out[k].measures.items():
                try:
                    value: float | None = MEASURES[name].of(both)
                except NumericError:
                    value = None
                found[name] = replace(figure, reference={**figure.reference, source.path: value})
            out[k] = replace(out[k], measures=found)
            del both
        del sides
        gc.collect()  # a layer and its standardised self refer to each other
    return tuple(out)
