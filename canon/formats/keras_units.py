"""Keras layers that work on units where they are: norms, nonlinearities, noise."""

from __future__ import annotations

from canon.formats.keras_call import NONLINEARITIES, Call, activation
from canon.formats.keras_layer import STATISTICS, Layer, Options


def _one_axis(c: Call) -> int:
    axis = c.axis(c.cfg.get("axis"))
    if not -len(c.shape) <= axis < len(c.shape):
        raise c.refuse(f"with axis={c.cfg.get('axis')!r} is not supported on a value of shape {c.shape}")
    return axis


def _batch_norm(c: Call) -> None:
    c.only(renorm=False, virtual_batch_size=None)
    axis = _one_axis(c)
    roles = {"gamma": "gamma", "beta": "beta", "mean": "moving_mean", "variance": "moving_variance"}
    params = {role: c.tensor(stored, (c.shape[axis],)) for role, stored in roles.items() if stored in c.weights}
    c.op("batch_norm", params, axis=axis, eps=c.number("epsilon", default=1e-3))


def _layer_norm(c: Call) -> None:
    c.only(rms_scaling=False)
    axes, wanted = _axes(c)
    params = {role: c.tensor(role, wanted) for role in ("gamma", "beta") if role in c.weights}
    c.op("layer_norm", params, axes=axes, eps=c.number("epsilon", default=1e-3))


def _rms_norm(c: Call) -> None:
    axes, wanted = _axes(c)
    c.op("rms_norm", {"gamma": c.tensor("scale", wanted)}, axes=axes, eps=c.number("epsilon", default=1e-6))


def _axes(c: Call) -> tuple[list[int], list[int | None]]:
    """The axes that are normalised, counted from the end, and their sizes."""
    told = c.cfg.get("axis", -1)
    axes = sorted(c.axis(a) % len(c.shape) - len(c.shape) for a in (told if isinstance(told, list) else [told]))
    return axes, [c.shape[a] for a in axes]


def _group_norm(c: Call) -> None:
    axis = _one_axis(c)
    params = {role: c.tensor(role, (c.shape[axis],)) for role in ("gamma", "beta") if role in c.weights}
    c.op("group_norm", params, axis=axis, groups=int(c.cfg.get("groups", 32)), eps=c.number("epsilon", default=1e-3))


def _act(c: Call) -> None:
    c.activate(c.name, c.inputs[0], activation(c, c.cfg["activation"]) or ("linear", {}))


def _nonlinear(c: Call) -> None:
    kind, attrs = NONLINEARITIES[c.cls](c)
    c.op(kind, **attrs)


def _prelu(c: Call) -> None:
    shared = [c.axis(a) for a in c.cfg.get("shared_axes") or []]
    wanted = [1 if i in shared or i - len(c.shape) in shared else n for i, n in enumerate(c.shape)]
    c.op("prelu", {"alpha": c.tensor("alpha", wanted)})


def _affine(cfg: Options) -> tuple[str, ...]:
    return ("gamma",) * bool(cfg.get("scale", True)) + ("beta",) * bool(cfg.get("center", True))


NOISE = ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise", "GaussianDropout",
         "AlphaDropout", "ActivityRegularization", "RandomFlip", "RandomRotation", "RandomZoom", "RandomTranslation",
         "RandomContrast", "RandomBrightness")  # fmt: skip
"""What training adds at random: nothing at inference."""

LAYERS: dict[str, Layer] = {
    **{f"BatchNormalization{v}": Layer(_batch_norm, lambda cfg: _affine(cfg) + STATISTICS, keeps_mask=True)
       for v in ("", "V1", "V2")},
    "LayerNormalization": Layer(_layer_norm, _affine, keeps_mask=True),
    "RMSNormalization": Layer(_rms_norm, lambda cfg: ("scale",), keeps_mask=True),
    "GroupNormalization": Layer(_group_norm, _affine, keeps_mask=True),
    "Activation": Layer(_act, keeps_mask=True),
    **{cls: Layer(_nonlinear, keeps_mask=True) for cls in NONLINEARITIES},
    "PReLU": Layer(_prelu, lambda cfg: ("alpha",), keeps_mask=True),
    **dict.fromkeys(NOISE, Layer(lambda c: c.op("dropout"), keeps_mask=True)),
}  # fmt: skip
