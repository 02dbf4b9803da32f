"""What the symmetry says of each kind of operation: the tables of groups, row by row, from graphs alone."""

import numpy as np
import pytest
from strategies import Draft

from canon.symmetry import Concat, Fixed, Product, Symmetry, Use, derive, leaves

POSITIVE, SIGN, AFFINE = "relabelling, scale", "relabelling, sign", "relabelling, sign (affine)"


def draft(channels: str = "last") -> Draft:
    return Draft(np.random.default_rng(0), channels)


def conv(d: Draft, v: str, out: int, bias: bool = True, k: int = 3, **attrs) -> str:
    return d.op("conv", v, d.kernel(out, d.width(v), k, k, bias=bias), channels=d.channels, **attrs)


def flips(s: Symmetry) -> dict[str, str]:
    return {g.name: g.flip for g in s.gauges.values() if g.kind == "sign"}


def scales(s: Symmetry) -> int:
    return sum(g.kind == "positive" for g in s.gauges.values())


@pytest.mark.parametrize(
    ("act", "group"),
    [
        ("relu", POSITIVE),
        ("leaky_relu", POSITIVE),
        ("prelu shared", POSITIVE),
        ("tanh", SIGN),
        ("softsign", SIGN),
        ("sigmoid", AFFINE),
        ("hard_sigmoid", AFFINE),
        ("relu6", AFFINE),
        ("elu", "relabelling"),
        ("selu", "relabelling"),
        ("gelu", "relabelling"),
        ("silu", "relabelling"),
        ("softplus", "relabelling"),
    ],
)
def test_group_of_each_activation(act: str, group: str) -> None:
    d = draft()
    v = d.dense(d.input(4), 6, bias=True)
    net = d.network(d.dense(d.activation(v, act), 3, bias=True))
    s = derive(net)
    assert {name: s.group(name) for name in s.spaces} == {"dense_0": group}
    assert s.spaces["dense_0"].size == 6
    assert not s.spaces["dense_0"].linear
    assert s.continuous_dimension == (6 if "scale" in group else 0)


def test_prelu_with_a_slope_a_unit_flips_as_well() -> None:
    d = draft()
    v = d.op("prelu", d.dense(d.input(4), 6, bias=True), {"alpha": np.full(6, 0.3)})
    s = derive(d.network(d.dense(v, 3)))
    assert "scale" in s.group("dense_0")
    assert "sign" in s.group("dense_0")
    assert set(flips(s).values()) == {"slope"}
    assert s.axes["prelu_1/alpha"][0].power is not None
    assert s.continuous_dimension == 6  # what a flip divides by is no freedom of its own


def test_prelu_with_a_slope_a_position_does_not_flip() -> None:
    d = draft()
    v = conv(d, d.input(5, 5, 2), 4, padding="same")
    v = d.op("prelu", v, {"alpha": np.full((5, 5, 4), 0.3)})
    s = derive(d.network(d.dense(d.op("flatten", v), 3)))
    assert s.group("conv_0") == POSITIVE


@pytest.mark.parametrize("act", ["sigmoid", "relu6", "hard_sigmoid"])
def test_flips_about_another_point_need_a_bias_in_every_reader(act: str) -> None:
    def group(own: bool, next_: bool, padding: str = "valid") -> str:
        d = draft()
        v = conv(d, d.input(6, 6, 2), 4, bias=own)
        v = conv(d, d.activation(v, act), 5, bias=next_, padding=padding)
        s = derive(d.network(d.dense(d.op("flatten", d.op("gelu", v)), 3, bias=True)))
        return s.group("conv_0")

    assert group(True, True) == AFFINE
    assert group(True, False) == "relabelling"
    assert group(True, True, padding="same") == "relabelling"
    # a sigmoid's unit needs no bias of its own, since it is odd about zero in what comes in; relu6 does
    assert group(False, True) == ("relabelling" if act == "relu6" else AFFINE)


def test_a_batch_norm_is_bias_enough_for_a_flip() -> None:
    d = draft()
    v = d.op("sigmoid", d.dense(d.input(4), 6, bias=True))
    v = d.norm(d.dense(v, 5, bias=False))
    s = derive(d.network(d.dense(d.op("relu", v), 3)))
    assert s.group("dense_0") == AFFINE


def test_zero_padding_between_forbids_a_flip() -> None:
    d = draft()
    v = d.op("sigmoid", conv(d, d.input(6, 6, 2), 4))
    v = d.op("zero_padding", v, padding=[[1, 0], [0, 0]], channels="last")
    s = derive(d.network(d.dense(d.op("flatten", d.op("relu", conv(d, v, 5))), 3)))
    assert s.group("conv_0") == "relabelling"


@pytest.mark.parametrize(("pool", "sign"), [("max_pool", False), ("avg_pool", True)])
def test_an_average_lets_signs_through_and_a_maximum_does_not(pool: str, sign: bool) -> None:
    d = draft()
    v = d.op("tanh", conv(d, d.input(6, 6, 2), 4))
    v = d.op(pool, v, pool=[2, 2], channels="last")
    s = derive(d.network(d.dense(d.op("flatten", v), 3, bias=True)))
    assert s.group("conv_0") == (SIGN if sign else "relabelling")


@pytest.mark.parametrize("pool", ["global_max_pool", "global_avg_pool", "max_pool", "avg_pool"])
def test_every_pooling_lets_scales_through(pool: str) -> None:
    d = draft()
    attrs = {} if pool.startswith("global") else {"pool": [2, 2]}
    v = d.op(pool, d.op("relu", conv(d, d.input(6, 6, 2), 4)), channels="last", **attrs)
    v = v if not d.is_spatial(v) else d.op("flatten", v)
    s = derive(d.network(d.dense(v, 3)))
    assert s.group("conv_0") == POSITIVE


def test_batch_norm_has_one_labelling_and_two_scales_and_signs() -> None:
    d = draft()
    v = d.op(
        "relu",
        d.op(
            "batch_norm",
            d.dense(d.input(4), 6),
            {r: np.ones(6) for r in ("gamma", "beta", "mean", "variance")},
            axis=-1,
            eps=1e-3,
        ),
    )
    s = derive(d.network(d.dense(v, 3)))
    assert list(s.spaces) == ["dense_0"]
    assert s.group("dense_0") == "relabelling, scale x2, sign"
    assert s.continuous_dimension == 12


def test_batch_norm_without_gamma_has_one_scale() -> None:
    d = draft()
    v = d.op(
        "relu", d.op("batch_norm", d.dense(d.input(4), 6), {r: np.ones(6) for r in ("mean", "variance")}, axis=-1, eps=1e-3)
    )
    s = derive(d.network(d.dense(v, 3)))
    assert s.group("dense_0") == POSITIVE  # through the mean and out again
    assert s.continuous_dimension == 6


@pytest.mark.parametrize("channels", ["last", "first"])
def test_depthwise_ties_labels_and_has_two_scales(channels: str) -> None:
    d = draft(channels)
    v = d.op("relu", conv(d, d.input(*((6, 6, 2) if channels == "last" else (2, 6, 6))), 4))
    v = d.op("depthwise_conv", v, {"kernel": np.ones((4, 1, 3, 3)), "bias": np.ones(4)}, channels=channels)
    v = d.op("flatten", d.op("relu", v), channels=channels)
    s = derive(d.network(d.dense(v, 3)))
    assert list(s.spaces) == ["conv_0"]
    assert scales(s) == 2
    assert s.log10_permutations == pytest.approx(np.log10(24))
    assert s.continuous_dimension == 8


def test_depthwise_with_a_multiplier_has_labels_inside_each_channel() -> None:
    d = draft()
    v = d.op("relu", conv(d, d.input(6, 6, 2), 4))
    v = d.op("depthwise_conv", v, {"kernel": np.ones((12, 1, 3, 3)), "bias": np.ones(12)}, channels="last")
    s = derive(d.network(conv(d, d.op("relu", v), 3, k=1)))
    assert [(x.size, x.over) for x in s.spaces.values()] == [(4, None), (3, "conv_0")]
    assert s.log10_permutations == pytest.approx(np.log10(24 * 6**4))
    assert s.continuous_dimension == 4 + 12


def test_a_depthwise_layer_of_eight_channels_has_the_relabellings_of_one_space() -> None:
    d = draft()
    v = d.op("gelu", conv(d, d.input(6, 6, 2), 8))
    v = d.op("gelu", d.op("depthwise_conv", v, {"kernel": np.ones((8, 1, 3, 3))}, channels="last"))
    s = derive(d.network(conv(d, v, 3, k=1)))
    assert 10**s.log10_permutations == pytest.approx(40320)


@pytest.mark.parametrize(("act", "group"), [("relu", POSITIVE), ("tanh", SIGN), ("gelu", "relabelling")])
def test_a_residual_stage_is_one_space(act: str, group: str) -> None:
    d = draft()
    x = d.activation(d.dense(d.input(4), 6), act)
    for _ in range(3):
        x = d.activation(d.op("add", (x, d.dense(d.activation(d.dense(x, 5), "relu"), 6))), act)
    s = derive(d.network(d.dense(x, 3)))
    assert [n for n in s.spaces if s.spaces[n].size == 6] == ["dense_0"]
    assert s.group("dense_0") == group
    assert len(s.spaces["dense_0"].writers) >= 4
    assert len(s.spaces) == 4


def test_a_sum_of_relu_and_tanh_has_neither_scale_nor_sign() -> None:
    d = draft()
    v = d.input(4)
    x = d.op("add", (d.op("relu", d.dense(v, 6)), d.op("tanh", d.dense(v, 6))))
    s = derive(d.network(d.dense(x, 3)))
    assert [s.group(n) for n in s.spaces] == ["relabelling"]


def test_a_concatenation_keeps_spaces_apart() -> None:
    d = draft()
    v = d.input(4)
    parts = (d.op("relu", d.dense(v, 6)), v, d.op("tanh", d.dense(v, 5)))
    s = derive(d.network(d.dense(d.op("concat", parts, axis=-1), 3)))
    (axis,) = [side.axis for side in s.axes["dense_5/kernel"] if side.role == "out"]
    assert isinstance(axis, Concat)
    assert [(type(p), p.size) for p in axis.parts] == [(Use, 6), (Fixed, 4), (Use, 5)]
    assert [s.group(n) for n in s.spaces] == [POSITIVE, SIGN]


def test_a_concatenation_added_to_one_space_cuts_it() -> None:
    d = draft()
    v = d.input(4)
    both = d.op("concat", (d.op("relu", d.dense(v, 2)), d.op("relu", d.dense(v, 4))), axis=-1)
    s = derive(d.network(d.dense(d.op("add", (both, d.op("relu", d.dense(v, 6)))), 3)))
    assert sorted(x.size for x in s.spaces.values()) == [2, 4]
    assert s.log10_permutations == pytest.approx(np.log10(2 * 24))


@pytest.mark.parametrize("channels", ["last", "first"])
def test_flatten_is_a_product_channels_last(channels: str) -> None:
    d = draft(channels)
    v = d.op("relu", conv(d, d.input(*((5, 4, 2) if channels == "last" else (2, 5, 4))), 3, padding="same"))
    s = derive(d.network(d.dense(d.op("flatten", v, channels=channels), 3)))
    (axis,) = [side.axis for side in s.axes["dense_3/kernel"] if side.role == "out"]
    assert isinstance(axis, Product)
    assert [(type(p), p.size) for p in axis.parts] == [(Fixed, 20), (Use, 3)]  # canon's flatten moves channels last


def test_a_reshape_of_channels_first_is_a_product_channels_first() -> None:
    d = draft("first")
    v = d.op("relu", conv(d, d.input(2, 5, 4), 3, padding="same"))
    s = derive(d.network(d.dense(d.op("reshape", v, shape=[-1]), 3)))
    (axis,) = [side.axis for side in s.axes["dense_3/kernel"] if side.role == "out"]
    assert isinstance(axis, Product)
    assert [(type(p), p.size) for p in axis.parts] == [(Use, 3), (Fixed, 20)]


def test_a_shared_tensor_is_one_tensor_used_twice() -> None:
    d = draft()
    v = d.op("relu", d.dense(d.input(4), 6))
    once = d.dense(v, 6, bias=True)
    twice = d.op("dense", d.op("relu", once), dict(d.ops[-1].params if d.ops[-1].params else d.ops[-2].params))
    s = derive(d.network(d.dense(d.op("relu", twice), 3)))
    assert list(s.spaces) == ["dense_0"]  # in and out of the shared layer, and in again: one labelling
    assert s.log10_permutations == pytest.approx(np.log10(720))
    assert scales(s) == 1
    assert s.continuous_dimension == 6


def test_a_shared_encoder_of_two_inputs_has_one_space() -> None:
    d = draft()
    a, b = d.input(4), d.input(4)
    x = d.dense(a, 6, bias=True)
    y = d.op("dense", b, dict(d.ops[-1].params))
    both = d.op("concat", (d.op("relu", x), d.op("relu", y)), axis=-1)
    s = derive(d.network(d.dense(both, 3)))
    assert list(s.spaces) == ["dense_0"]
    assert s.group("dense_0") == POSITIVE
    (axis,) = [side.axis for side in s.axes["dense_5/kernel"] if side.role == "out"]
    assert [leaf.space for leaf in leaves(axis)] == ["dense_0", "dense_0"]


def test_a_gate_leaves_one_scale_and_one_sign_and_a_bilinear_form_two_of_each() -> None:
    found = {}
    for gate in ("silu", "sigmoid", "linear"):
        d = draft()
        v = d.input(4)
        g, u = d.dense(v, 6), d.dense(v, 6)
        x = d.op("multiply", (d.activation(g, gate), u))
        s = derive(d.network(d.dense(x, 3)))
        assert len(s.spaces) == 1
        found[gate] = (scales(s), len(flips(s)))
    assert found == {"silu": (1, 1), "sigmoid": (1, 1), "linear": (2, 2)}


def test_a_linear_space_carries_the_linear_group() -> None:
    d = draft()
    v = d.dense(d.dense(d.op("relu", d.dense(d.input(4), 5)), 3), 6)
    s = derive(d.network(d.dense(d.op("relu", v), 2)))
    assert {n: s.group(n) for n in s.spaces} == {"dense_0": POSITIVE, "dense_2": "linear", "dense_3": POSITIVE}
    assert s.continuous_dimension == 5 + 9 + 6
    assert s.log10_permutations == pytest.approx(np.log10(120 * 720))


def test_inputs_and_outputs_are_fixed_with_the_reason() -> None:
    d = draft()
    s = derive(d.network(d.dense(d.op("relu", d.dense(d.input(4), 6)), 3)))
    assert s.fixed == {"input0[0]": "the network's input", "dense_2[0]": "the network's output"}
    assert isinstance(s.axes["dense_0/kernel"][1].axis, Fixed)
    assert isinstance(s.axes["dense_2/kernel"][0].axis, Fixed)


def test_a_hidden_value_that_is_an_output_is_fixed() -> None:
    d = draft()
    v = d.op("relu", d.dense(d.input(4), 6))
    d.extra.append(v)
    s = derive(d.network(d.dense(v, 3)))
    assert not s.spaces
    assert s.continuous_dimension == 0


def test_an_opaque_operation_fixes_its_axes_and_says_so() -> None:
    d = draft()
    v = d.op("relu", d.dense(d.input(4), 6))
    v = d.op("opaque", v, {"w": np.ones((6, 6))}, class_name="Attention", shape=[7])
    s = derive(d.network(d.dense(d.op("relu", d.dense(v, 5)), 3)))
    assert list(s.spaces) == ["dense_3"]
    assert any("Attention" in why for why in s.fixed.values())
    assert all(isinstance(side.axis, Fixed) for side in s.axes["opaque_2/w"])


def test_dropout_and_linear_change_nothing() -> None:
    def groups(*between: str) -> dict[str, str]:
        d = draft()
        v = d.dense(d.input(4), 6)
        for kind in between:
            v = d.op(kind, v)
        v = d.op("relu", v)
        for kind in between:
            v = d.op(kind, v)
        s = derive(d.network(d.dense(v, 3)))
        return {n: s.group(n) for n in s.spaces}

    assert groups() == groups("dropout") == groups("linear") == groups("dropout", "linear") == {"dense_0": POSITIVE}


def test_a_softmax_in_the_middle_keeps_labels_alone() -> None:
    d = draft()
    v = d.op("softmax", d.dense(d.input(4), 6), axis=-1)
    s = derive(d.network(d.dense(v, 3)))
    assert {n: s.group(n) for n in s.spaces} == {"dense_0": "relabelling"}


@pytest.mark.parametrize(
    ("hidden", "order", "signed"),
    [([3], 6, 48), ([4, 4], 576, 147456), ([8], 40320, 10321920), ([5, 5, 5], 1728000, 56623104000)],
)
def test_orders_of_the_groups_of_chains(hidden: list[int], order: int, signed: int) -> None:
    for act in ("relu", "tanh"):
        d = draft()
        v = d.input(2)
        for n in hidden:
            v = d.activation(d.dense(v, n), act)
        s = derive(d.network(d.dense(v, 2)))
        assert s.log10_permutations == pytest.approx(np.log10(order))
        signs = sum(g.size for g in s.gauges.values() if g.kind == "sign")
        assert order * 2**signs == (signed if act == "tanh" else order)


@pytest.mark.parametrize(
    ("n", "log10"),
    [
        (2, 0.30102999566398103), (3, 0.7781512503836437), (5, 2.079181246047625), (8, 4.605520523437468),
        (10, 6.559763032876792), (16, 13.320619593779323), (64, 89.10341689733669), (128, 215.586160093542),
        (256, 506.93339504126567), (512, 1166.5412408857692), (1024, 2639.733881385711),
    ],
)  # fmt: skip
def test_log10_of_the_number_of_relabellings(n: int, log10: float) -> None:
    d = draft()
    s = derive(d.network(d.dense(d.op("gelu", d.dense(d.input(1), n)), 1)))
    assert s.log10_permutations == pytest.approx(log10, rel=1e-12)


@pytest.mark.parametrize(
    ("arch", "parameters", "dimension"),
    [
        ((1, 1, 1), 4, 1), ((1, 2, 1), 7, 2), ((2, 3, 1), 13, 3), ((2, 3, 2), 17, 3), ((2, 5, 3, 3), 45, 8),
        ((5, 5, 5, 5, 1), 96, 15), ((10, 10, 10, 10, 1), 341, 30), ((15, 15, 15, 15, 1), 736, 45),
        ((5, 5, 5, 5, 5, 5, 1), 156, 25), ((10, 10, 10, 10, 10, 10, 1), 561, 50),
        ((15, 15, 15, 15, 15, 15, 1), 1216, 75), ((784, 512, 10), 407050, 512), ((784, 512, 512, 10), 669706, 1024),
    ],
)  # fmt: skip
def test_dimension_of_the_scalings_of_relu_chains(arch: tuple[int, ...], parameters: int, dimension: int) -> None:
    d = draft()
    v = d.input(arch[0])
    for n in arch[1:-1]:
        v = d.op("relu", d.dense(v, n, bias=True))
    net = d.network(d.dense(v, arch[-1], bias=True))
    assert net.parameters == parameters
    assert derive(net).continuous_dimension == dimension


def test_no_weight_is_read() -> None:
    d = draft()
    v = d.norm(conv(d, d.input(6, 6, 2), 4))
    net = d.network(d.dense(d.op("flatten", d.op("relu", v)), 3, bias=True))
    poisoned = net.with_tensors({n: np.full_like(t, np.nan) for n, t in net.tensors.items()})
    assert derive(net) == derive(poisoned)
