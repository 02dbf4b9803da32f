"""Every Keras layer that canon knows, by its class in Keras 2's words."""

from __future__ import annotations

from canon.formats import keras_conv, keras_opaque, keras_recurrent, keras_shape, keras_units
from canon.formats.keras_layer import Layer

LAYERS: dict[str, Layer] = {
    **keras_conv.LAYERS,
    **keras_shape.LAYERS,
    **keras_units.LAYERS,
    **keras_recurrent.LAYERS,
    **keras_opaque.LAYERS,
}


def layer_of(cls: str) -> Layer:
    """What canon knows of a class; any other is held fast where its shape can be known, and refused else."""
    return LAYERS.get(cls, keras_opaque.CUSTOM)
