"""Keras 1's spelling of layers and their options, turned into Keras 2's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canon.errors import UnsupportedOp

CLASSES = {
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "AtrousConvolution1D": "Conv1D",
    "AtrousConvolution2D": "Conv2D",
    "SeparableConvolution2D": "SeparableConv2D",
    "TimeDistributedDense": "Dense",
}
OPTIONS = {
    "nb_filter": "filters",
    "border_mode": "padding",
    "subsample": "strides",
    "subsample_length": "strides",
    "filter_length": "kernel_size",
    "bias": "use_bias",
    "pool_length": "pool_size",
    "stride": "strides",
    "atrous_rate": "dilation_rate",
}
MERGES = {"sum": "Add", "mul": "Multiply", "concat": "Concatenate"}
OLD_KERNEL = "keras_1_kernel"
"""Option of a translated layer: its kernel is in Keras 1's layout, "tf" or "th"."""


def modern(layer: str, cls: str, cfg: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Class and options in Keras 2's words; those that already are stay as they are.

    Raises UnsupportedOp where Keras 1 had what Keras 2 has no words for.
    """
    new = {OPTIONS.get(key, key): value for key, value in cfg.items()}
    cls = CLASSES.get(cls, cls)
    if "output_dim" in new and cls in ("Dense", "LSTM", "GRU", "SimpleRNN"):
        new["units"] = new.pop("output_dim")
    if "nb_row" in new:
        new["kernel_size"] = [new.pop("nb_row"), new.pop("nb_col")]
    if "nb_filter" in cfg:
        new[OLD_KERNEL] = cfg.get("dim_ordering", "tf")
    if "dim_ordering" in new:
        order = new.pop("dim_ordering")
        if order not in ("tf", "th"):
            raise UnsupportedOp("", f"layer {layer!r} does not say where its channels are (dim_ordering {order!r})")
        new["data_format"] = "channels_last" if order == "tf" else "channels_first"
    if cls == "BatchNormalization" and cfg.get("mode", 0) != 0:
        raise UnsupportedOp("", f"layer {layer!r} is a batch norm of mode {cfg['mode']}, which uses the batch at inference")
    if cls == "Merge":
        if cfg.get("mode") not in MERGES or cfg.get("layers"):
            raise UnsupportedOp("", f"layer {layer!r} of class Merge with mode {cfg.get('mode')!r} is not supported")
        cls, new["axis"] = MERGES[cfg["mode"]], cfg.get("concat_axis", -1)
    return cls, new
