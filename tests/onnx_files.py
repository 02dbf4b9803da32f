"""ONNX models made for tests, and what ONNX's own reference computes with them."""

from collections import Counter
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from canon import formats
from canon.forward import forward

BATCH = 3
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def node(op, inputs, outputs, **attrs):
    """A node; names of values as words in one string."""
    domain = attrs.pop("domain", "")
    outs = outputs.split() if isinstance(outputs, str) else outputs
    ins = [i.replace("_", "") if i == "_" else i for i in inputs.split()]
    return helper.make_node(op, ins, outs, name=attrs.pop("name", ""), domain=domain, **attrs)


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def model(nodes, x=("batch", 4), y=("y",), stored=None, opset=17, kinds=None, domains=(), functions=(), ir=None):
    """x: the shape of the input "x", or shapes by name; y: names of outputs; stored: arrays by name; kinds: types of inputs."""
    inputs = x if isinstance(x, dict) else {"x": x}
    kinds = kinds or {}
    ports = [helper.make_tensor_value_info(v, kinds.get(v, FLOAT), shape) for v, shape in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(v) for v in y]
    held = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, n) for n, t in (stored or {}).items()]
    graph = helper.make_graph(list(nodes), "g", ports, outs, held)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    made.ir_version = ir or min(made.ir_version, 10)
    return made


def save(path, *args, **kwargs):
    made = model(*args, **kwargs)
    Path(path).write_bytes(made.SerializeToString())
    return made


def feed(made, sizes=None, tokens=0, seed=1):
    """Inputs for ONNX: open sizes as told, the batch three."""
    sizes = {"batch": BATCH, **(sizes or {})}
    stored = {t.name for t in made.graph.initializer}
    out = {}
    for p in made.graph.input:
        if p.name in stored:
            continue
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in p.type.tensor_type.shape.dim]
        rng = np.random.default_rng(seed)
        integer = p.type.tensor_type.elem_type == INT
        out[p.name] = rng.integers(0, tokens, shape) if integer else rng.standard_normal(shape).astype(np.float32)
    return out


def reference(made, fed):
    return [np.asarray(v) for v in ReferenceEvaluator(made).run(None, fed)]


def ours(run, fed, axis=0):
    """What canon computes with what was fed to ONNX. axis: of the batch (None: each input is one sample)."""
    inputs = {}
    for (v, shape), x in zip(run.network.inputs.items(), fed.values(), strict=True):
        x = x[None] if axis is None else np.moveaxis(x, min(axis, x.ndim - 1), 0)
        inputs[v] = np.asarray(x, float).reshape(
            len(x), *(n if n is not None else m for n, m in zip(shape, x.shape[1:], strict=False))
        )
    found = forward(run.network, inputs)
    return [found[v] for v in run.network.outputs]


def check(tmp_path, nodes, *, axis=0, out_axis=0, sizes=None, tokens=0, tol=2e-6, wanted=None, **kwargs):
    """Read a model, run it, and hold it against ONNX's reference (or what is wanted); the run."""
    path = tmp_path / "a.onnx"
    made = save(path, nodes, **kwargs)
    run = formats.read(path)
    fed = feed(made, sizes, tokens)
    right = reference(made, fed) if wanted is None else wanted(fed)
    for found, known in zip(ours(run, fed, axis), right, strict=True):
        known = known[None] if out_axis is None else np.moveaxis(known, out_axis, 0)
        assert np.ptp(known) > 0
        np.testing.assert_allclose(found.reshape(known.shape), known, rtol=0, atol=tol * np.abs(known).max())
    return run


def kinds(run):
    return dict(Counter(op.kind for op in run.network.ops))


def ops(run):
    return [op.kind for op in run.network.ops]
