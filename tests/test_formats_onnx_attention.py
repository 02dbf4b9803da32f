"""Transformers as torch exports them: attention, rotary positions and norms found in the graph, at open sizes too."""

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx_files import INT, check, kinds, node, normal, ops
from torch import nn

from canon import formats
from canon.action import random_action
from canon.compare import compare
from canon.forward import forward
from canon.symmetry import derive

BATCH, STEPS, UNITS, HEADS = 2, 7, 12, 3


def exported(path, net, x, opset=17, **open_sizes):
    """The file, read; what canon computes is what torch does."""
    torch.manual_seed(0)
    for p in net.parameters():
        if p.ndim == 1:
            p.data.add_(0.3 * torch.randn_like(p))
    net.eval()
    sizes = {"x": dict(enumerate(open_sizes["open"]))} if open_sizes else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), path, dynamo=False, opset_version=opset, input_names=["x"], dynamic_axes=sizes)
    run = formats.read(path)
    wanted = net(x).detach().numpy()
    (found,) = forward(run.network, {"x": x.numpy().astype(float)}).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    return run


def units(seed=1):
    return torch.randn(BATCH, STEPS, UNITS, generator=torch.Generator().manual_seed(seed))


class SelfAttention(nn.Module):
    def __init__(self, batch_first=True, bias=True):
        super().__init__()
        self.inner = nn.MultiheadAttention(UNITS, HEADS, batch_first=batch_first, bias=bias)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("bias", [True, False])
def test_torchs_attention(tmp_path, bias):
    run = exported(tmp_path / "a.onnx", SelfAttention(bias=bias), units())
    assert kinds(run) == {"dense": 2, "slice": 3, "attention": 1}
    (op,) = [op for op in run.network.ops if op.kind == "attention"]
    assert op.attrs == {"heads": HEADS}
    assert derive(run.network).blocks


class Fused(nn.Module):
    """Queries, keys and values of one layer, three by three, and torch's own product with its scale."""

    def __init__(self, causal, scale=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(UNITS, 3 * UNITS), nn.Linear(UNITS, UNITS)
        self.causal, self.scale = causal, scale

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


@pytest.mark.parametrize(("causal", "scale"), [(False, None), (True, None), (True, 0.3)])
def test_a_causal_mask_and_a_scale(tmp_path, causal, scale):
    run = exported(tmp_path / "a.onnx", Fused(causal, scale), units())
    (op,) = [op for op in run.network.ops if op.kind == "attention"]
    wanted = {"heads": HEADS} | ({"causal": True} if causal else {}) | ({"scale": pytest.approx(scale)} if scale else {})
    assert dict(op.attrs) == wanted


def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Grouped(nn.Module):
    """Queries that share keys and values in pairs, rotary positions, RMS norms, a gated layer: a block like Llama's."""

    def __init__(self, d=24, heads=4, groups=2, window=0):
        super().__init__()
        self.heads, self.groups, self.d, self.window = heads, groups, d // heads, window
        self.embed = nn.Embedding(31, d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, n, bias=False) for n in (d, groups * self.d, groups * self.d, d))
        self.gate, self.up, self.down = nn.Linear(d, 20, bias=False), nn.Linear(d, 20, bias=False), nn.Linear(20, d, bias=False)
        self.norms = nn.ParameterList([torch.ones(d), torch.ones(d)])
        self.register_buffer("inverse", 10000.0 ** (-torch.arange(0, self.d, 2).float() / self.d))

    def norm(self, x, i):
        return self.norms[i] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, tokens):
        x = self.embed(tokens)
        b, t = tokens.shape
        angles = torch.outer(torch.arange(t).float(), self.inverse)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos()[None, None], both.sin()[None, None]
        h = self.norm(x, 0)
        q, k, v = (f(h).view(b, t, -1, self.d).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (z * cos + rotated(z) * sin for z in (q, k))
        k, v = (
            z[:, :, None].expand(b, self.groups, self.heads // self.groups, t, self.d).reshape(b, self.heads, t, self.d)
            for z in (k, v)
        )
        ahead = torch.arange(t) - torch.arange(t)[:, None]
        hidden = (ahead > 0) | (ahead <= -self.window) if self.window else ahead > 0
        scores = q @ k.transpose(2, 3) * self.d**-0.5 + hidden * -1e9
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, -1)
        x = x + self.o(y)
        h = self.norm(x, 1)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("sizes", [(), ("batch",)])
def test_grouped_queries_and_rotary_positions(tmp_path, window, sizes):
    tokens = torch.randint(0, 31, (BATCH, STEPS), generator=torch.Generator().manual_seed(0))
    run = exported(tmp_path / "a.onnx", Grouped(window=window), tokens, **({"open": sizes} if sizes else {}))
    found = kinds(run)
    assert found["attention"] == 1
    assert found["rotary"] == found["rms_norm"] == 2
    assert not set(found) & {"opaque", "matmul", "softmax", "permute", "reshape", "concat"}
    (op,) = [op for op in run.network.ops if op.kind == "attention"]
    assert dict(op.attrs) == {"heads": 4, "kv_heads": 2, "causal": True} | ({"window": 3} if window else {})
    turns = [op.attrs for op in run.network.ops if op.kind == "rotary"]
    assert [t["heads"] for t in turns] == [4, 2]
    np.testing.assert_allclose(turns[0]["frequencies"], 10000.0 ** (-np.arange(3) / 3), rtol=1e-12)


class Block(nn.Module):
    """As GPT-2's: norms first, one layer for queries, keys and values, a mask chosen by `where`."""

    def __init__(self, d, heads, positions=16):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj, self.c_fc, self.c_out = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )
        self.register_buffer(
            "mask", torch.tril(torch.ones(positions, positions, dtype=torch.bool)).view(1, 1, positions, positions)
        )

    def flat(self, layer, x):
        return torch.addmm(layer.bias, x.view(-1, x.size(-1)), layer.weight.t()).view(*x.size()[:-1], layer.out_features)

    def forward(self, x):
        q, k, v = (
            z.view(*z.size()[:-1], self.heads, -1).permute(0, 2, 1, 3)
            for z in self.flat(self.c_attn, self.ln_1(x)).split(x.size(-1), 2)
        )
        scores = q @ k.transpose(-1, -2) / (v.size(-1) ** 0.5)
        t = q.size(-2)
        scores = torch.where(self.mask[:, :, :t, :t], scores, torch.full([], torch.finfo(scores.dtype).min))
        y = (torch.softmax(scores, -1) @ v).permute(0, 2, 1, 3).contiguous()
        x = x + self.flat(self.c_proj, y.view(*y.size()[:-2], -1))
        return x + self.flat(self.c_out, nn.functional.gelu(self.flat(self.c_fc, self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(31, UNITS), nn.Embedding(16, UNITS)
        self.h = nn.ModuleList([Block(UNITS, HEADS) for _ in range(2)])
        self.ln_f, self.head = nn.LayerNorm(UNITS), nn.Linear(UNITS, 31, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(0, tokens.size(1)).unsqueeze(0))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


@pytest.mark.parametrize("sizes", [(), ("batch",), ("batch", "steps")])
def test_a_gpt(tmp_path, sizes):
    tokens = torch.randint(0, 31, (BATCH, STEPS), generator=torch.Generator().manual_seed(0))
    run = exported(tmp_path / "a.onnx", Gpt(), tokens, **({"open": sizes} if sizes else {}))
    assert kinds(run) == {
        "embedding": 1, "add_positions": 1, "layer_norm": 5, "dense": 9, "slice": 6, "attention": 2, "add": 4, "gelu": 2,
    }  # fmt: skip
    assert run.network.inputs == {"x": (None,) if len(sizes) == 2 else (STEPS,)}
    head = run.network.ops[-1]
    assert head.params["kernel"] == run.network.ops[0].params["table"]
    assert all(op.attrs["causal"] for op in run.network.ops if op.kind == "attention")


def test_a_moved_gpt_is_written_and_found(tmp_path):
    tokens = torch.randint(0, 31, (BATCH, STEPS), generator=torch.Generator().manual_seed(0))
    run = exported(tmp_path / "a.onnx", Gpt(), tokens)
    g = random_action(derive(run.network), run.network, np.random.default_rng(1))
    moved = g(run.network)
    single = moved.with_tensors({n: t.astype(np.float32) for n, t in moved.tensors.items()})
    formats.write(run.with_network(single), tmp_path / "b.onnx")
    again = formats.read(tmp_path / "b.onnx")
    assert again.network.ops == run.network.ops
    assert compare(run, again).verdict == "equivalent"
    held = [t.name for t in onnx.load(tmp_path / "b.onnx").graph.initializer]
    assert held == [t.name for t in onnx.load(tmp_path / "a.onnx").graph.initializer]


# by hand


def attention(mask=(), extra=(), scale=0.5, axis=-1):
    return [
        node("MatMul", "x q", "qq"), node("MatMul", "x k", "kk"), node("MatMul", "x v", "vv"),
        *(node("Reshape", f"{n} heads", f"{n}r") for n in ("qq", "kk", "vv")),
        node("Transpose", "qqr", "a", perm=[0, 2, 1, 3]), node("Transpose", "kkr", "b", perm=[0, 2, 3, 1]),
        node("Transpose", "vvr", "c", perm=[0, 2, 1, 3]), node("MatMul", "a b", "s0"), node("Constant", "",
        "half", value_float=scale),
        node("Mul", "s0 half", "s1"), *mask, node("Softmax", f"s{1 + len(mask)}", "p", axis=axis), *extra,
        node("MatMul", f"{'p2' if extra else 'p'} c", "o"), node("Transpose", "o", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t flat", "y"),
    ]  # fmt: skip


STORED = {n: normal(8, 8, seed=i) for i, n in enumerate("qkv")} | {"heads": np.array([0, 0, 2, 4]), "flat": np.array([0, 0, 8])}


def test_softcap_and_a_window_without_causality(tmp_path):
    cap = [node("Div", "s1 cap", "u1"), node("Tanh", "u1", "u2"), node("Mul", "u2 cap", "s4")]
    run = check(tmp_path, attention(cap), x=("batch", 5, 8), stored={**STORED, "cap": np.float32(3)}, tol=1e-5)
    assert run.network.ops[-1].attrs == {"heads": 2, "softcap": 3.0}
    ahead = np.arange(5) - np.arange(5)[:, None]
    hidden = np.where(ahead <= -2, np.float32(-1e9), np.float32(0))
    run = check(tmp_path, attention([node("Add", "s1 m", "s2")]), x=("batch", 5, 8), stored={**STORED, "m": hidden}, tol=1e-5)
    assert run.network.ops[-1].attrs == {"heads": 2, "window": 2}
    assert ops(run) == ["dense", "dense", "dense", "attention"]


@pytest.mark.parametrize(
    ("mask", "extra", "axis"),
    [
        ([node("Add", "s1 m", "s2")], [], -1),  # a mask without a pattern
        ([node("Add", "s1 f", "s2")], [], -1),  # numbers that hide nothing
        ([], [node("Mul", "p f", "p2")], -1),  # weights changed behind the softmax
        ([], [], -2),  # over the queries
    ],
)
def test_what_is_not_attention_stays_a_product(tmp_path, mask, extra, axis):
    m = np.zeros((5, 5), np.float32)
    m[1, 3] = m[4, 0] = -1e9
    stored = {**STORED, "m": m, "f": np.abs(normal(5, 5))}
    used = {v for n in attention(mask, extra, axis=axis) for v in n.input}
    run = check(
        tmp_path,
        attention(mask, extra, axis=axis),
        x=("batch", 5, 8),
        stored={k: v for k, v in stored.items() if k in used},
        tol=1e-5,
    )
    assert "attention" not in ops(run)
    assert ops(run).count("matmul") == 2
    assert "opaque" not in ops(run)


def test_heads_that_are_split_in_another_way_are_no_attention_of_canons(tmp_path):
    nodes = attention()
    nodes[3:6] = [node("Reshape", f"{n} heads", f"{n}r") for n in ("qq", "kk", "vv")]
    nodes[6] = node("Transpose", "qqr", "a", perm=[0, 3, 1, 2])  # units where heads should be
    nodes[7], nodes[8] = node("Transpose", "kkr", "b", perm=[0, 3, 2, 1]), node("Transpose", "vvr", "c", perm=[0, 3, 1, 2])
    nodes[-2] = node("Transpose", "o", "t", perm=[0, 2, 3, 1])
    assert "attention" not in ops(check(tmp_path, nodes, x=("batch", 5, 8), stored=STORED, tol=1e-5))


def test_rotary_tables_that_are_none(tmp_path):
    nodes = [node("Split", "x", "f s", axis=-1), node("Neg", "s", "n"), node("Concat", "n f", "r", axis=-1), node("Mul",
    "x c", "a"),
             node("Mul", "r d", "b"), node("Add", "a b", "y")]  # fmt: skip
    angles = np.arange(5)[:, None] * np.array([1.0, 0.1])
    both = np.concatenate([angles, angles], -1)
    stored = {"c": np.cos(both).astype(np.float32)[:, None], "d": np.sin(both).astype(np.float32)[:, None]}
    run = check(tmp_path, nodes, x=("batch", 5, 2, 4), stored=stored)
    assert "rotary" not in ops(run)  # an input that was never one axis of heads and units
    flat = [node("Reshape", "x0 to", "x"), *nodes]
    flat[0] = node("Reshape", "x to", "h")
    flat[1:] = [
        node("Split", "h", "f s", axis=-1),
        *nodes[1:3],
        node("Mul", "h c", "a"),
        *nodes[4:5],
        node("Add", "a b", "z"),
        node("Reshape", "z back", "y"),
    ]
    more = {"to": np.array([0, 0, 2, 4]), "back": np.array([0, 0, 8])}
    run = check(tmp_path, flat, x=("batch", 5, 8), stored={**stored, **more})
    assert ops(run) == ["rotary"]
    assert run.network.ops[0].attrs["frequencies"] == pytest.approx([1.0, 0.1], rel=1e-6)
    wrong = {**stored, "d": stored["d"] * np.float32(1.01)}
    assert "rotary" not in ops(check(tmp_path, flat, x=("batch", 5, 8), stored={**wrong, **more}))


def test_tokens_as_numbers_are_no_floats(tmp_path):
    run = check(tmp_path, [node("Gather", "t x", "y")], x=("batch", 5), kinds={"x": INT}, tokens=9, stored={"t": normal(9, 4)})
    assert run.network.ops[0].kind == "embedding"
