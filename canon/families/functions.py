"""Nonlinearities by the names that torch and transformers give them."""

from __future__ import annotations

from typing import Any

Kinds = tuple[tuple[str, dict[str, Any]], ...]
"""Ops one after the other, with their attributes."""

_TANH_GELU: Kinds = (("gelu", {"approximate": True}),)
NAMED: dict[str, Kinds] = {
    **{name: ((name, {}),) for name in ("relu", "tanh", "sigmoid", "softsign", "selu", "silu", "softplus", "mish", "linear")},
    "swish": (("silu", {}),),
    "elu": (("elu", {"alpha": 1.0}),),
    "relu6": (("relu6", {"cap": 6.0}),),
    "relu2": (("relu", {}), ("square", {})),
    "leaky_relu": (("leaky_relu", {"alpha": 0.01}),),
    "hard_swish": (("hard_swish", {}),),
    "hard_sigmoid": (("hard_sigmoid", {"slope": 1 / 6}),),
    "gelu": (("gelu", {"approximate": False}),),
    "gelu_python": (("gelu", {"approximate": False}),),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), _TANH_GELU),
}
"""What a name determines. Others are unknown: only relabelling is certain."""
